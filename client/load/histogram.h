// Latencies in buckets of equal relative width: about 1 % from 1 us to 1000 s, in 17 KB.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace kiln::load {

// Not thread-safe.
class Histogram {
 public:
  void Add(absl::Duration value);
  void Merge(const Histogram& other);

  int64_t count() const { return count_; }
  absl::Duration max() const { return max_; }
  absl::Duration Mean() const;
  // The upper end of the bucket in which the fraction `q` of the values is reached; zero where
  // there is no value. REQUIRES: 0 < q <= 1.
  absl::Duration Quantile(double q) const;

 private:
  // Powers of two of nanoseconds, each cut into 64.
  static constexpr int kParts = 64;
  static constexpr int kPowers = 34;
  static constexpr int kFirstPower = 6;  // below 64 ns everything is in the first bucket
  static int BucketOf(int64_t ns);
  static int64_t UpperEnd(int bucket);

  std::array<int64_t, kParts * kPowers> counts_{};
  int64_t count_ = 0;
  absl::Duration sum_;
  absl::Duration max_;
};

}  // namespace kiln::load
