// Copies between strided windows of one GPU's memory.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/runtime/cuda/driver.h"

namespace kiln::cuda {

// Copies every element in the stream's order. Sizes and strides in elements of `element_bytes`; the
// windows have equal sizes, are not empty and do not overlap. Dimensions that lie behind one
// another in both windows are one; the driver copies two dimensions at a time, further ones cost a
// call for each of their places. REQUIRES: no negative size or stride.
absl::Status CopyOnGpu(const Driver& driver, DevicePointer to, absl::Span<const int64_t> to_strides,
                       DevicePointer from, absl::Span<const int64_t> from_strides,
                       absl::Span<const int64_t> sizes, int64_t element_bytes, Stream stream);

}  // namespace kiln::cuda
