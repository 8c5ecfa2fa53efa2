#include "compiler/schedule/gcu/tiling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/algorithm/container.h"

namespace kiln::schedule::gcu {
namespace {

using ir::Inst;
using ir::ScalarOp;

constexpr int kMostRank = 4;
constexpr int64_t kVectorBytes = 512, kLineBytes = 64;
constexpr int64_t kMostElements = int64_t{1} << 22;  // of a tile; the specification allows 2^24
constexpr double kLatency = 500e-9;
constexpr int64_t kScalarCycles = 25;  // what describing a vector instruction's tiles takes

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t DeviceSize(DType dtype) {
  return dtype == DType::kI64 ? 4 : DTypeSize(dtype);
}

class Estimate {
 public:
  Estimate(const ir::Module& module, const Form& form, const Tiling& tiling, const InL2& in_l2,
           const Machine& machine)
      : module_(module), form_(form), tiling_(tiling), in_l2_(in_l2), machine_(machine) {
    for (const Loop& loop : form.loops) extents_.push_back(TypicalOf(*module.ints, loop.extent));
  }

  Cost Run() {
    Cost cost;
    int64_t items = 1;
    for (int l : tiling_.order) items *= Count(l);
    const int64_t blocks = tiling_.blocked < 0 ? 1 : Count(tiling_.blocked);
    const int64_t per_core = CeilDiv(items, machine_.cores);
    AddMemory(items, blocks, cost);
    const double cycle = 1.0 / static_cast<double>(machine_.clock_hz);
    const auto item_cycles = static_cast<double>(ItemCycles(blocks));
    const double step_scalar = 60.0 * cycle;
    cost.compute = static_cast<double>(per_core) *
                   (item_cycles * cycle + step_scalar * static_cast<double>(blocks));
    const double memory = std::max({cost.l3, cost.l2, cost.compute});
    // The first tile's load and the last one's store overlap with nothing.
    const double steps = static_cast<double>(std::max<int64_t>(per_core * blocks, 1));
    const double edges = std::max(cost.l3, cost.l2) / steps;
    cost.seconds = memory + edges + kLatency;
    return cost;
  }

 private:
  int64_t Count(int loop) const {
    return CeilDiv(std::max<int64_t>(extents_[loop], 1), tiling_.tile[loop]);
  }

  static int64_t Lines(int64_t run_bytes) { return CeilDiv(run_bytes, kLineBytes) * kLineBytes; }

  // Of a box of a buffer: 64-byte lines of its contiguous runs.
  int64_t BoxBytes(const Access& access, const Box& box) const {
    const ir::Buffer& buffer = module_.buffers[access.inst->buffer];
    const int64_t size = DeviceSize(buffer.dtype);
    std::vector<std::pair<int64_t, size_t>> order;  // stride, dimension
    for (size_t d = 0; d < box.extents.size(); ++d) {
      if (box.extents[d] == 1) continue;
      order.emplace_back(TypicalOf(*module_.ints, buffer.strides[d]) * box.steps[d], d);
    }
    absl::c_sort(order);
    int64_t run = 1;
    for (const auto& [stride, d] : order) {
      if (stride != run) break;
      run *= box.extents[d];
    }
    return box.elements / run * Lines(run * size);
  }

  int64_t StoreBytes(const Access& access) const {
    const int64_t size = DeviceSize(module_.buffers[access.inst->buffer].dtype);
    std::vector<std::pair<int64_t, int>> order;
    int64_t elements = 1;
    for (int l : form_.LoopsOf(access.phase)) {
      const int64_t stride = LinearOf(access, l);
      const int64_t extent = form_.loops[l].phase < 0 ? tiling_.tile[l] : extents_[l];
      if (extent <= 1) continue;
      elements *= extent;
      order.emplace_back(std::abs(stride), l);
    }
    absl::c_sort(order);
    int64_t run = 1;
    for (const auto& [stride, l] : order) {
      if (stride != run) break;
      run *= form_.loops[l].phase < 0 ? tiling_.tile[l] : extents_[l];
    }
    return elements / std::max<int64_t>(run, 1) * Lines(run * size);
  }

  int64_t LinearOf(const Access& access, int loop) const {
    const ir::Buffer& buffer = module_.buffers[access.inst->buffer];
    int64_t stride = 0;
    for (size_t d = 0; d < access.indices.size(); ++d) {
      stride += access.indices[d].coefficients[loop] * TypicalOf(*module_.ints, buffer.strides[d]);
    }
    return stride;
  }

  // How often a core loads the access's box, for all of its items.
  int64_t Loads(const Access& access, int64_t items, int64_t blocks) const {
    // Tiles of the loops behind the last one that the box depends on find it loaded.
    int64_t loads = 1, count = 1;
    bool blocked = false;
    for (int l : tiling_.order) {
      count *= Count(l);
      if (Depends(access, l) && Count(l) > 1) loads = count;
    }
    if (tiling_.blocked >= 0 && blocks > 1 && Depends(access, tiling_.blocked)) {
      loads = items;
      blocked = true;
    }
    // Cores take runs of items: each loads at least once.
    loads = std::max<int64_t>(loads, std::min<int64_t>(items, machine_.cores));
    loads = std::min(loads, items);
    return blocked ? loads * blocks : loads;
  }

  bool Depends(const Access& access, int loop) const {
    return absl::c_any_of(access.indices,
                          [&](const Affine& index) { return index.coefficients[loop] != 0; });
  }

  void AddMemory(int64_t items, int64_t blocks, Cost& cost) {
    std::vector<std::pair<ir::BufferId, std::string>> seen;
    for (const Access& access : form_.accesses) {
      const ir::BufferId buffer = access.inst->buffer;
      const bool is_load = access.inst->op == ScalarOp::kLoad;
      int64_t bytes = 0;
      if (is_load) {
        const Box box = BoxOf(module_, form_, tiling_, access);
        int64_t own = box.elements * DeviceSize(module_.buffers[buffer].dtype);
        std::string key;
        for (size_t d = 0; d < box.extents.size(); ++d) {
          key += std::to_string(box.extents[d]) + " ";
        }
        if (absl::c_linear_search(seen, std::make_pair(buffer, key))) continue;
        seen.emplace_back(buffer, key);
        bytes = BoxBytes(access, box) * Loads(access, items, blocks);
        cost.l1_bytes += own > 2048 ? 2 * own + 128 : own + 64;
      } else {
        bytes = StoreBytes(access) * items;
      }
      (in_l2_[buffer] ? cost.l2_bytes : cost.l3_bytes) += bytes;
    }
    cost.l1_bytes += ValueBytes();
    cost.l3 = static_cast<double>(cost.l3_bytes) / static_cast<double>(machine_.l3_rate);
    cost.l2 = static_cast<double>(cost.l2_bytes) / static_cast<double>(machine_.l2_rate);
  }

  // Elements of a tile of the phase's loops.
  int64_t TileElements(int phase) const {
    int64_t elements = 1;
    for (int l : form_.LoopsOf(phase)) {
      if (!tiling_.serial[l]) elements *= tiling_.tile[l];
    }
    return elements;
  }

  // Values that live at one time: a guess from the length of the body.
  int64_t ValueBytes() const {
    int64_t most = 0, stored = 0;
    for (size_t p = 0; p < form_.kernel.phases.size(); ++p) {
      int64_t operations = 0;
      for (const Inst& inst : form_.kernel.phases[p].body) {
        if (inst.op == ScalarOp::kStore) {
          stored += TileElements(static_cast<int>(p)) * DeviceSize(inst.dtype);
        }
        operations += IsWork(inst.op) ? 1 : 0;
      }
      const bool matrix = p == 0 && tiling_.matrix;
      const int64_t values = std::min<int64_t>(operations, 4);
      int64_t elements = TileElements(static_cast<int>(p));
      if (matrix) elements = MatrixElements();
      most = std::max(most, elements * 4 * (matrix ? 1 : values));
    }
    if (tiling_.matrix) most += MatrixElements() * 4;
    return most + stored + 16384;
  }

  int64_t MatrixElements() const {
    int64_t elements = 1;
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      if (form_.loops[l].phase < 0) elements *= tiling_.tile[l];
    }
    return elements;
  }

  static bool IsWork(ScalarOp op) {
    return op != ScalarOp::kLoad && op != ScalarOp::kStore && op != ScalarOp::kConst;
  }

  int64_t ItemCycles(int64_t blocks) const {
    int64_t cycles = 0;
    for (size_t p = 0; p < form_.kernel.phases.size(); ++p) {
      const auto phase = static_cast<int>(p);
      if (p == 0 && tiling_.matrix) {
        cycles += MatrixCycles() * blocks;
        continue;
      }
      int64_t serial = 1;
      for (int l : form_.LoopsOf(phase)) {
        if (form_.loops[l].phase < 0) continue;
        serial *= tiling_.serial[l] ? extents_[l] : Count(l);
      }
      const int64_t elements = TileElements(phase);
      for (const Inst& inst : form_.kernel.phases[p].body) {
        if (!IsWork(inst.op)) continue;
        const int64_t weight = ir::IsElementary(inst.op) ? 4 : 1;
        cycles += serial * (kScalarCycles + weight * CeilDiv(elements * 4, kVectorBytes));
      }
    }
    return cycles;
  }

  int64_t MatrixCycles() const {
    const MatrixRoles& roles = *tiling_.matrix;
    int64_t rows = 1, columns = 1, serial = 1;
    for (int l : roles.rows) rows *= tiling_.tile[l];
    for (int l : roles.columns) columns *= tiling_.tile[l];
    for (size_t l = 0; l < form_.loops.size(); ++l) {
      if (form_.loops[l].phase == 0 && tiling_.serial[l]) serial *= extents_[l];
    }
    const int64_t lanes = machine_.Macs(roles.dtype) / 16;
    const int64_t depth = std::min(tiling_.tile[roles.depth], extents_[roles.depth]);
    return serial * (16 + 60 + rows * CeilDiv(depth, lanes) * CeilDiv(columns, 16)) +
           CeilDiv(rows * columns * 4, kVectorBytes);
  }

  const ir::Module& module_;
  const Form& form_;
  const Tiling& tiling_;
  const InL2& in_l2_;
  const Machine& machine_;
  std::vector<int64_t> extents_;  // by loop
};

// What candidates have in common.
class Chooser {
 public:
  Chooser(const ir::Module& module, const Form& form, const InL2& in_l2, const Machine& machine,
          int64_t l1_bytes)
      : module_(module), form_(form), in_l2_(in_l2), machine_(machine), l1_bytes_(l1_bytes) {
    for (const Loop& loop : form.loops) extents_.push_back(TypicalOf(*module.ints, loop.extent));
  }

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
    const Cost cost = CostOf(module_, form_, tiling, in_l2_, machine_);
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

  // Loops by the stride of what is stored, so that stores are contiguous.
  std::vector<int> Lanes() const {
    std::vector<int> lanes(form_.loops.size());
    std::iota(lanes.begin(), lanes.end(), 0);
    std::vector<int64_t> strides(form_.loops.size(), 0);
    for (const bool stores : {true, false}) {
      for (const Access& access : form_.accesses) {
        if ((access.inst->op == ScalarOp::kStore) != stores) continue;
        const ir::Buffer& buffer = module_.buffers[access.inst->buffer];
        for (size_t l = 0; l < strides.size(); ++l) {
          if (strides[l] != 0) continue;
          for (size_t d = 0; d < access.indices.size(); ++d) {
            strides[l] += std::abs(access.indices[d].coefficients[l]) *
                          TypicalOf(*module_.ints, buffer.strides[d]);
          }
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
          if (form_.loops[l].phase < 0 && index.coefficients[l] != 0 && extents_[l] > 1) return true;
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
    const auto inner_rows =
        rows.empty() ? one : Parts(extents_[rows.back()], 1, 1024);
    const auto outer_rows = rows.size() < 2 ? one : Parts(extents_[rows[0]], 1, 1024);
    const bool dynamic_depth = !form_.loops[roles.depth].extent.is_const();
    const auto depths = Parts(std::max<int64_t>(extents_[roles.depth], 1), 16, 4096);
    for (const int64_t depth : depths) {
      if (depth < extents_[roles.depth] && depth < 64 && depth != depths.back()) continue;
      Tiling tiling = base;
      tiling.tile[roles.depth] = depth;
      if (depth < extents_[roles.depth] || dynamic_depth) tiling.blocked = roles.depth;
      for (const int64_t c : columns) {
        if (column >= 0) tiling.tile[column] = c;
        for (const int64_t inner : inner_rows) {
          if (!rows.empty()) tiling.tile[rows.back()] = inner;
          // Rows of an image whole, unless they are long.
          if (rows.size() == 2 && inner < extents_[rows.back()] && inner < 64) continue;
          for (const int64_t outer : outer_rows) {
            if (rows.size() == 2) tiling.tile[rows[0]] = outer;
            if (outer * inner * c > (int64_t{1} << 17)) continue;
            for (const bool columns_first : {true, false}) {
              tiling.order = Order(base.order, column, columns_first);
              Try(tiling);
            }
          }
        }
      }
      if (best_fits_ && depth >= 1024) break;
    }
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
    int64_t inner_most = 1;
    for (size_t p = 0; p < form_.kernel.phases.size(); ++p) {
      int64_t inner = 1;
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
        inner *= extent;
        if (extent > 1) ++rank;
      }
      inner_most = std::max(inner_most, inner);
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
        inner /= extents_[shortest];
        base.tile[shortest] = 1;
        --rank;
      }
    }
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
      for (int64_t target = 256; target <= (int64_t{1} << 17); target *= 2) {
        FillOuter(target / std::max<int64_t>(inner, 1), kMostRank - rank, tiling);
        Try(tiling);
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

  // Outer loops, from the innermost lane on, until a tile has so many iterations of them.
  void FillOuter(int64_t target, int rank, Tiling& tiling) const {
    for (int l : tiling.order) tiling.tile[l] = 1;
    int64_t left = std::max<int64_t>(target, 1);
    for (auto l = tiling.lanes.rbegin(); l != tiling.lanes.rend() && rank > 0; ++l) {
      if (form_.loops[*l].phase >= 0 || extents_[*l] <= 1) continue;
      if (left <= 1) break;
      const int64_t parts = CeilDiv(extents_[*l], left);
      int64_t part = CeilDiv(extents_[*l], std::max<int64_t>(parts, 1));
      // A divisor near by, so that no tile is shorter than others.
      for (int64_t p = part; p * 2 > part; --p) {
        if (p > 0 && extents_[*l] % p == 0) {
          part = p;
          break;
        }
      }
      tiling.tile[*l] = part;
      left /= part;
      --rank;
    }
  }

  const ir::Module& module_;
  const Form& form_;
  const InL2& in_l2_;
  const Machine& machine_;
  const int64_t l1_bytes_;
  std::vector<int64_t> extents_;
  bool found_ = false, best_fits_ = false;
  Tiling best_;
  Cost best_cost_;
};

}  // namespace

int64_t TypicalOf(const ir::IntContext& ints, ir::IntExpr expr) {
  if (expr.is_const()) return expr.value();
  if (ir::ContainsKind(expr, ir::IntKind::kVar)) {
    const ir::IntRange range = expr.range();
    return range.max == ir::IntRange::kMaxInt ? 1 : range.max;
  }
  return ints.EvaluateAtHints(expr);
}

bool IsPart(const Form& form, const Tiling& tiling, int loop) {
  const ir::IntExpr extent = form.loops[static_cast<size_t>(loop)].extent;
  return !extent.is_const() || tiling.tile[static_cast<size_t>(loop)] < extent.value();
}

Box BoxOf(const ir::Module& module, const Form& form, const Tiling& tiling, const Access& access) {
  Box box;
  for (size_t d = 0; d < access.indices.size(); ++d) {
    const Affine& index = access.indices[d];
    int64_t step = 0, reach = 0;
    for (size_t l = 0; l < form.loops.size(); ++l) {
      const int64_t c = std::abs(index.coefficients[l]);
      if (c == 0) continue;
      const int64_t range = tiling.serial[l] ? TypicalOf(*module.ints, form.loops[l].extent)
                                             : tiling.tile[l];
      if (range > 1) step = std::gcd(step, c);
      reach += c * (range - 1);
    }
    if (step == 0 || access.clips[d].begin || access.clips[d].end) step = 1;
    box.steps.push_back(step);
    box.extents.push_back(reach / step + 1);
    box.elements *= box.extents.back();
    box.elements = std::min(box.elements, kMostElements * 16);
  }
  return box;
}

Cost CostOf(const ir::Module& module, const Form& form, const Tiling& tiling, const InL2& in_l2,
            const Machine& machine) {
  return Estimate(module, form, tiling, in_l2, machine).Run();
}

Tiling ChooseTiling(const ir::Module& module, const Form& form, const InL2& in_l2,
                    const Machine& machine, int64_t l1_bytes) {
  return Chooser(module, form, in_l2, machine, l1_bytes).Run();
}

}  // namespace kiln::schedule::gcu
