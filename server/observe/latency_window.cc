#include "server/observe/latency_window.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kiln::server {

// Values below 16 have a bucket each; an octave [2^k, 2^(k+1)) has 16, by the four bits after the
// first.
int LatencyHistogram::BucketOf(uint64_t us) {
  if (us < kSubBuckets) return static_cast<int>(us);
  int octave = std::bit_width(us) - 5;  // 0 for 16 to 31
  if (octave >= kOctaves) return kSubBuckets * (kOctaves + 1) - 1;
  return kSubBuckets * (octave + 1) + static_cast<int>((us >> octave) & (kSubBuckets - 1));
}

double LatencyHistogram::MiddleOf(int bucket) {
  if (bucket < kSubBuckets) return bucket;
  int octave = bucket / kSubBuckets - 1;
  double low = std::ldexp(kSubBuckets + bucket % kSubBuckets, octave);
  return low + std::ldexp(0.5, octave);
}

void LatencyHistogram::Add(absl::Duration latency) {
  int64_t us = std::max<int64_t>(absl::ToInt64Microseconds(latency), 0);
  ++buckets_[static_cast<size_t>(BucketOf(static_cast<uint64_t>(us)))];
  ++count_;
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  if (other.count_ == 0) return;
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

void LatencyHistogram::Clear() {
  if (count_ == 0) return;
  buckets_.fill(0);
  count_ = 0;
}

absl::Duration LatencyHistogram::Quantile(double quantile) const {
  auto wanted = static_cast<int64_t>(std::ceil(quantile * static_cast<double>(count_)));
  wanted = std::max<int64_t>(wanted, 1);
  int64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= wanted) return absl::Microseconds(MiddleOf(static_cast<int>(i)));
  }
  return absl::ZeroDuration();
}

int64_t SlotOf(absl::Time time) {
  return absl::ToUnixMicros(time) / absl::ToInt64Microseconds(kWindowSlot);
}

absl::Time SlotStart(int64_t slot) {
  return absl::UnixEpoch() + slot * kWindowSlot;
}

}  // namespace kiln::server
