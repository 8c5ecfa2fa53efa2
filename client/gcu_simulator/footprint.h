// Which bytes of the device's memories a piece of work reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kiln::gcu_simulator {

struct ByteRange {
  uint64_t begin = 0, end = 0;
};

// Grows with what lies apart, not with how often it is added.
class ByteRanges {
 public:
  void Add(uint64_t begin, uint64_t end);
  // In ascending order, none of which meet.
  const std::vector<ByteRange>& Sorted();

 private:
  std::vector<ByteRange> ranges_;
  bool is_sorted_ = true;
  size_t limit_ = kFewRanges;  // of ranges_, before they are sorted

  static constexpr size_t kFewRanges = size_t{1} << 12;
};

struct Footprint {
  ByteRanges read, written;
};

// A part that both have; both as Sorted gives them.
std::optional<ByteRange> CommonPart(const std::vector<ByteRange>& a,
                                    const std::vector<ByteRange>& b);

}  // namespace kiln::gcu_simulator
