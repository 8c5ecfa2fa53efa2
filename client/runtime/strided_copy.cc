#include "client/runtime/strided_copy.h"

#include <algorithm>
#include <cstring>

namespace kiln::runtime {

void CopyStrided(char* to, absl::Span<const int64_t> to_strides, const char* from,
                 absl::Span<const int64_t> from_strides, absl::Span<const int64_t> sizes,
                 int64_t element_bytes) {
  if (sizes.empty()) {
    std::memcpy(to, from, element_bytes);
    return;
  }
  const int64_t n = sizes[0];
  if (n == 0) return;
  const int64_t to_step = to_strides[0] * element_bytes;
  const int64_t from_step = from_strides[0] * element_bytes;
  if (sizes.size() == 1 && to_strides[0] == 1 && from_strides[0] == 1) {
    std::memcpy(to, from, n * element_bytes);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (sizes.size() == 1) {
      std::memcpy(to + i * to_step, from + i * from_step, element_bytes);
    } else {
      CopyStrided(to + i * to_step, to_strides.subspan(1), from + i * from_step,
                  from_strides.subspan(1), sizes.subspan(1), element_bytes);
    }
  }
}

std::optional<int64_t> ReachElements(absl::Span<const int64_t> sizes,
                                     absl::Span<const int64_t> strides) {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t last = 0;
  bool empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || strides[d] < 0) return std::nullopt;
    if (sizes[d] == 0) {
      empty = true;
      continue;
    }
    int64_t reach = 0;
    if (__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last) || last >= kMost) {
      return std::nullopt;
    }
  }
  return empty ? 0 : last + 1;
}

bool IsContiguous(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != stride) return false;
    if (__builtin_mul_overflow(stride, std::max<int64_t>(sizes[d], 1), &stride)) return false;
  }
  return true;
}

bool SameLayout(absl::Span<const int64_t> sizes, const int64_t* a, const int64_t* b) {
  bool same = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    same = same && (sizes[d] == 1 || a[d] == b[d]);
  }
  return same;
}

}  // namespace kiln::runtime
