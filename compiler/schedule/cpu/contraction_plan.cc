#include "compiler/schedule/cpu/contraction_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/schedule/cpu/micro_tile.h"
#include "compiler/schedule/cpu/winograd_plan.h"

namespace kiln::schedule::cpu {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

std::vector<const Step*> Closure(const NestPhase& phase, ValueId value) {
  std::vector<const Step*> needed;
  std::vector<ValueId> wanted = {value};
  for (size_t i = phase.steps.size(); i-- > 0;) {
    const Inst& inst = *phase.steps[i].inst;
    if (inst.result < 0 || std::find(wanted.begin(), wanted.end(), inst.result) == wanted.end()) {
      continue;
    }
    needed.push_back(&phase.steps[i]);
    wanted.insert(wanted.end(), inst.operands.begin(), inst.operands.end());
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

const Step* PlainLoad(const std::vector<const Step*>& steps) {
  const bool plain = steps.size() == 1 && steps[0]->inst->op == ScalarOp::kLoad &&
                     steps[0]->inst->operands.empty();
  return plain ? steps[0] : nullptr;
}

IntExpr FlatStride(IntContext& ints, IntExpr index, const std::vector<IntExpr>& vars) {
  IntExpr stride, expected;
  for (size_t i = vars.size(); i-- > 0;) {
    IntExpr coefficient = ints.CoefficientOf(index, vars[i]);
    if (!coefficient || ContainsKind(coefficient, ir::IntKind::kVar)) return IntExpr();
    if (!stride) {
      stride = coefficient;
    } else if (coefficient != expected) {
      return IntExpr();
    }
    expected = ints.Mul(coefficient, Extent(ints, vars[i]));
  }
  return stride ? stride : ints.Const(0);
}

double MostOf(double all, const std::optional<TilePart>& part) {
  return part && part->step > 0 ? std::min(all, static_cast<double>(part->step)) : all;
}

namespace {

double HintOf(IntContext& ints, IntExpr e) {
  return std::max<double>(1, static_cast<double>(ints.EvaluateAtHints(e)));
}

// Whether most accesses of `steps` are contiguous along `var`, or skip no more than every other
// element where `most_stride` is 2.
bool ContiguousAlong(IntContext& ints, const std::vector<const Step*>& steps, IntExpr var,
                     int most_stride = 1) {
  int contiguous = 0, other = 0;
  for (const Step* step : steps) {
    if (step->inst->op != ScalarOp::kLoad || !ContainsVar(step->index, var)) continue;
    IntExpr stride = ints.CoefficientOf(step->index, var);
    const bool is_near = stride && (stride.is_const(1) || stride.is_const(most_stride));
    ++(is_near ? contiguous : other);
  }
  return contiguous > other;
}

// The store of the result, to know along which loops it is contiguous; null if there is none.
const Step* ResultStore(const Nest& nest) {
  for (size_t i = 1; i < nest.phases.size(); ++i) {
    for (const Step& step : nest.phases[i].steps) {
      if (step.inst->op == ScalarOp::kStore) return &step;
    }
  }
  return nullptr;
}

bool StoreIsContiguous(IntContext& ints, const Step* store, const std::vector<IntExpr>& vars) {
  if (store == nullptr || vars.empty()) return false;
  IntExpr stride = ints.CoefficientOf(store->index, vars.back());
  return stride && stride.is_const(1);
}

// Of several loops that could be lanes, keeps the run of adjacent ones that ends in the one that
// the result is contiguous along; the others become batches.
void SplitBatches(IntContext& ints, const Step* store, std::vector<IntExpr>& vars,
                  std::vector<IntExpr>& batch) {
  if (store == nullptr || vars.size() < 2) return;
  size_t first = vars.size() - 1;
  while (first > 0) {
    IntExpr inner = ints.CoefficientOf(store->index, vars[first]);
    IntExpr outer = ints.CoefficientOf(store->index, vars[first - 1]);
    if (!inner || !outer || outer != ints.Mul(inner, Extent(ints, vars[first]))) break;
    --first;
  }
  batch.insert(batch.end(), vars.begin(), vars.begin() + static_cast<ptrdiff_t>(first));
  vars.erase(vars.begin(), vars.begin() + static_cast<ptrdiff_t>(first));
}

constexpr int64_t kMostDepth = 1 << 16;  // of rows that are turned
constexpr int kTurnedRows = 4;           // the transpose tile takes multiples of so many

// Rows that are read in place are split as lanes are. Rows that are packed keep together: a batch
// more would pack the panels once more.
void SplitRows(IntContext& ints, const Step* store, const Step* load, ContractionPlan& plan) {
  if (load == nullptr) return;
  std::vector<IntExpr> rows = plan.rows, batch = plan.batch;
  SplitBatches(ints, store, rows, batch);
  plan.row_stride = FlatStride(ints, load->index, rows);
  plan.k_stride = FlatStride(ints, load->index, plan.k);
  if (!plan.row_stride || !plan.k_stride) return;
  if (plan.pairs() && !(plan.k_stride.is_const(1) && plan.depth == plan.num_k)) {
    plan.row_stride = FlatStride(ints, load->index, plan.rows);
    const bool beside = plan.row_stride && plan.row_stride.is_const(1);
    const bool fits = plan.depth.is_const() && plan.depth.value() <= kMostDepth;
    if (beside && fits) plan.turned_load = load;
    return;
  }
  plan.row_load = load;
  plan.rows = std::move(rows);
  plan.batch = std::move(batch);
}

// How many vectors wide the panels are that `load` reads, without planes or with them; 0 where it
// reads no whole buffer of them.
int PackedVectors(ir::Module& module, const Step& load, bool planes, ContractionPlan plan) {
  IntContext& ints = *module.ints;
  const ir::Buffer& buffer = module.buffers[load.inst->buffer];
  if (plan.depth != plan.num_k || buffer.dtype != plan.panel_type) return 0;
  if (planes && buffer.kind != ir::BufferKind::kPrepared) return 0;
  plan.has_planes = planes;
  for (int vectors = planes ? kWinogradVectors : 1;
       vectors <= (planes ? kWinogradVectors : kMostVectors); ++vectors) {
    plan.tile_vectors = vectors;
    ir::Buffer panels;
    panels.sizes = PanelSizes(ints, plan);
    panels.dtype = plan.panel_type;
    panels.strides = module.ContiguousStrides(panels.sizes);
    if (SizeBytes(ints, panels) != SizeBytes(ints, buffer)) continue;
    const IntExpr index =
        LinearIndex(ints, panels,
                    PanelIndices(ints, plan, PointNumber(ints, plan.batch),
                                 PointNumber(ints, plan.lanes), PointNumber(ints, plan.k)));
    if (index == load.index) return vectors;
  }
  return 0;
}

// One of the two ways to choose the panel operand, and what it costs besides multiply-adds, in
// elements moved.
struct Choice {
  ContractionPlan plan;
  double cost = 0;
  bool legal = true;
};

// The part of `loops` taken as one where the first has one and the others run whole; false where
// others have parts.
bool PartOfAll(IntContext& ints, const Nest& nest, const std::vector<IntExpr>& loops,
               std::optional<TilePart>& part) {
  for (size_t i = 0; i < loops.size(); ++i) {
    const TilePart* of_var = nest.PartOf(loops[i]);
    if (of_var == nullptr) continue;
    const IntExpr rest = NumPoints(ints, {loops.begin() + 1, loops.end()});
    if (i > 0 || !rest.is_const() || (loops.size() > 1 && of_var->step == 0)) return false;
    part = *of_var;
    part->begin = ints.Mul(of_var->begin, rest);
    part->end = ints.Mul(of_var->end, rest);
    part->step = of_var->step * rest.value();
  }
  return true;
}

// Sets the parts that a tile has of the plan's loops; false where they are none of loops taken as
// one.
bool SetParts(IntContext& ints, const Nest& nest, ContractionPlan& plan) {
  const bool no_batch = std::all_of(plan.batch.begin(), plan.batch.end(),
                                    [&](IntExpr var) { return nest.PartOf(var) == nullptr; });
  return no_batch && PartOfAll(ints, nest, plan.rows, plan.row_part) &&
         PartOfAll(ints, nest, plan.lanes, plan.lane_part) &&
         (plan.k.size() < 2 ||
          !std::any_of(plan.k.begin(), plan.k.end(),
                       [&](IntExpr k) { return nest.PartOf(k) != nullptr; })) &&
         PartOfAll(ints, nest, plan.k, plan.k_part);
}

// An operand of the product, as it is kept until it is multiplied.
struct Operand {
  ValueId value = ir::kNoValue;
  DType type = DType::kF32;
};

Choice MakeChoice(ir::Module& module, const Nest& nest, const Operand& row, const Operand& panel,
                  VectorIsa isa, DType type, const DeviceInfo& device, Preparing prepare) {
  const int64_t l2_bytes = device.l2_bytes;
  IntContext& ints = *module.ints;
  Choice choice;
  ContractionPlan& plan = choice.plan;
  plan.type = type;
  plan.operand_type = row.type;
  plan.panel_type = panel.type;
  plan.row_value = row.value;
  plan.panel_value = panel.value;
  plan.matrix_tiles = plan.pairs() && HasMatrixTiles(device);
  plan.vector_lanes = VectorBytes(isa) / static_cast<int>(DTypeSize(type));
  plan.k = nest.phases[0].inner;
  plan.num_k = NumPoints(ints, plan.k);
  plan.depth = plan.pairs() ? ints.Mul(ints.CeilDiv(plan.num_k, ints.Const(2)), 2) : plan.num_k;
  const std::vector<const Step*> row_steps = Closure(nest.phases[0], row.value);
  const std::vector<const Step*> panel_steps = Closure(nest.phases[0], panel.value);
  for (IntExpr var : nest.outer) {
    const bool in_rows = AnyUses(row_steps, {var}), in_panels = AnyUses(panel_steps, {var});
    (in_rows == in_panels ? plan.batch : in_rows ? plan.rows : plan.lanes).push_back(var);
  }
  const Step* store = ResultStore(nest);
  SplitBatches(ints, store, plan.lanes, plan.batch);
  SplitRows(ints, store, PlainLoad(row_steps), plan);
  plan.num_batches = NumPoints(ints, plan.batch);
  plan.num_rows = NumPoints(ints, plan.rows);
  plan.num_lanes = NumPoints(ints, plan.lanes);

  const Step* load = PlainLoad(panel_steps);
  if (load != nullptr) {
    plan.lane_stride = FlatStride(ints, load->index, plan.lanes);
    plan.panel_k_stride = FlatStride(ints, load->index, plan.k);
    const bool regular = plan.lane_stride && plan.panel_k_stride;
    const bool whole = !plan.pairs() || (plan.depth == plan.num_k && plan.lane_stride &&
                                         ints.Mod(plan.lane_stride, 2).is_const(0));
    if (regular && whole && plan.panel_k_stride.is_const(1)) plan.panel_load = load;
    if (regular && plan.pairs() && plan.lane_stride.is_const(1)) plan.panel_rows_load = load;
  }
  choice.legal = SetParts(ints, nest, plan);
  const double rows = MostOf(HintOf(ints, plan.num_rows), plan.row_part);
  const double lanes = MostOf(HintOf(ints, plan.num_lanes), plan.lane_part);
  const double k = MostOf(HintOf(ints, plan.num_k), plan.k_part);
  const double batches = HintOf(ints, plan.num_batches);
  const bool may_be_packed = load != nullptr && !plan.lane_part && !plan.k_part;
  int packed_vectors = may_be_packed ? PackedVectors(module, *load, /*planes=*/false, plan) : 0;
  if (may_be_packed && packed_vectors == 0) {
    packed_vectors = PackedVectors(module, *load, /*planes=*/true, plan);
    plan.has_planes = packed_vectors != 0;
  }
  ChooseMicroTile(rows, lanes, isa, packed_vectors, plan);
  if (packed_vectors == plan.tile_vectors) plan.packed_load = load;
  if (device.rank > 0) TakeMicroTileOfRank(device.rank, isa, plan);
  const auto is_fixed = [&](ir::BufferId b) { return ir::IsFixed(module.buffers[b]); };
  plan.may_prepare = prepare != Preparing::kNothing && plan.packed_load == nullptr &&
                     plan.depth == plan.num_k &&
                     std::all_of(panel_steps.begin(), panel_steps.end(),
                                 [&](const Step* step) { return IsFixed(*step->inst, is_fixed); });
  plan.store_along_rows =
      !StoreIsContiguous(ints, store, plan.lanes) && StoreIsContiguous(ints, store, plan.rows);
  const bool gathers = !ContiguousAlong(ints, row_steps, plan.k.back());
  const double k_run = HintOf(ints, Extent(ints, plan.k.back()));
  const bool scattered = gathers || k_run < plan.vector_lanes;
  plan.rows_beside = scattered && plan.row_load == nullptr && !plan.pairs() && !plan.rows.empty() &&
                     ContiguousAlong(ints, row_steps, plan.rows.back(), /*most_stride=*/2);
  if (plan.store_along_rows) {
    // A multiple of the vectors' lanes, some 48 rows; of rows that are packed as many as leave the
    // second-level cache room.
    const int unit = plan.rows_beside ? kTurnedRows : plan.vector_lanes;
    plan.row_groups = std::lcm(plan.tile_rows, unit) / plan.tile_rows;
    while (plan.block_rows() < (plan.rows_beside ? 24 : 40)) plan.row_groups *= 2;
  } else if (plan.rows_beside) {
    // Whole vectors of rows are packed at a time, while the first-level cache holds them.
    const double bytes = k * static_cast<double>(DTypeSize(row.type));
    while (plan.row_groups < 4 &&
           4 * plan.block_rows() * bytes <= static_cast<double>(device.l1_bytes)) {
      plan.row_groups *= 2;
    }
  }
  const double panels = batches * std::ceil(lanes / plan.panel_width());
  plan.split_rows = panels < 16 && rows > 2 * plan.block_rows();
  // Rows that the second-level cache does not hold would come once for each panel.
  const double row_bytes = rows * k * static_cast<double>(DTypeSize(row.type));
  plan.split_rows |= plan.packed_load != nullptr && 2 * row_bytes > static_cast<double>(l2_bytes) &&
                     rows > 8 * plan.block_rows();
  plan.split_rows |= plan.rows_beside && (plan.packed_load != nullptr || plan.may_prepare);
  plan.split_rows &= nest.tile == nullptr;

  const bool panel_contiguous =
      !plan.lanes.empty() && ContiguousAlong(ints, panel_steps, plan.lanes.back());
  if (plan.packed_load == nullptr && !plan.may_prepare) {
    choice.cost = batches * lanes * k * (panel_contiguous ? 0.3 : 0.8);
  }
  if (plan.row_load == nullptr) {
    // Packed anew for each group of panels that a task holds; vectors run along the last k loop, or
    // along the last loop of the rows.
    const double run = plan.rows_beside ? HintOf(ints, Extent(ints, plan.rows.back())) : k_run;
    const double lanes_used = run / (std::ceil(run / plan.vector_lanes) * plan.vector_lanes);
    const double each = plan.rows_beside                           ? 0.3 / lanes_used
                        : scattered && plan.turned_load == nullptr ? 3
                                                                   : 0.6;
    const double held =
        std::max(1.0, l2_bytes / 2.0 / DTypeSize(panel.type) / plan.panel_width() / k);
    const double groups = plan.packed_load != nullptr || plan.may_prepare
                              ? kGroupsOfPrepared
                              : std::ceil(panels / batches / held);
    const double times = plan.split_rows ? groups : panels / batches;
    choice.cost += batches * rows * k * each * times;
  }
  choice.cost += batches * rows * lanes * (plan.store_along_rows ? 1.0 : 0.25);
  choice.cost += batches * StepsOf(rows, lanes, plan) * k;
  return choice;
}

// The value of f16 or bf16 that `value`, of phase 0, is the same number as; else `value` itself.
Operand WidenedFrom(const Nest& nest, const Operand& value) {
  const auto find = [&](ValueId id) {
    const std::vector<Step>& steps = nest.phases[0].steps;
    const auto step = std::find_if(steps.begin(), steps.end(),
                                   [&](const Step& s) { return s.inst->result == id; });
    return step == steps.end() ? nullptr : step->inst;
  };
  const Inst* cast = find(value.value);
  if (value.type != DType::kF32 || cast == nullptr || cast->op != ScalarOp::kCast) return value;
  const Inst* source = find(cast->operands[0]);
  const bool is_narrow =
      source != nullptr && (source->dtype == DType::kF16 || source->dtype == DType::kBF16);
  return is_narrow ? Operand{source->result, source->dtype} : value;
}

// Whether a vector of such numbers becomes one of f32 in an instruction or two.
bool IsWidenedInVectors(const DeviceInfo& device, VectorIsa isa, DType type) {
  if (isa == VectorIsa::kBaseline) return false;
  return type == DType::kBF16 || (type == DType::kF16 && device.HasFeature("f16c"));
}

}  // namespace

IntExpr ContractionPlan::panel_rows(IntContext& ints) const {
  if (!has_planes) return depth;
  const IntExpr channels = ints.FloorDiv(depth, ints.Const(kWinogradTaps));
  return ints.Add(depth, ints.Mul(channels, kWinogradPlanes));
}

bool HasMatrixTiles(const DeviceInfo& device) {
  return device.HasFeature("amx-bf16");
}

std::vector<IntExpr> PanelSizes(IntContext& ints, const ContractionPlan& plan) {
  const IntExpr width = ints.Const(plan.panel_width());
  std::vector<IntExpr> sizes = {plan.num_batches, ints.CeilDiv(plan.num_lanes, width),
                                plan.panel_rows(ints), width};
  if (plan.pairs()) {
    sizes[2] = ints.FloorDiv(plan.depth, 2);
    sizes.push_back(ints.Const(2));
  }
  return sizes;
}

std::vector<IntExpr> PanelIndices(IntContext& ints, const ContractionPlan& plan, IntExpr batch,
                                  IntExpr lane, IntExpr k) {
  const int width = plan.panel_width();
  std::vector<IntExpr> indices = {batch, ints.FloorDiv(lane, width), k, ints.Mod(lane, width)};
  if (plan.pairs()) {
    indices[2] = ints.FloorDiv(k, 2);
    indices.push_back(ints.Mod(k, 2));
  }
  return indices;
}

std::optional<ContractionPlan> PlanContraction(ir::Module& module, const Nest& nest,
                                               const DeviceInfo& device, Preparing prepare) {
  IntContext& ints = *module.ints;
  const VectorIsa isa = IsaOf(device);
  const NestPhase& phase = nest.phases[0];
  const Inst* product = nullptr;
  const Inst& sum = *phase.steps.back().inst;
  for (const Step& step : phase.steps) {
    if (step.inst->result >= 0 && step.inst->result == sum.operands[0]) product = step.inst;
  }
  if (product == nullptr || product->op != ScalarOp::kMul || phase.inner.empty()) {
    return std::nullopt;
  }
  if (product->dtype != DType::kF32 && product->dtype != DType::kF64) return std::nullopt;

  std::array<Operand, 2> rows, panels;
  for (int i = 0; i < 2; ++i) {
    rows[i] = {product->operands[i], product->dtype};
    panels[i] = WidenedFrom(nest, rows[i]);
  }
  const bool has_pairs = isa == VectorIsa::kAvx512 && device.HasFeature("avx512bf16");
  if (has_pairs && panels[0].type == DType::kBF16 && panels[1].type == DType::kBF16) {
    rows = panels;
  } else {
    for (int i = 0; i < 2; ++i) {
      if (!IsWidenedInVectors(device, isa, panels[i].type)) panels[i] = rows[i];
    }
  }
  std::optional<Choice> best;
  std::optional<double> other;  // the cost of the choice that lost
  for (int panel = 0; panel < 2; ++panel) {
    Choice choice = MakeChoice(module, nest, rows[1 - panel], panels[panel], isa, product->dtype,
                               device, prepare);
    const double kFewest = 3;
    if (!choice.legal || HintOf(ints, choice.plan.num_rows) < kFewest ||
        HintOf(ints, choice.plan.num_lanes) < kFewest) {
      continue;
    }
    if (prepare == Preparing::kPlanes && choice.plan.may_prepare &&
        PlanWinograd(module, nest, choice.plan, device)) {
      choice.plan.has_planes = true;
      choice.plan.tile_vectors = kWinogradVectors;
      return choice.plan;
    }
    if (best) other = std::max(best->cost, choice.cost);
    const bool packed = choice.plan.packed_load != nullptr;
    if (packed || !best || choice.cost < best->cost) best = std::move(choice);
    if (packed) break;
  }
  if (!best) return std::nullopt;
  ContractionPlan& plan = best->plan;
  plan.sum = sum.result;
  const char* packed = plan.packed_load != nullptr ? "read in place"
                       : plan.split_rows           ? "packed once for all tasks"
                                                   : "packed by the task that uses them";
  plan.reason = absl::StrFormat(
      "tiles of %d x %d sums in registers%s; panels of operand %d, %s: %.3g vectors' time",
      plan.tile_rows, plan.panel_width(),
      plan.matrix_tiles                      ? " from tiles of bf16"
      : plan.pairs()                         ? " from pairs of bf16"
      : plan.panel_type != plan.operand_type ? " from narrow panels"
                                             : "",
      plan.panel_value == panels[1].value ? 1 : 0, packed, best->cost);
  if (other) absl::StrAppendFormat(&plan.reason, ", %.3g of the other", *other);
  if (plan.rows_beside) {
    absl::StrAppendFormat(&plan.reason, "; %d rows packed at a time", plan.block_rows());
  }
  return best->plan;
}

}  // namespace kiln::schedule::cpu
