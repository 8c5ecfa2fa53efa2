#include "compiler/schedule/gcu/cost.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"

namespace kiln::schedule::gcu {
namespace {

using ir::Inst;
using ir::ScalarOp;

constexpr int64_t kVectorBytes = 512, kLineBytes = 64;
constexpr int64_t kMostElements = int64_t{1} << 26;       // of a box; far from overflow
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

}  // namespace

// What estimates for all tilings have in common.
struct CostModel::Facts {
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

  // Outer loops with the same coefficients, inner loops with those of others that are as long.
  static bool IsSame(const Form& form, const Access& a, const Access& b) {
    if (a.inst->op != b.inst->op || a.inst->buffer != b.inst->buffer) return false;
    const auto coefficients = [&](const Affine& index, bool outer) {
      std::vector<std::pair<const ir::IntNode*, int64_t>> out;  // extent, coefficient
      for (size_t l = 0; l < form.loops.size(); ++l) {
        const bool is_outer = form.loops[l].phase < 0;
        if (is_outer != outer || (!outer && index.coefficients[l] == 0)) continue;
        out.emplace_back(form.loops[l].extent.node(), index.coefficients[l]);
      }
      if (!outer) absl::c_sort(out);
      return out;
    };
    for (size_t d = 0; d < a.indices.size(); ++d) {
      const Affine &x = a.indices[d], &y = b.indices[d];
      if (x.rest != y.rest || coefficients(x, true) != coefficients(y, true) ||
          coefficients(x, false) != coefficients(y, false)) {
        return false;
      }
    }
    return true;
  }

  std::vector<int64_t> extents;         // by loop
  std::vector<bool> outer;              // by loop
  std::vector<std::vector<int>> loops;  // by phase
  std::vector<Work> work;               // by phase
  std::vector<Reach> reaches;
};

class CostModel::Estimate {
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
      elements = std::min(elements * extent, kMostElements);
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

CostModel::CostModel(const ir::Module& module, const Form& form, const InL2& in_l2,
                     const Machine& machine)
    : facts_(std::make_unique<const Facts>(module, form, in_l2)), machine_(machine) {}
CostModel::~CostModel() = default;

Cost CostModel::Of(const Tiling& tiling) const {
  return Estimate(*facts_, tiling, machine_).Run();
}

const std::vector<int64_t>& CostModel::extents() const {
  return facts_->extents;
}

int64_t TypicalOf(const ir::IntContext& ints, ir::IntExpr expr) {
  if (expr.is_const()) return expr.value();
  if (ir::ContainsKind(expr, ir::IntKind::kVar)) {
    const ir::IntRange range = expr.range();
    return range.max == ir::IntRange::kMaxInt ? 1 : range.max;
  }
  return ints.EvaluateAtHints(expr);
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
  return CostModel(module, form, in_l2, machine).Of(tiling);
}

}  // namespace kiln::schedule::gcu
