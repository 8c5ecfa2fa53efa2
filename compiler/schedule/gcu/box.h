// What a tile has of a buffer, and how it lies in L1.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {

using Sizes = absl::InlinedVector<int64_t, 6>;

// A load's box of its buffer for one tile, by dimension: how many indices, the step between them,
// and the strides in L1, in elements.
struct Box {
  Sizes extents, steps, strides;

  // In L1, along the loop of that number.
  int64_t StrideOf(const Access& access, int loop) const;
};

// `extents`: of the loops; `dims`: the buffer's dimensions, outermost first. A box lies in L1 as it
// does in memory, but where the innermost loop of the tile's vectors would step over its elements:
// then as these go. Where a matrix instruction sums over two loops, these are innermost.
Box BoxOf(const Form& form, const std::vector<int64_t>& extents, const Tiling& tiling,
          const Access& access, const std::vector<int>& dims);

// The contiguous pieces of memory of a walk over dimensions, as the specification's times count
// them: `length` elements each.
class Runs {
 public:
  // From the innermost dimension on.
  void Add(int64_t extent, int64_t stride);
  int64_t count() const;
  int64_t length() const { return stride_ == 1 || extent_ == 1 ? extent_ : 1; }

 private:
  int64_t extent_ = 1, stride_ = 1;  // of the innermost ones that are one
  int64_t rows_ = 1;
  bool begun_ = false, ended_ = false;
};

}  // namespace kiln::schedule::gcu
