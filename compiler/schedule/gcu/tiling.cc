#include "compiler/schedule/gcu/tiling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"

namespace kiln::schedule::gcu {
namespace {

using ir::Inst;
using ir::ScalarOp;

constexpr int kMostRank = 4;
constexpr int64_t kVectorBytes = 512, kLineBytes = 64;
constexpr int64_t kMostElements = int64_t{1} << 22;  // of a tile; the specification allows 2^24
constexpr double kLatency = 500e-9, kL2Latency = 100e-9;  // of a copy
constexpr double kStepCycles = 60;                        // for the numbers of the next tile
constexpr double kStageOverhead = 500e-9;                 // a barrier, and what stands before tiles
constexpr int64_t kScalarCycles = 25;  // what describing a vector instruction's tiles takes

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t DeviceSize(DType dtype) {
  return dtype == DType::kI64 ? 4 : DTypeSize(dtype);
}

// The extent of one dimension of a load's box, and the step in it.
std::pair<int64_t, int64_t> BoxOfDimension(const std::vector<int64_t>& extents,
                                           const Tiling& tiling, const Access& access, int d) {
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
  return {reach / step + 1, step};
}

// What estimates for all tilings of a kernel have in common.
struct Facts {
  struct Reach {
    const Access* access = nullptr;
    bool is_load = false;
    bool in_l2 = false;
    int64_t size = 0;              // bytes of an element
    std::vector<int64_t> strides;  // of the buffer, by dimension
    std::vector<int> dims;         // from the least stride on
    std::vector<int64_t> linear;   // stride by loop
    std::vector<bool> depends;     // by loop
    int same_as = -1;              // an earlier load that has the same box, whatever the tiling
  };
  struct Work {
    int64_t operations = 0, cycles = 0;  // of a vector
    int64_t spread = 0;                  // operations that repeat an operand over rows of another
    int64_t stored_bytes = 0;            // of an iteration
  };

  Facts(const ir::Module& module, const Form& form, const InL2& in_l2) {
    for (const Loop& loop : form.loops) {
      extents.push_back(TypicalOf(*module.ints, loop.extent));
      outer.push_back(loop.phase < 0);
    }
    std::vector<uint64_t> dims(static_cast<size_t>(form.kernel.num_values), 0);
    for (size_t p = 0; p < form.kernel.phases.size(); ++p) {
      loops.push_back(form.LoopsOf(static_cast<int>(p)));
      Work& phase = work.emplace_back();
      for (const Inst& inst : form.kernel.phases[p].body) {
        if (inst.op == ScalarOp::kStore) phase.stored_bytes += DeviceSize(inst.dtype);
        if (inst.result != ir::kNoValue) dims[inst.result] = DimsOf(form, inst, dims);
        if (inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore ||
            inst.op == ScalarOp::kConst) {
          continue;
        }
        const bool spreads = absl::c_any_of(inst.operands, [&](ir::ValueId operand) {
          return dims[operand] != 0 && dims[operand] != dims[inst.result];
        });
        if (spreads && inst.op != ScalarOp::kReduce) ++phase.spread;
        ++phase.operations;
        phase.cycles += ir::IsElementary(inst.op) ? 4 : 1;
      }
    }
    for (const Access& access : form.accesses) {
      Reach& reach = reaches.emplace_back();
      const ir::Buffer& buffer = module.buffers[access.inst->buffer];
      reach.access = &access;
      reach.is_load = access.inst->op == ScalarOp::kLoad;
      reach.in_l2 = in_l2[access.inst->buffer];
      reach.size = DeviceSize(buffer.dtype);
      reach.linear.assign(form.loops.size(), 0);
      reach.depends.assign(form.loops.size(), false);
      for (size_t d = 0; d < access.indices.size(); ++d) {
        reach.strides.push_back(TypicalOf(*module.ints, buffer.strides[d]));
        reach.dims.push_back(static_cast<int>(d));
        for (size_t l = 0; l < form.loops.size(); ++l) {
          const int64_t c = access.indices[d].coefficients[l];
          reach.linear[l] += c * reach.strides[d];
          if (c != 0) reach.depends[l] = true;
        }
      }
      absl::c_stable_sort(reach.dims,
                          [&](int a, int b) { return reach.strides[a] < reach.strides[b]; });
      for (size_t i = 0; i + 1 < reaches.size() && reach.is_load; ++i) {
        if (IsSame(form, *reaches[i].access, access)) {
          reach.same_as = static_cast<int>(i);
          break;
        }
      }
    }
  }

  // The loops that a value depends on, a bit each.
  static uint64_t DimsOf(const Form& form, const Inst& inst, const std::vector<uint64_t>& dims) {
    uint64_t out = 0;
    if (inst.op == ScalarOp::kLoad) {
      for (const Affine& index : form.AccessOf(inst).indices) {
        for (size_t l = 0; l < form.loops.size() && l < 64; ++l) {
          if (index.coefficients[l] != 0) out |= uint64_t{1} << l;
        }
      }
      return out;
    }
    for (ir::ValueId operand : inst.operands) out |= dims[operand];
    for (size_t l = 0; l < form.loops.size() && l < 64; ++l) {
      if (inst.op == ScalarOp::kReduce && form.loops[l].phase >= 0) out &= ~(uint64_t{1} << l);
      if (inst.op == ScalarOp::kReduce && form.loops[l].phase < 0) out |= uint64_t{1} << l;
      if (inst.op == ScalarOp::kIndex && ir::ContainsVar(inst.indices[0], form.loops[l].var)) {
        out |= uint64_t{1} << l;
      }
    }
    return out;
  }

  // Outer loops with the same coefficients, inner loops with some of the same length.
  static bool IsSame(const Form& form, const Access& a, const Access& b) {
    if (a.inst->op != b.inst->op || a.inst->buffer != b.inst->buffer) return false;
    for (size_t d = 0; d < a.indices.size(); ++d) {
      if (a.indices[d].rest != b.indices[d].rest) return false;
      int64_t inner_a = 0, inner_b = 0;
      for (size_t l = 0; l < form.loops.size(); ++l) {
        const int64_t x = a.indices[d].coefficients[l], y = b.indices[d].coefficients[l];
        if (form.loops[l].phase < 0) {
          if (x != y) return false;
          continue;
        }
        const auto length =
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(form.loops[l].extent.node()) >> 3);
        inner_a += x * length;
        inner_b += y * length;
      }
      if (inner_a != inner_b) return false;
    }
    return true;
  }

  std::vector<int64_t> extents;         // by loop
  std::vector<bool> outer;              // by loop
  std::vector<std::vector<int>> loops;  // by phase
  std::vector<Work> work;               // by phase
  std::vector<Reach> reaches;
};

class Estimate {
 public:
  Estimate(const Facts& facts, const Tiling& tiling, const Machine& machine)
      : facts_(facts), extents_(facts.extents), tiling_(tiling), machine_(machine) {}

  Cost Run() {
    Cost cost;
    int64_t items = 1;
    for (int l : tiling_.order) items *= Count(l);
    const int64_t blocks = tiling_.blocked < 0 ? 1 : Count(tiling_.blocked);
    const int64_t per_core = CeilDiv(items, machine_.cores);
    AddMemory(items, blocks, cost);
    const double cycle = 1.0 / static_cast<double>(machine_.clock_hz);
    const double steps = static_cast<double>(std::max<int64_t>(per_core * blocks, 1));
    const double step =
        static_cast<double>(ItemCycles(blocks)) * cycle / static_cast<double>(blocks) +
        kStepCycles * cycle;
    cost.compute = steps * step;
    // Loads run one step ahead: a step takes no less than its loads, all cores' together, from
    // their issue on; and one whose loads include a box that others kept takes that much longer.
    const double latency = cost.l3_bytes > 0 ? kLatency : kL2Latency;
    // Long ones hide the latency behind those of other cores.
    const double copies = each_step_ + latency * std::max(0.0, 1 - each_step_ / (4 * latency));
    double seconds = steps * std::max(step, copies);
    double first = latency + each_step_ / static_cast<double>(machine_.cores);
    for (const auto& [times, burst] : bursts_) {
      first += burst;
      if (times < 1.5) continue;  // once, at the beginning
      seconds += (times - 1) * std::max(0.0, copies + burst - std::max(step, copies));
    }
    cost.seconds = std::max({seconds, cost.l3, cost.l2}) + first + kStageOverhead;
    return cost;
  }

 private:
  int64_t Count(int loop) const {
    return CeilDiv(std::max<int64_t>(extents_[loop], 1), tiling_.tile[loop]);
  }

  static int64_t Lines(int64_t run_bytes) { return CeilDiv(run_bytes, kLineBytes) * kLineBytes; }

  // Of a box: its elements, and the bytes of 64-byte lines of its contiguous runs.
  std::pair<int64_t, int64_t> BoxBytes(const Facts::Reach& reach) const {
    int64_t elements = 1, run = 1;
    bool contiguous = true;
    for (int d : reach.dims) {
      const auto [extent, step] = BoxOfDimension(facts_.extents, tiling_, *reach.access, d);
      elements = std::min(elements * extent, kMostElements * 16);
      if (extent == 1) continue;
      contiguous = contiguous && reach.strides[d] * step == run;
      if (contiguous) run *= extent;
    }
    return {elements, elements / run * Lines(run * reach.size)};
  }

  int64_t StoreBytes(const Facts::Reach& reach) const {
    int64_t elements = 1, run = 1;
    // Loops from the least stride on, few as they are.
    int64_t below = -1;
    for (bool more = true; more;) {
      more = false;
      int64_t least = std::numeric_limits<int64_t>::max(), extent = 1;
      for (int l : facts_.loops[reach.access->phase]) {
        const int64_t stride = std::abs(reach.linear[l]);
        const int64_t own = facts_.outer[l] ? tiling_.tile[l] : extents_[l];
        if (own <= 1 || stride <= below || stride >= least) continue;
        least = stride;
        extent = own;
        more = true;
      }
      if (!more) break;
      below = least;
      elements *= extent;
      if (least == run) run *= extent;
    }
    return elements / std::max<int64_t>(run, 1) * Lines(run * reach.size);
  }

  // How often a core loads the access's box, for all of its items.
  int64_t Loads(const Facts::Reach& reach, int64_t items, int64_t blocks) const {
    // Tiles of the loops behind the last one that the box depends on find it loaded.
    int64_t loads = 1, count = 1;
    bool blocked = false;
    for (int l : tiling_.order) {
      count *= Count(l);
      if (reach.depends[l] && Count(l) > 1) loads = count;
    }
    if (tiling_.blocked >= 0 && blocks > 1 && reach.depends[tiling_.blocked]) {
      loads = items;
      blocked = true;
    }
    // Cores take runs of items: each loads at least once.
    loads = std::max<int64_t>(loads, std::min<int64_t>(items, machine_.cores));
    loads = std::min(loads, items);
    return blocked ? loads * blocks : loads;
  }

  void AddMemory(int64_t items, int64_t blocks, Cost& cost) {
    for (const Facts::Reach& reach : facts_.reaches) {
      int64_t bytes = 0;
      if (reach.is_load) {
        if (reach.same_as >= 0) continue;
        const auto [elements, lines] = BoxBytes(reach);
        const int64_t own = elements * reach.size;
        const int64_t loads = Loads(reach, items, blocks);
        bytes = lines * loads;
        cost.l1_bytes += own > 2048 ? 2 * own + 128 : own + 64;
        const int64_t cores = std::min<int64_t>(items, machine_.cores);
        const double burst = Seconds(reach, lines * cores);
        if (loads * 10 >= items * blocks * 9 && items * blocks > cores) {
          each_step_ += burst;
        } else {
          bursts_.emplace_back(static_cast<double>(loads) / static_cast<double>(cores), burst);
        }
      } else {
        bytes = StoreBytes(reach) * items;
        each_step_ +=
            Seconds(reach, bytes) / static_cast<double>(CeilDiv(items, machine_.cores) * blocks);
      }
      (reach.in_l2 ? cost.l2_bytes : cost.l3_bytes) += bytes;
    }
    cost.l1_bytes += ValueBytes();
    cost.l3 = static_cast<double>(cost.l3_bytes) / static_cast<double>(machine_.l3_rate);
    cost.l2 = static_cast<double>(cost.l2_bytes) / static_cast<double>(machine_.l2_rate);
  }

  // Of the channel that the buffer's memory has.
  double Seconds(const Facts::Reach& reach, int64_t bytes) const {
    return static_cast<double>(bytes) /
           static_cast<double>(reach.in_l2 ? machine_.l2_rate : machine_.l3_rate);
  }

  // Elements of a tile of the phase's loops.
  int64_t TileElements(size_t phase) const {
    int64_t elements = 1;
    for (int l : facts_.loops[phase]) {
      if (!tiling_.serial[l]) elements *= tiling_.tile[l];
    }
    return elements;
  }

  // Values that live at one time: a guess from the length of the body.
  int64_t ValueBytes() const {
    int64_t most = 0, stored = 0;
    for (size_t p = 0; p < facts_.work.size(); ++p) {
      const bool matrix = p == 0 && tiling_.matrix;
      const int64_t elements = matrix ? MatrixElements() : TileElements(p);
      stored += TileElements(p) * facts_.work[p].stored_bytes;
      const int64_t values = matrix ? 1 : std::min<int64_t>(facts_.work[p].operations, 4);
      most = std::max(most, elements * 4 * values);
    }
    if (tiling_.matrix) most += MatrixElements() * 4;
    return most + stored + 16384;
  }

  int64_t MatrixElements() const {
    int64_t elements = 1;
    for (size_t l = 0; l < extents_.size(); ++l) {
      if (facts_.outer[l]) elements *= tiling_.tile[l];
    }
    return elements;
  }

  int64_t ItemCycles(int64_t blocks) const {
    int64_t cycles = 0;
    for (size_t p = 0; p < facts_.work.size(); ++p) {
      if (p == 0 && tiling_.matrix) {
        cycles += MatrixCycles() * blocks;
        continue;
      }
      int64_t serial = 1;
      for (int l : facts_.loops[p]) {
        if (!facts_.outer[l]) serial *= tiling_.serial[l] ? extents_[l] : Count(l);
      }
      const int64_t vectors = CeilDiv(TileElements(p) * 4, kVectorBytes);
      // An operand that is repeated counts whole vectors for each row.
      int64_t row = 1;
      for (int l : tiling_.lanes) {
        if (!facts_.outer[l] && !absl::c_linear_search(facts_.loops[p], l)) continue;
        if (!tiling_.serial[l] && tiling_.tile[l] > 1) row = tiling_.tile[l];
      }
      const int64_t rows = TileElements(p) / row * CeilDiv(row * 4, kVectorBytes);
      cycles +=
          serial * (kScalarCycles * facts_.work[p].operations + facts_.work[p].cycles * vectors +
                    facts_.work[p].spread * std::max<int64_t>(0, rows - vectors));
    }
    return cycles;
  }

  int64_t MatrixCycles() const {
    const MatrixRoles& roles = *tiling_.matrix;
    int64_t rows = 1, columns = 1, serial = 1;
    for (int l : roles.rows) rows *= tiling_.tile[l];
    for (int l : roles.columns) columns *= tiling_.tile[l];
    for (int l : facts_.loops[0]) {
      if (!facts_.outer[l] && tiling_.serial[l]) serial *= extents_[l];
    }
    const int64_t lanes = machine_.Macs(roles.dtype) / 16;
    const int64_t depth = std::min(tiling_.tile[roles.depth], extents_[roles.depth]);
    return serial * (16 + 60 + rows * CeilDiv(depth, lanes) * CeilDiv(columns, 16)) +
           CeilDiv(rows * columns * 4, kVectorBytes);
  }

  const Facts& facts_;
  const std::vector<int64_t>& extents_;
  const Tiling& tiling_;
  const Machine& machine_;
  double each_step_ = 0;                           // copies of every step, all cores' together
  std::vector<std::pair<double, double>> bursts_;  // of other loads: how often, and how long
};

// What candidates have in common.
class Chooser {
 public:
  Chooser(const ir::Module& module, const Form& form, const InL2& in_l2, const Machine& machine,
          int64_t l1_bytes)
      : module_(module),
        form_(form),
        facts_(module, form, in_l2),
        extents_(facts_.extents),
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
    const Cost cost = Estimate(facts_, tiling, machine_).Run();
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
    for (const int64_t depth : depths) {
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
  const Facts facts_;
  const std::vector<int64_t>& extents_;
  const Machine& machine_;
  const int64_t l1_bytes_;
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
  std::vector<int64_t> extents;
  for (const Loop& loop : form.loops) extents.push_back(TypicalOf(*module.ints, loop.extent));
  Box box;
  for (size_t d = 0; d < access.indices.size(); ++d) {
    const auto [extent, step] = BoxOfDimension(extents, tiling, access, static_cast<int>(d));
    box.steps.push_back(step);
    box.extents.push_back(extent);
  }
  return box;
}

Cost CostOf(const ir::Module& module, const Form& form, const Tiling& tiling, const InL2& in_l2,
            const Machine& machine) {
  return Estimate(Facts(module, form, in_l2), tiling, machine).Run();
}

Tiling ChooseTiling(const ir::Module& module, const Form& form, const InL2& in_l2,
                    const Machine& machine, int64_t l1_bytes) {
  return Chooser(module, form, in_l2, machine, l1_bytes).Run();
}

}  // namespace kiln::schedule::gcu
