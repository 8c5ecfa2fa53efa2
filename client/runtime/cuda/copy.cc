#include "client/runtime/cuda/copy.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "proto/base/status_macros.h"

namespace kiln::cuda {
namespace {

constexpr int64_t kMostPitch = INT32_MAX;  // bytes between rows that the driver takes

struct Dimension {
  int64_t size = 0;
  int64_t to_step = 0;  // bytes, as the next
  int64_t from_step = 0;
};
using Dimensions = absl::InlinedVector<Dimension, 8>;

// The fewest dimensions with the same places, those with the smallest steps last.
Dimensions Merge(absl::Span<const int64_t> to_strides, absl::Span<const int64_t> from_strides,
                 absl::Span<const int64_t> sizes, int64_t element_bytes) {
  Dimensions all;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    all.push_back({sizes[d], to_strides[d] * element_bytes, from_strides[d] * element_bytes});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.to_step > b.to_step; });
  Dimensions merged;
  for (const Dimension& inner : all) {
    if (!merged.empty() && merged.back().to_step == inner.size * inner.to_step &&
        merged.back().from_step == inner.size * inner.from_step) {
      const int64_t outer_size = merged.back().size;
      merged.back() = inner;
      merged.back().size *= outer_size;
    } else {
      merged.push_back(inner);
    }
  }
  return merged;
}

class Copier {
 public:
  Copier(const Driver& driver, int64_t width, Stream stream)
      : driver_(driver), width_(width), stream_(stream) {}

  absl::Status Copy(DevicePointer to, DevicePointer from, absl::Span<const Dimension> dimensions) {
    if (dimensions.empty()) {
      return Check(driver_.copy(to, from, static_cast<size_t>(width_), stream_));
    }
    if (dimensions.size() == 1 && IsPitched(dimensions[0])) {
      return CopyRows(to, from, dimensions[0]);
    }
    const Dimension& outer = dimensions[0];
    for (int64_t i = 0; i < outer.size; ++i) {
      KILN_RETURN_IF_ERROR(Copy(to + static_cast<DevicePointer>(i * outer.to_step),
                                from + static_cast<DevicePointer>(i * outer.from_step),
                                dimensions.subspan(1)));
    }
    return absl::OkStatus();
  }

  bool IsPitched(const Dimension& rows) const {
    return rows.to_step >= width_ && rows.from_step >= width_ && rows.to_step <= kMostPitch &&
           rows.from_step <= kMostPitch;
  }

 private:
  absl::Status CopyRows(DevicePointer to, DevicePointer from, const Dimension& rows) {
    Copy2D copy{};
    copy.from_memory_type = copy.to_memory_type = kMemoryTypeDevice;
    copy.from_device = from;
    copy.to_device = to;
    copy.from_pitch = static_cast<size_t>(rows.from_step);
    copy.to_pitch = static_cast<size_t>(rows.to_step);
    copy.width_bytes = static_cast<size_t>(width_);
    copy.height = static_cast<size_t>(rows.size);
    return Check(driver_.copy_2d(&copy, stream_));
  }

  absl::Status Check(Result result) {
    return result == kSuccess ? absl::OkStatus()
                              : driver_.Check(result, "cannot copy a tensor on the GPU");
  }

  const Driver& driver_;
  const int64_t width_;  // bytes of the innermost piece
  const Stream stream_;
};

}  // namespace

absl::Status CopyOnGpu(const Driver& driver, DevicePointer to, absl::Span<const int64_t> to_strides,
                       DevicePointer from, absl::Span<const int64_t> from_strides,
                       absl::Span<const int64_t> sizes, int64_t element_bytes, Stream stream) {
  Dimensions dimensions = Merge(to_strides, from_strides, sizes, element_bytes);
  int64_t width = element_bytes;
  if (!dimensions.empty() && dimensions.back().to_step == element_bytes &&
      dimensions.back().from_step == element_bytes) {
    width *= dimensions.back().size;
    dimensions.pop_back();
  }
  Copier copier(driver, width, stream);
  // The driver's rows are the longest dimension that can be: the fewest calls.
  const auto rows = [&](const Dimension& d) { return copier.IsPitched(d) ? d.size : 0; };
  const auto longest =
      std::max_element(dimensions.begin(), dimensions.end(),
                       [&](const auto& a, const auto& b) { return rows(a) < rows(b); });
  if (longest != dimensions.end()) std::rotate(longest, longest + 1, dimensions.end());
  return copier.Copy(to, from, dimensions);
}

}  // namespace kiln::cuda
