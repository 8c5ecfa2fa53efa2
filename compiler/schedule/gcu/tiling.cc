#include "compiler/schedule/gcu/tiling.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "compiler/schedule/gcu/cost.h"

namespace kiln::schedule::gcu {
namespace {

using ir::ScalarOp;

constexpr int kMostRank = 4;
// Iterations of a loop that a load walks fastest: some lines of memory, and many.
constexpr int64_t kAlongLoad[] = {16, 64, 256};

// What candidates have in common.
class Chooser {
 public:
  Chooser(const ir::Module& module, const Form& form, const InL2& in_l2, const Machine& machine,
          int64_t l1_bytes)
      : module_(module),
        form_(form),
        model_(module, form, in_l2, machine),
        extents_(model_.extents()),
        machine_(machine),
        l1_bytes_(l1_bytes) {}

  Tiling Run() {
    Tiling base;
    base.tile.assign(form_.loops.size(), 1);
    base.serial.assign(form_.loops.size(), false);
    base.lanes = Lanes();
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      if (form_.loops[l].phase < 0) base.order.push_back(static_cast<int>(l));
    }
    base.matrix = RolesOf(module_, form_);
    if (base.matrix && machine_.Macs(base.matrix->dtype) > 0) {
      TryMatrix(base);
      if (found_) return best_;
    }
    base.matrix.reset();
    TryLoops(base);
    return best_;
  }

 private:
  void Try(const Tiling& tiling) {
    if (best_fits_ && model_.AtLeast(tiling) >= best_cost_.seconds) return;
    const Cost cost = model_.Of(tiling);
    const bool fits = cost.l1_bytes <= l1_bytes_;
    const bool better = !found_ || (fits && !best_fits_) ||
                        (fits == best_fits_ && (fits ? cost.seconds < best_cost_.seconds
                                                     : cost.l1_bytes < best_cost_.l1_bytes));
    if (!better) return;
    found_ = true;
    best_fits_ = fits;
    best_ = tiling;
    best_cost_ = cost;
  }

  // Of an access, by loop: elements from one iteration to the next, in either direction.
  std::vector<int64_t> StridesOf(const Access& access) const {
    const ir::Buffer& buffer = module_.buffers[access.inst->buffer];
    std::vector<int64_t> strides(form_.loops.size(), 0);
    for (size_t d = 0; d < access.indices.size(); ++d) {
      const int64_t stride = TypicalOf(*module_.ints, buffer.strides[d]);
      for (size_t l = 0; l < strides.size(); ++l) {
        strides[l] += std::abs(access.indices[d].coefficients[l]) * stride;
      }
    }
    return strides;
  }

  // Loops by the stride of what is stored, so that stores are contiguous.
  std::vector<int> Lanes() const {
    std::vector<int> lanes(form_.loops.size());
    std::iota(lanes.begin(), lanes.end(), 0);
    std::vector<int64_t> strides(form_.loops.size(), 0);
    for (const bool stores : {true, false}) {
      for (const Access& access : form_.accesses) {
        if ((access.inst->op == ScalarOp::kStore) != stores) continue;
        const std::vector<int64_t> own = StridesOf(access);
        for (size_t l = 0; l < strides.size(); ++l) {
          if (strides[l] == 0) strides[l] = own[l];
        }
      }
    }
    absl::c_stable_sort(lanes, [&](int a, int b) { return strides[a] > strides[b]; });
    return lanes;
  }

  bool IsWindow(int loop) const {
    for (const Access& access : form_.accesses) {
      for (const Affine& index : access.indices) {
        if (index.coefficients[loop] == 0) continue;
        for (size_t l = 0; l < form_.loops.size(); ++l) {
          if (form_.loops[l].phase < 0 && index.coefficients[l] != 0 && extents_[l] > 1)
            return true;
        }
      }
    }
    return false;
  }

  // Parts of `extent` that are about equal: extent / 1, / 2, ...; multiples of `unit`.
  static std::vector<int64_t> Parts(int64_t extent, int64_t unit, int64_t most) {
    std::vector<int64_t> out;
    for (int64_t n = 1; n <= extent; n = n < 16 ? n + 1 : n + std::max<int64_t>(1, n / 4)) {
      int64_t part = CeilDiv(CeilDiv(extent, n), unit) * unit;
      part = std::min(part, extent);
      if (part > most) continue;
      if (out.empty() || out.back() != part) out.push_back(part);
    }
    if (out.empty()) out.push_back(std::min(most, extent));
    return out;
  }

  void TryMatrix(Tiling base) {
    const MatrixRoles& roles = *base.matrix;
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      const Loop& loop = form_.loops[l];
      if (loop.phase != 0) {
        if (loop.phase > 0) base.tile[l] = std::max<int64_t>(extents_[l], 1);
        continue;
      }
      base.serial[l] = static_cast<int>(l) != roles.depth;
      if (base.serial[l] && !loop.extent.is_const()) return;
    }
    // Rows: the two innermost ones in the lanes; columns: the longest.
    std::vector<int> rows;
    for (int l : base.lanes) {
      if (absl::c_linear_search(roles.rows, l) && extents_[l] > 1) rows.push_back(l);
    }
    if (rows.size() > 2) rows.erase(rows.begin(), rows.end() - 2);
    int column = -1;
    for (int l : roles.columns) {
      if (column < 0 || extents_[l] > extents_[column]) column = l;
    }
    const std::vector<int64_t> one = {1};
    const auto columns = column < 0 ? one : Parts(extents_[column], 16, 2048);
    const auto inner_rows = rows.empty() ? one : Parts(extents_[rows.back()], 1, 1024);
    const auto outer_rows = rows.size() < 2 ? one : Parts(extents_[rows[0]], 1, 1024);
    const bool dynamic_depth = !form_.loops[roles.depth].extent.is_const();
    const int64_t all = std::max<int64_t>(extents_[roles.depth], 1);
    std::vector<int64_t> depths = {std::min<int64_t>(all, 4096)};
    for (const int64_t depth : {1024, 512, 256, 128, 64}) {
      if (depth < all) depths.push_back(depth);
    }
    TryMerged(base, [&](Tiling tiling) {
      TryTiles(std::move(tiling), rows, column, columns, inner_rows, outer_rows);
    });
    for (const int64_t depth : depths) {
      Tiling tiling = base;
      tiling.tile[roles.depth] = depth;
      if (depth < extents_[roles.depth] || dynamic_depth) tiling.blocked = roles.depth;
      TryTiles(std::move(tiling), rows, column, columns, inner_rows, outer_rows);
    }
  }

  // The matrix's tiles of those rows and columns.
  void TryTiles(Tiling tiling, const std::vector<int>& rows, int column,
                const std::vector<int64_t>& columns, const std::vector<int64_t>& inner_rows,
                const std::vector<int64_t>& outer_rows) {
    const std::vector<int> order = tiling.order;
    for (const int64_t c : columns) {
      if (column >= 0) tiling.tile[column] = c;
      for (const int64_t inner : inner_rows) {
        if (!rows.empty()) tiling.tile[rows.back()] = inner;
        // Rows of an image whole, unless they are long.
        if (rows.size() == 2 && inner < extents_[rows.back()] && inner < 64) continue;
        for (const int64_t outer : outer_rows) {
          if (rows.size() == 2) tiling.tile[rows[0]] = outer;
          if (outer * inner * c > (int64_t{1} << 17)) continue;
          tiling.order = Order(order, column, true);
          Try(tiling);
          if (column < 0 || c >= extents_[column]) continue;  // the order is all the same
          tiling.order = Order(order, column, false);
          Try(tiling);
        }
      }
    }
  }

  // A depth that leaves lanes empty together with another loop, where that fills more of them.
  template <typename Found>
  void TryMerged(const Tiling& base, const Found& found) const {
    const MatrixRoles& roles = *base.matrix;
    if (!form_.loops[roles.depth].extent.is_const()) return;
    const int64_t lanes = machine_.Macs(roles.dtype) / 16, depth = extents_[roles.depth];
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      const auto loop = static_cast<int>(l);
      if (form_.loops[l].phase != 0 || loop == roles.depth || extents_[l] == 1) continue;
      const int64_t apart = CeilDiv(depth, lanes) * extents_[l];
      if (CeilDiv(depth * extents_[l], lanes) >= apart) continue;
      if (!MayMerge(roles.a, roles.depth, loop) || !MayMerge(roles.b, roles.depth, loop)) continue;
      Tiling tiling = base;
      tiling.merged = loop;
      tiling.serial[l] = false;
      tiling.tile[l] = extents_[l];
      tiling.tile[roles.depth] = depth;
      found(std::move(tiling));
    }
  }

  // Whether the operand is a load that has the loop in a dimension of its own, and the depth in
  // another one, step by step: so in L1 they can be neighbours.
  bool MayMerge(ir::ValueId operand, int depth, int loop) const {
    for (const Access& access : form_.accesses) {
      const ir::Inst& inst = *access.inst;
      if (inst.op != ScalarOp::kLoad || inst.result != operand) continue;
      if (inst.has_mask && !access.mask_is_clip) return false;
      int depth_dims = 0, loop_dims = 0;
      int64_t rank = 0;
      for (size_t d = 0; d < access.indices.size(); ++d) {
        const std::vector<int64_t>& c = access.indices[d].coefficients;
        bool moves = false;
        for (size_t l = 0; l < c.size(); ++l) {
          moves = moves || (c[l] != 0 && extents_[l] > 1);
          if (c[static_cast<size_t>(loop)] != 0 && static_cast<int>(l) != loop && c[l] != 0) {
            return false;
          }
        }
        if (moves || access.clips[d].begin || access.clips[d].end) ++rank;
        if (c[static_cast<size_t>(depth)] == 1) ++depth_dims;
        if (c[static_cast<size_t>(loop)] == 1) ++loop_dims;
        if (c[static_cast<size_t>(depth)] < 0 || c[static_cast<size_t>(depth)] > 1) return false;
        if (c[static_cast<size_t>(loop)] < 0 || c[static_cast<size_t>(loop)] > 1) return false;
      }
      return depth_dims == 1 && loop_dims == 1 && rank <= kMostRank;
    }
    return false;
  }

  // The columns' loop as the slowest one but for those of the batch, or as the fastest.
  std::vector<int> Order(std::vector<int> order, int column, bool first) const {
    const auto at = absl::c_find(order, column);
    if (at == order.end()) return order;
    order.erase(at);
    order.insert(first ? order.begin() : order.end(), column);
    return order;
  }

  void TryLoops(Tiling base) {
    // Inner loops: windows one after another, rows whole where they fit.
    for (size_t p = 0; p < form_.kernel.phases.size(); ++p) {
      int rank = 0;
      for (size_t l = 0; l < form_.loops.size(); ++l) {
        const Loop& loop = form_.loops[l];
        if (loop.phase != static_cast<int>(p)) continue;
        const int64_t extent = std::max<int64_t>(extents_[l], 1);
        if (loop.extent.is_const() && (IsWindow(static_cast<int>(l)) && extent <= 128)) {
          base.serial[l] = true;
          continue;
        }
        base.tile[l] = extent;
        if (extent > 1) ++rank;
      }
      // More dimensions than a tile has: the shortest run one after another.
      while (rank > kMostRank - (form_.kernel.outer.empty() ? 0 : 1)) {
        int shortest = -1;
        for (size_t l = 0; l < form_.loops.size(); ++l) {
          if (form_.loops[l].phase != static_cast<int>(p) || base.serial[l] || extents_[l] <= 1 ||
              !form_.loops[l].extent.is_const()) {
            continue;
          }
          if (shortest < 0 || extents_[l] < extents_[shortest]) shortest = static_cast<int>(l);
        }
        if (shortest < 0) break;
        base.serial[shortest] = true;
        base.tile[shortest] = 1;
        --rank;
      }
    }
    const std::vector<int64_t> one = {1};
    const std::vector<int> firsts = Firsts(base.lanes);
    for (const int64_t most_inner : {int64_t{1} << 30, int64_t{1} << 16, int64_t{1} << 14,
                                     int64_t{1} << 12, int64_t{1} << 9}) {
      Tiling tiling = base;
      ShrinkInner(most_inner, tiling);
      int64_t inner = 1;
      int rank = 0;
      for (size_t p = 0; p < form_.kernel.phases.size(); ++p) {
        int64_t own = 1;
        int own_rank = 0;
        for (size_t l = 0; l < form_.loops.size(); ++l) {
          if (form_.loops[l].phase != static_cast<int>(p) || tiling.serial[l]) continue;
          own *= tiling.tile[l];
          if (tiling.tile[l] > 1) ++own_rank;
        }
        inner = std::max(inner, own);
        rank = std::max(rank, own_rank);
      }
      for (const int first : firsts) {
        for (const int64_t part : first < 0 ? absl::Span<const int64_t>(one) : kAlongLoad) {
          for (int64_t target = 256; target <= (int64_t{1} << 17); target *= 2) {
            FillOuter(target / std::max<int64_t>(inner, 1), kMostRank - rank, first, part, tiling);
            Try(tiling);
          }
        }
      }
      if (found_ && best_fits_) return;
    }
  }

  // Inner loops to at most so many iterations together, the outermost ones first.
  void ShrinkInner(int64_t most, Tiling& tiling) const {
    for (size_t p = 0; p < form_.kernel.phases.size(); ++p) {
      int64_t inner = 1;
      std::vector<int> loops;
      for (size_t l = 0; l < form_.loops.size(); ++l) {
        if (form_.loops[l].phase != static_cast<int>(p) || tiling.serial[l]) continue;
        loops.push_back(static_cast<int>(l));
        inner *= tiling.tile[l];
      }
      for (int l : loops) {
        if (inner <= most) break;
        const int64_t rest = inner / tiling.tile[l];
        const int64_t part = std::max<int64_t>(1, most / rest);
        inner = rest * part;
        tiling.tile[l] = std::min(part, tiling.tile[l]);
      }
    }
    // One loop of one phase may be steps.
    tiling.blocked = -1;
    if (form_.kernel.phases.empty()) return;
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      if (form_.loops[l].phase == 0 && IsPart(form_, tiling, static_cast<int>(l)) &&
          !tiling.serial[l]) {
        const bool only = absl::c_none_of(form_.accesses, [](const Access& access) {
          return access.phase == 0 && access.inst->op == ScalarOp::kStore;
        });
        if (only && tiling.blocked < 0) {
          tiling.blocked = static_cast<int>(l);
        } else {
          tiling.blocked = -1;
          return;
        }
      }
    }
  }

  // Outer loops that tiles may have a part of before they have all of the store's innermost one: -1
  // for none, and those that a load walks fastest where the store walks another one.
  std::vector<int> Firsts(const std::vector<int>& lanes) const {
    std::vector<int> firsts = {-1};
    int innermost = -1;
    for (int l : lanes) {
      if (form_.loops[l].phase < 0 && extents_[l] > 1) innermost = l;
    }
    for (const Access& access : form_.accesses) {
      if (access.inst->op != ScalarOp::kLoad) continue;
      const std::vector<int64_t> strides = StridesOf(access);
      if (innermost < 0 || strides[static_cast<size_t>(innermost)] == 0) continue;
      int fastest = -1;
      for (size_t l = 0; l < strides.size(); ++l) {
        if (form_.loops[l].phase >= 0 || extents_[l] <= 1 || strides[l] == 0) continue;
        if (fastest < 0 || strides[l] < strides[fastest]) fastest = static_cast<int>(l);
      }
      if (fastest >= 0 && fastest != innermost && !absl::c_linear_search(firsts, fastest)) {
        firsts.push_back(fastest);
      }
    }
    return firsts;
  }

  // Outer loops until a tile has `target` iterations of them: `part` of the loop `first`, if there
  // is one, and then from the innermost lane on.
  void FillOuter(int64_t target, int rank, int first, int64_t part, Tiling& tiling) const {
    for (int l : tiling.order) tiling.tile[l] = 1;
    int64_t left = std::max<int64_t>(target, 1);
    if (first >= 0 && rank > 1) {
      tiling.tile[first] = PartOf(first, std::min(part, left));
      left /= tiling.tile[first];
      --rank;
    }
    for (auto l = tiling.lanes.rbegin(); l != tiling.lanes.rend() && rank > 0; ++l) {
      if (form_.loops[*l].phase >= 0 || extents_[*l] <= 1 || *l == first) continue;
      if (left <= 1) break;
      tiling.tile[*l] = PartOf(*l, left);
      left /= tiling.tile[*l];
      --rank;
    }
  }

  // Of the loop, at most `most`: a divisor near by, so that no tile is shorter than others.
  int64_t PartOf(int loop, int64_t most) const {
    const int64_t parts = CeilDiv(extents_[loop], most);
    const int64_t part = CeilDiv(extents_[loop], std::max<int64_t>(parts, 1));
    for (int64_t p = part; p * 2 > part; --p) {
      if (p > 0 && extents_[loop] % p == 0) return p;
    }
    return part;
  }

  const ir::Module& module_;
  const Form& form_;
  const CostModel model_;
  const std::vector<int64_t>& extents_;
  const Machine& machine_;
  const int64_t l1_bytes_;
  bool found_ = false, best_fits_ = false;
  Tiling best_;
  Cost best_cost_;
};

}  // namespace

bool IsPart(const Form& form, const Tiling& tiling, int loop) {
  const ir::IntExpr extent = form.loops[static_cast<size_t>(loop)].extent;
  return !extent.is_const() || tiling.tile[static_cast<size_t>(loop)] < extent.value();
}

Tiling ChooseTiling(const ir::Module& module, const Form& form, const InL2& in_l2,
                    const Machine& machine, int64_t l1_bytes) {
  return Chooser(module, form, in_l2, machine, l1_bytes).Run();
}

}  // namespace kiln::schedule::gcu
