// Quantiles of the latencies of the last minutes, in bounded memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace kiln::server {

// Counts in buckets whose width is a sixteenth of their value or less, so that a quantile is right
// to about 3 %. From a microsecond to an hour; what is longer counts as an hour.
class LatencyHistogram {
 public:
  void Add(absl::Duration latency);
  void Merge(const LatencyHistogram& other);
  void Clear();

  int64_t count() const { return count_; }
  // 0 where there is nothing. REQUIRES: 0 <= quantile <= 1.
  absl::Duration Quantile(double quantile) const;

 private:
  static constexpr int kSubBuckets = 16;
  static constexpr int kOctaves = 28;
  static int BucketOf(uint64_t us);
  static double MiddleOf(int bucket);

  int64_t count_ = 0;
  std::array<uint32_t, kSubBuckets*(kOctaves + 1)> buckets_{};
};

inline constexpr absl::Duration kWindowSlot = absl::Seconds(5);
inline constexpr int kWindowSlots = 60;  // complete ones, besides the one that is being filled

// The number of the slot that `time` is in.
int64_t SlotOf(absl::Time time);
absl::Time SlotStart(int64_t slot);

// Slots of time in a ring: a slot is emptied when its place is needed again. T has Clear().
template <typename T>
class SlotRing {
 public:
  // The slot of `number`, empty at first. REQUIRES: no later one was asked for kWindowSlots ago.
  T& At(int64_t number) {
    Slot& slot = slots_[static_cast<size_t>(number % (kWindowSlots + 1))];
    if (slot.number != number) {
      slot.number = number;
      slot.value.Clear();
    }
    return slot.value;
  }
  // Null where nothing happened in it.
  const T* Find(int64_t number) const {
    const Slot& slot = slots_[static_cast<size_t>(number % (kWindowSlots + 1))];
    return slot.number == number ? &slot.value : nullptr;
  }

 private:
  struct Slot {
    int64_t number = -1;
    T value;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(kWindowSlots + 1);
};

}  // namespace kiln::server
