#include "client/load/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kiln::load {

int Histogram::BucketOf(int64_t ns) {
  const uint64_t value = static_cast<uint64_t>(std::max<int64_t>(ns, int64_t{1} << kFirstPower));
  const int power = std::bit_width(value) - 1;
  const int part = static_cast<int>((value >> (power - kFirstPower)) & (kParts - 1));
  return std::min((power - kFirstPower) * kParts + part, kParts * kPowers - 1);
}

int64_t Histogram::UpperEnd(int bucket) {
  const int power = bucket / kParts;
  return static_cast<int64_t>(kParts + bucket % kParts + 1) << power;
}

void Histogram::Add(absl::Duration value) {
  ++counts_[static_cast<size_t>(BucketOf(absl::ToInt64Nanoseconds(value)))];
  ++count_;
  sum_ += value;
  max_ = std::max(max_, value);
}

void Histogram::Merge(const Histogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  max_ = std::max(max_, other.max_);
}

absl::Duration Histogram::Mean() const {
  return count_ == 0 ? absl::ZeroDuration() : sum_ / count_;
}

absl::Duration Histogram::Quantile(double q) const {
  if (count_ == 0) return absl::ZeroDuration();
  const int64_t wanted = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= wanted) {
      return std::min(max_, absl::Nanoseconds(UpperEnd(static_cast<int>(i))));
    }
  }
  return max_;
}

}  // namespace kiln::load
