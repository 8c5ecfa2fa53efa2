#include "compiler/schedule/gcu/box.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "absl/algorithm/container.h"

namespace kiln::schedule::gcu {
namespace {

constexpr int64_t kMostRank = 4;  // of a copy

// Whether instructions run over several iterations of the loop in a tile.
bool IsLane(const Form& form, const Tiling& tiling, int phase, int loop) {
  const int of = form.loops[static_cast<size_t>(loop)].phase;
  return (of < 0 || of == phase) && !tiling.serial[static_cast<size_t>(loop)] &&
         tiling.tile[static_cast<size_t>(loop)] > 1;
}

bool HasLoop(const Access& access, int dim, int loop) {
  return access.indices[static_cast<size_t>(dim)].coefficients[static_cast<size_t>(loop)] != 0;
}

// The dimensions from the outermost in L1 on.
absl::InlinedVector<int, 6> OrderInL1(const Form& form, const Tiling& tiling, const Access& access,
                                      const std::vector<int>& dims, const Box& box) {
  absl::InlinedVector<int, 6> order(dims.begin(), dims.end());
  if (access.phase == 0 && tiling.matrix) {
    if (tiling.merged < 0) return order;
    for (const int loop : {tiling.matrix->depth, tiling.merged}) {
      absl::c_stable_partition(order, [&](int d) { return !HasLoop(access, d, loop); });
    }
    return order;
  }
  // Dimensions of a copy: those of one index take none, unless it may be outside.
  int64_t rank = 0;
  for (const int d : dims) {
    const auto i = static_cast<size_t>(d);
    if (box.extents[i] > 1 || access.clips[i].begin || access.clips[i].end) ++rank;
  }
  if (rank > kMostRank) return order;
  int innermost = -1;
  for (const int l : tiling.lanes) {
    if (IsLane(form, tiling, access.phase, l)) innermost = l;
  }
  if (innermost < 0) return order;
  // The least dimension of several indices, in memory.
  int least = -1;
  bool depends = false;
  for (const int d : dims) {
    if (box.extents[static_cast<size_t>(d)] > 1) least = d;
    depends = depends || HasLoop(access, d, innermost);
  }
  if (!depends || HasLoop(access, least, innermost)) return order;
  const auto lane_of = [&](int d) {
    ptrdiff_t lane = -1;
    for (size_t i = 0; i < tiling.lanes.size(); ++i) {
      const int l = tiling.lanes[i];
      if (IsLane(form, tiling, access.phase, l) && HasLoop(access, d, l)) {
        lane = static_cast<ptrdiff_t>(i);
      }
    }
    return lane;
  };
  absl::c_stable_sort(order, [&](int a, int b) { return lane_of(a) < lane_of(b); });
  return order;
}

}  // namespace

int64_t Box::StrideOf(const Access& access, int loop) const {
  int64_t stride = 0;
  for (size_t d = 0; d < extents.size(); ++d) {
    stride += access.indices[d].coefficients[static_cast<size_t>(loop)] / steps[d] * strides[d];
  }
  return stride;
}

Box BoxOf(const Form& form, const std::vector<int64_t>& extents, const Tiling& tiling,
          const Access& access, const std::vector<int>& dims) {
  Box box;
  for (size_t d = 0; d < access.indices.size(); ++d) {
    const Affine& index = access.indices[d];
    int64_t step = 0, reach = 0;
    for (size_t l = 0; l < extents.size(); ++l) {
      const int64_t c = std::abs(index.coefficients[l]);
      if (c == 0) continue;
      const int64_t range = tiling.serial[l] ? extents[l] : tiling.tile[l];
      if (range > 1) step = std::gcd(step, c);
      reach += c * (range - 1);
    }
    if (step == 0 || access.clips[d].begin || access.clips[d].end) step = 1;
    box.extents.push_back(reach / step + 1);
    box.steps.push_back(step);
  }
  box.strides.resize(box.extents.size());
  const absl::InlinedVector<int, 6> order = OrderInL1(form, tiling, access, dims, box);
  int64_t elements = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<size_t>(order[i]);
    box.strides[d] = elements;
    // Saturated: what is that large fits no memory.
    elements = std::min(elements * box.extents[d], int64_t{1} << 40);
  }
  return box;
}

void Runs::Add(int64_t extent, int64_t stride) {
  if (extent == 1) return;
  if (!begun_) {
    begun_ = true;
    extent_ = extent;
    stride_ = stride;
  } else if (!ended_ && stride == stride_ * extent_) {
    extent_ *= extent;
  } else {
    ended_ = true;
    rows_ *= extent;
  }
}

int64_t Runs::count() const {
  return stride_ == 1 || stride_ == 0 || extent_ == 1 ? rows_ : rows_ * extent_;
}

}  // namespace kiln::schedule::gcu
