#include "compiler/schedule/gcu/cost.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/schedule/gcu/box.h"
#include "compiler/schedule/gcu/cost_facts.h"

namespace kiln::schedule::gcu {
namespace {

constexpr int64_t kVectorBytes = 512, kLineBytes = 64;
constexpr int64_t kMostElements = int64_t{1} << 26;       // of a box; far from overflow
constexpr double kLatency = 500e-9, kL2Latency = 100e-9;  // of a copy
constexpr double kStepCycles = 60;                        // for the numbers of the next tile
constexpr double kStageOverhead = 500e-9;                 // a barrier, and what stands before tiles
constexpr int64_t kScalarCycles = 25;  // what describing a vector instruction's tiles takes

}  // namespace

class CostModel::Estimate {
 public:
  Estimate(const Facts& facts, const Tiling& tiling, const Machine& machine)
      : facts_(facts), extents_(facts.extents), tiling_(tiling), machine_(machine) {}

  double Least() const {
    if (!tiling_.matrix) return 0;
    int64_t items = 1;
    for (int l : tiling_.order) items *= Count(l);
    const int64_t blocks = tiling_.blocked < 0 ? 1 : Count(tiling_.blocked);
    return static_cast<double>(CeilDiv(items, machine_.cores) * blocks * MatrixCycles()) /
           static_cast<double>(machine_.clock_hz);
  }

  Cost Run() {
    for (const Facts::Reach& reach : facts_.reaches) {
      boxes_.push_back(reach.is_load && reach.same_as < 0
                           ? BoxOf(facts_.form, extents_, tiling_, *reach.access, reach.dims)
                           : Box());
    }
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
    const double copies = std::max(each_step_, each_engine_) +
                          latency * std::max(0.0, 1 - each_step_ / (4 * latency));
    // Behind the last step there are but its stores.
    double seconds = (steps - 1) * std::max(step, copies) + step + stores_;
    for (const auto& [times, burst] : bursts_) {
      if (times < 1.5) continue;  // once, at the beginning
      seconds += (times - 1) * std::max(0.0, copies + burst - std::max(step, copies));
    }
    // The last core's first step waits for the first loads of all; those of what is given to the
    // launch run while the kernel before ends, whose steps are as long as these.
    const double first =
        latency + first_ + std::max(0.0, first_given_ - (facts_.is_lone ? 0.0 : 0.4 * step));
    // Neither channel can have less than all of its bytes before the last tile is computed.
    const double last = latency + step;
    cost.seconds = std::max({seconds + first, cost.l3 + last, cost.l2 + last}) + kStageOverhead;
    return cost;
  }

 private:
  int64_t Count(int loop) const {
    return CeilDiv(std::max<int64_t>(extents_[loop], 1), tiling_.tile[loop]);
  }

  static int64_t Lines(const Runs& runs, int64_t size) {
    return runs.count() * CeilDiv(runs.length() * size, kLineBytes) * kLineBytes;
  }

  static int64_t Elements(const Box& box) {
    int64_t elements = 1;
    for (const int64_t extent : box.extents) {
      elements = std::min(elements * extent, kMostElements);
    }
    return elements;
  }

  // Of one step: whether instructions run over the loop, and how often they run for it.
  bool IsLane(size_t phase, int loop) const {
    return !tiling_.serial[loop] && tiling_.tile[loop] > 1 &&
           (facts_.outer[loop] || absl::c_linear_search(facts_.phases[phase].loops, loop));
  }
  int64_t Times(size_t phase) const {
    int64_t times = 1;
    for (int l : facts_.phases[phase].loops) {
      if (!facts_.outer[l]) times *= tiling_.serial[l] ? extents_[l] : Count(l);
    }
    return times;
  }

  int64_t StoreBytes(const Facts::Reach& reach) const {
    const auto phase = static_cast<size_t>(reach.access->phase);
    Runs runs;
    for (auto l = tiling_.lanes.rbegin(); l != tiling_.lanes.rend(); ++l) {
      if (IsLane(phase, *l)) runs.Add(tiling_.tile[*l], reach.linear[*l]);
    }
    return Times(phase) * Lines(runs, reach.size);
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
    // Cores take runs of items: each that begins within a box's items loads the box again.
    const int64_t of_box = items / loads;
    if (of_box == items) {
      loads = std::min<int64_t>(items, machine_.cores);
    } else if (of_box > 1) {
      for (const int64_t begin : begins_) loads += begin % of_box != 0 ? 1 : 0;
    }
    return blocked ? loads * blocks : loads;
  }

  // What of a box is there to be copied, in one of its dimensions: the share of tiles that have
  // anything of it, and how many indices these have on the average.
  struct Inside {
    double share = 1;
    int64_t extent = 1;
  };
  Inside InsideOf(const Facts::Reach& reach, const Box& box, size_t dim) const {
    const int64_t extent = box.extents[dim];
    if (!reach.clips[dim]) return {.extent = extent};
    const std::vector<int64_t>& coefficients = reach.access->indices[dim].coefficients;
    // Boxes begin at `low`, `low + step`, ...
    int64_t low = reach.clips[dim]->rest, step = 1, count = 1, moved = 0;
    for (size_t l = 0; l < extents_.size(); ++l) {
      const int64_t c = coefficients[l];
      if (c == 0) continue;
      const bool moves = !tiling_.serial[l] && tiling_.tile[l] < extents_[l];
      if (moves && (c < 0 || count > 1)) return {.extent = extent};
      if (moves) {
        step = c * tiling_.tile[l];
        count = Count(static_cast<int>(l));
        moved = c * (extents_[l] - tiling_.tile[l]);
      } else if (c < 0) {
        low += c * (extents_[l] - 1);
      }
    }
    // The last one may be shorter.
    const int64_t begin = reach.clips[dim]->begin;
    const int64_t end = std::min(reach.clips[dim]->end, low + moved + extent);
    // How many boxes begin before `bound`, and by how much, all together.
    const auto before = [&](int64_t bound) {
      return bound <= low ? 0 : std::min(count, CeilDiv(bound - low, step));
    };
    const auto ahead = [&](int64_t bound) {
      const int64_t n = before(bound);
      return n * (bound - low) - step * (n * (n - 1) / 2);
    };
    const int64_t some = before(end) - before(begin - extent + 1);
    const int64_t indices = ahead(end) - ahead(end - extent) - ahead(begin) + ahead(begin - extent);
    if (some <= 0 || indices <= 0) return {.share = 0};
    return {.share = static_cast<double>(some) / static_cast<double>(count),
            .extent = CeilDiv(indices, some)};
  }

  void AddLoads(const Facts::Reach& reach, const Box& box, int64_t items, int64_t blocks,
                Cost& cost) {
    Runs memory;
    double share = 1;
    for (auto d = reach.dims.rbegin(); d != reach.dims.rend(); ++d) {
      const Inside inside = InsideOf(reach, box, static_cast<size_t>(*d));
      memory.Add(inside.extent, reach.strides[*d] * box.steps[*d]);
      share *= inside.share;
    }
    const int64_t own = Elements(box) * reach.size;
    const auto lines = static_cast<int64_t>(share * static_cast<double>(Lines(memory, reach.size)));
    const int64_t loads = Loads(reach, items, blocks);
    (reach.in_l2 ? cost.l2_bytes : cost.l3_bytes) += lines * loads;
    cost.l1_bytes += own > 2048 ? 2 * own + 128 : own + 64;
    const int64_t cores = std::min<int64_t>(items, machine_.cores);
    // Engines count elements alone, which come line by line where the channel has them so.
    const double engine =
        std::max(static_cast<double>(own) / machine_.EngineRate(), Seconds(reach, lines));
    const double burst = Seconds(reach, lines * cores);
    if (loads * 10 >= items * blocks * 9 && items * blocks > cores) {
      const int64_t steps = CeilDiv(items, machine_.cores) * blocks;
      // All but those before the first step; not every core has a last one.
      each_step_ += Seconds(reach, lines * (loads - cores)) / static_cast<double>(steps - 1);
      each_engine_ += engine;
    } else {
      bursts_.emplace_back(static_cast<double>(loads) / static_cast<double>(cores),
                           std::max(burst, engine));
    }
    (reach.given ? first_given_ : first_) += std::max(burst, engine);
  }

  void AddMemory(int64_t items, int64_t blocks, Cost& cost) {
    const int64_t cores = std::min<int64_t>(items, machine_.cores);
    for (int64_t core = 1; core < cores; ++core) begins_.push_back(core * items / cores);
    for (size_t i = 0; i < facts_.reaches.size(); ++i) {
      const Facts::Reach& reach = facts_.reaches[i];
      if (reach.is_load) {
        if (reach.same_as < 0) AddLoads(reach, boxes_[i], items, blocks, cost);
        continue;
      }
      const int64_t bytes = StoreBytes(reach) * items;
      const double of_step =
          Seconds(reach, bytes) / static_cast<double>(CeilDiv(items, machine_.cores) * blocks);
      each_step_ += of_step;
      stores_ += of_step;
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
    for (int l : facts_.phases[phase].loops) {
      if (!tiling_.serial[l]) elements *= tiling_.tile[l];
    }
    return elements;
  }

  // Values that live at one time: a guess from the length of the body.
  int64_t ValueBytes() const {
    int64_t most = 0, stored = 0;
    for (size_t p = 0; p < facts_.phases.size(); ++p) {
      const bool matrix = p == 0 && tiling_.matrix;
      const int64_t elements = matrix ? MatrixElements() : TileElements(p);
      stored += TileElements(p) * facts_.phases[p].stored_bytes;
      const auto steps = static_cast<int64_t>(facts_.phases[p].steps.size());
      const int64_t values = matrix ? 1 : std::min<int64_t>(steps, 4);
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
    for (size_t p = 0; p < facts_.phases.size(); ++p) {
      if (p == 0 && tiling_.matrix) {
        cycles += MatrixCycles() * blocks;
        continue;
      }
      bool sums_lanes = false;
      for (int l : facts_.phases[p].loops) {
        sums_lanes = sums_lanes || (!facts_.outer[l] && IsLane(p, l));
      }
      const int64_t times = Times(p);
      int64_t once = 0;
      for (const Facts::Step& step : facts_.phases[p].steps) {
        if (step.is_factor && !sums_lanes) continue;
        int64_t vectors = step.is_reduce ? 0 : Vectors(p, {-1, step.loops, 4}, step.loops);
        const bool at_once = !sums_lanes && !step.factors.empty();
        for (const Facts::Operand& operand : at_once ? step.factors : step.operands) {
          vectors = std::max(vectors, Vectors(p, operand, step.loops));
        }
        once += step.count * kScalarCycles + step.cycles * vectors;
        // Parts of sums are added up.
        if (step.is_reduce && sums_lanes && times > 1) once += kScalarCycles + vectors;
      }
      cycles += times * once;
    }
    return cycles;
  }

  // That an operand takes where the result has these loops.
  int64_t Vectors(size_t phase, const Facts::Operand& operand, LoopSet loops) const {
    Runs runs;
    int64_t stride = 1;  // of values, which lie as lanes go
    for (auto l = tiling_.lanes.rbegin(); l != tiling_.lanes.rend(); ++l) {
      const LoopSet bit = LoopSet{1} << (*l & 63);
      if ((loops & bit) == 0 || !IsLane(phase, *l)) continue;
      if (operand.reach >= 0) {
        const Facts::Reach& reach = facts_.reaches[operand.reach];
        const Box& box = boxes_[reach.same_as < 0 ? operand.reach : reach.same_as];
        runs.Add(tiling_.tile[*l], box.StrideOf(*reach.access, *l));
      } else {
        const bool has = (operand.loops & bit) != 0;
        runs.Add(tiling_.tile[*l], has ? stride : 0);
        if (has) stride *= tiling_.tile[*l];
      }
    }
    return runs.count() * CeilDiv(runs.length() * operand.size, kVectorBytes);
  }

  int64_t MatrixCycles() const {
    const MatrixRoles& roles = *tiling_.matrix;
    int64_t rows = 1, columns = 1, serial = 1;
    for (int l : roles.rows) rows *= tiling_.tile[l];
    for (int l : roles.columns) columns *= tiling_.tile[l];
    for (int l : facts_.phases[0].loops) {
      if (!facts_.outer[l] && tiling_.serial[l]) serial *= extents_[l];
    }
    const int64_t lanes = machine_.Macs(roles.dtype) / 16;
    int64_t depth = std::min(tiling_.tile[roles.depth], extents_[roles.depth]);
    if (tiling_.merged >= 0) depth *= extents_[tiling_.merged];
    return serial * (16 + 60 + rows * CeilDiv(depth, lanes) * CeilDiv(columns, 16)) +
           CeilDiv(rows * columns * 4, kVectorBytes);
  }

  const Facts& facts_;
  const std::vector<int64_t>& extents_;
  const Tiling& tiling_;
  const Machine& machine_;
  absl::InlinedVector<Box, 6> boxes_;              // by reach
  absl::InlinedVector<int64_t, 16> begins_;        // the first item of each core but the first
  double each_step_ = 0;                           // copies of every step, all cores' together
  double stores_ = 0;                              // of these, stores
  double each_engine_ = 0;                         // of one core's DMA engine
  double first_ = 0, first_given_ = 0;             // loads before the first step
  std::vector<std::pair<double, double>> bursts_;  // of other loads: how often, and how long
};

CostModel::CostModel(const ir::Module& module, const Form& form, const InL2& in_l2,
                     const Machine& machine)
    : facts_(std::make_unique<const Facts>(module, form, in_l2)), machine_(machine) {}
CostModel::~CostModel() = default;

Cost CostModel::Of(const Tiling& tiling) const {
  return Estimate(*facts_, tiling, machine_).Run();
}

double CostModel::AtLeast(const Tiling& tiling) const {
  return Estimate(*facts_, tiling, machine_).Least();
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

Cost CostOf(const ir::Module& module, const Form& form, const Tiling& tiling, const InL2& in_l2,
            const Machine& machine) {
  return CostModel(module, form, in_l2, machine).Of(tiling);
}

}  // namespace kiln::schedule::gcu
