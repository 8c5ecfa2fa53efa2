#include "client/gcu_simulator/footprint.h"

#include <algorithm>

namespace kiln::gcu_simulator {

void ByteRanges::Add(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  if (!ranges_.empty()) {
    ByteRange& last = ranges_.back();
    if (begin >= last.begin && begin <= last.end) {
      last.end = std::max(last.end, end);
      return;
    }
    is_sorted_ = is_sorted_ && begin > last.end;
  }
  ranges_.push_back({begin, end});
  if (ranges_.size() <= limit_) return;
  Sorted();
  limit_ = std::max(kFewRanges, 2 * ranges_.size());
}

const std::vector<ByteRange>& ByteRanges::Sorted() {
  if (is_sorted_) return ranges_;
  std::sort(ranges_.begin(), ranges_.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (const ByteRange& range : ranges_) {
    if (kept > 0 && range.begin <= ranges_[kept - 1].end) {
      ranges_[kept - 1].end = std::max(ranges_[kept - 1].end, range.end);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
  is_sorted_ = true;
  return ranges_;
}

std::optional<ByteRange> CommonPart(const std::vector<ByteRange>& a,
                                    const std::vector<ByteRange>& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const ByteRange common = {std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (common.begin < common.end) return common;
    a[i].end < b[j].end ? ++i : ++j;
  }
  return std::nullopt;
}

}  // namespace kiln::gcu_simulator
