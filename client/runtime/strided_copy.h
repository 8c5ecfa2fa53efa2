// Copies between strided windows of memory.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace kiln::runtime {

// Copies every element. Sizes and strides in elements of `element_bytes`; the windows have equal
// sizes and do not overlap. REQUIRES: no negative size or stride.
void CopyStrided(char* to, absl::Span<const int64_t> to_strides, const char* from,
                 absl::Span<const int64_t> from_strides, absl::Span<const int64_t> sizes,
                 int64_t element_bytes);

// Elements from the first to past the last that sizes and strides reach: 0 for an empty window;
// nothing where a size or stride is negative or the sum does not fit 62 bits.
std::optional<int64_t> ReachElements(absl::Span<const int64_t> sizes,
                                     absl::Span<const int64_t> strides);

// Whether the strides are the row-major ones, a size of 0 counting as 1.
bool IsContiguous(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides);

// Whether both describe the same places: strides of dimensions of size 1 do not count, nor do any
// of a window without elements.
bool SameLayout(absl::Span<const int64_t> sizes, const int64_t* a, const int64_t* b);

}  // namespace kiln::runtime
