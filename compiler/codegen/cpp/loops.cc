#include "compiler/codegen/cpp/loops.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/cpp/accumulators.h"
#include "compiler/codegen/cpp/body.h"
#include "compiler/codegen/cpp/cache_hints.h"
#include "compiler/codegen/cpp/kept_values.h"
#include "compiler/codegen/cpp/kernel_text.h"
#include "compiler/codegen/cpp/nest.h"
#include "compiler/codegen/cpp/segments.h"
#include "compiler/codegen/cpp/shell.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen::cpp {
namespace {

using absl::StrCat;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

constexpr int kTileRows = 16;  // of a tile of a transposing kernel: a cache line of floats

class LoopsEmitter {
 public:
  LoopsEmitter(ir::Module& module, const ir::Kernel& kernel, Nest nest, VectorIsa isa,
               const DeviceInfo& device)
      : module_(module),
        ints_(*module.ints),
        nest_(std::move(nest)),
        plan_(PlanVectors(ints_, nest_, isa)),
        body_(module, kernel, names_, out_),
        value_level_(kernel.num_values, 0),
        accumulators_(body_, plan_.outer),
        prefetches_(PlanPrefetches(ints_, module, nest_, plan_, device)) {
    absl::flat_hash_set<ir::BufferId> streamed = StreamedBuffers(ints_, module, nest_, device);
    streams_ = !streamed.empty();
    body_.SetStreamed(std::move(streamed));
    if (!plan_.outer) KeepValues(FindKeptValues(ints_, nest_, kernel.num_values, device.l1_bytes));
  }

  EmittedKernel Emit();

 private:
  // Loops of a phase below a row, outermost first; the lanes' loop is among them.
  std::vector<IntExpr> PhaseLoops(size_t phase) const;
  int LevelOf(const Step& step, const std::vector<IntExpr>& loops) const;
  void NameLoops();
  void EmitRows();
  void EmitTiledRows();
  void EmitTurnedLoads();
  void EmitRowBody();
  void EmitRowBodyVectorOuter(const std::string& begin, const std::string& end,
                              bool is_whole = true);
  void EmitSegments(const Segments& segments);
  void EmitPhase(size_t number);
  void EmitLevel(const NestPhase& phase, const std::vector<IntExpr>& loops,
                 const std::vector<int>& levels, int level);
  void EmitReduceOfOne(const Step& step);
  void EmitBlockedLoop(const NestPhase& phase, const std::vector<IntExpr>& loops,
                       const std::vector<int>& levels, int level);
  void EmitLoop(const NestPhase& phase, const std::vector<IntExpr>& loops,
                const std::vector<int>& levels, int level, const std::string& begin,
                const std::string& end);
  void CloseAccumulators(const NestPhase& phase);
  void OpenVectorLoop(const std::string& name, IntExpr var);
  // `is_whole`: false where the lanes from `begin` to `end` are no blocks of all lanes.
  void CloseVectorLoop(const std::string& name, const Lanes& lanes, const std::string& begin,
                       const std::string& end, bool is_whole = true);
  void KeepValues(const std::vector<KeptValue>& values);
  bool LoadKept(const Step& step);
  void StoreKept(const Step& step);
  void EmitPrefetch(const Step& step);
  std::string CostText();

  ir::Module& module_;
  ir::IntContext& ints_;
  Nest nest_;
  VectorPlan plan_;
  Names names_;
  Writer out_;
  Body body_;
  std::vector<int> value_level_;
  std::vector<IntExpr> rows_;
  Accumulators accumulators_;
  absl::flat_hash_map<const ir::Inst*, std::string> turned_;  // loads that EmitTurnedLoads made
  struct KeptRow {
    std::string name;
    bool stored;  // by this instruction; else loaded in its place
    int64_t extent;
  };
  absl::flat_hash_map<const ir::Inst*, KeptRow> kept_;
  absl::flat_hash_map<const ir::Inst*, IntExpr> prefetches_;
  bool streams_ = false;  // some stores go past the caches
};

std::vector<IntExpr> LoopsEmitter::PhaseLoops(size_t phase) const {
  std::vector<IntExpr> loops;
  if (plan_.outer) {
    loops.push_back(plan_.lanes.var);
    for (IntExpr var : nest_.phases[phase].inner) loops.push_back(var);
    return loops;
  }
  IntExpr lane_var = plan_.phase_lanes[phase].var;
  for (IntExpr var : nest_.phases[phase].inner) {
    if (var != lane_var) loops.push_back(var);
  }
  if (lane_var) loops.push_back(lane_var);
  return loops;
}

int LoopsEmitter::LevelOf(const Step& step, const std::vector<IntExpr>& loops) const {
  const ir::Inst& inst = *step.inst;
  const int deepest = static_cast<int>(loops.size());
  if (inst.op == ScalarOp::kStore || inst.op == ScalarOp::kReduce) return deepest;
  if (inst.op == ScalarOp::kLoad && names_.IsStored(inst.buffer)) return deepest;
  int level = 0;
  for (ValueId id : inst.operands) level = std::max(level, value_level_[id]);
  for (int i = 0; i < deepest; ++i) {
    if (step.index && ContainsVar(step.index, loops[i])) level = std::max(level, i + 1);
  }
  return level;
}

void LoopsEmitter::NameLoops() {
  for (size_t i = 0; i < nest_.outer.size(); ++i) names_.NameVar(nest_.outer[i], StrCat("d", i));
  for (const NestPhase& phase : nest_.phases) {
    for (size_t i = 0; i < phase.inner.size(); ++i) {
      names_.NameVar(phase.inner[i], StrCat("r", i));
    }
  }
  for (IntExpr var : nest_.outer) {
    if (!(plan_.outer && var == plan_.lanes.var) && var != plan_.row_var) rows_.push_back(var);
  }
  if (plan_.row_var) rows_.push_back(plan_.row_var);
  for (const NestPhase& phase : nest_.phases) {
    for (const Step& step : phase.steps) {
      if (step.inst->op == ScalarOp::kStore) names_.MarkStored(step.inst->buffer);
    }
  }
}

void LoopsEmitter::KeepValues(const std::vector<KeptValue>& values) {
  for (const KeptValue& value : values) {
    if (!plan_.phase_lanes[value.first_phase].var || !plan_.phase_lanes[value.second_phase].var) {
      continue;
    }
    const auto [row, is_new] = kept_.try_emplace(value.first);
    if (is_new) {
      row->second = {body_.NewName("kept"), true, value.extent};
      out_.Line("alignas(64) ", CppType(value.first->dtype), " ", row->second.name, "[",
                value.extent, "];");
    }
    const std::string name = row->second.name;
    kept_[value.second] = {name, false, value.extent};
  }
}

// Replaces a step by a load of what an earlier phase kept. What only it needed is left to Clang.
bool LoopsEmitter::LoadKept(const Step& step) {
  const auto row = kept_.find(step.inst);
  if (row == kept_.end() || row->second.stored) return false;
  const std::string name = body_.NewName("v");
  out_.Line("const Vec<", CppType(step.inst->dtype), ", ", body_.width(), "> ", name, " = KLoad<",
            body_.width(), ", kTail>(", row->second.name, " + ", names_.Leaf(body_.lane_var()),
            ", n);");
  body_.Define(step.inst->result, step.inst->dtype, true, name);
  return true;
}

void LoopsEmitter::StoreKept(const Step& step) {
  const auto row = kept_.find(step.inst);
  if (row == kept_.end()) return;
  out_.Line("KStore<kTail>(", row->second.name, " + ", names_.Leaf(body_.lane_var()), ", n, ",
            body_.Use(step.inst->result, true), ");");
}

void LoopsEmitter::EmitPrefetch(const Step& step) {
  const auto ahead = prefetches_.find(step.inst);
  if (ahead == prefetches_.end()) return;
  out_.Line("KPrefetch<", body_.width(), ">(", names_.Buffer(step.inst->buffer), " + ",
            names_.Expr(ahead->second), ");");
}

// A reduction whose loops all have one iteration.
void LoopsEmitter::EmitReduceOfOne(const Step& step) {
  const ir::Inst& inst = *step.inst;
  const ValueId operand = inst.operands[0];
  const bool arg =
      inst.reduce_kind == ir::ReduceKind::kArgMax || inst.reduce_kind == ir::ReduceKind::kArgMin;
  value_level_[inst.result] = value_level_[operand];
  if (arg) {
    body_.Define(inst.result, inst.dtype, false, "KConst<long, 1>(0)");
  } else {
    const bool varying = body_.IsVarying(operand);
    body_.Define(inst.result, inst.dtype, varying, body_.Use(operand, varying));
  }
}

void LoopsEmitter::CloseAccumulators(const NestPhase& phase) {
  accumulators_.Close();
  for (const Step& step : phase.steps) {
    if (step.inst->op == ScalarOp::kReduce) value_level_[step.inst->result] = plan_.outer ? 1 : 0;
  }
}

void LoopsEmitter::OpenVectorLoop(const std::string& name, IntExpr var) {
  out_.Line("auto ", name, " = [&]<bool kTail>(long ", names_.Leaf(var), ", long n) KILN_INLINE {");
}

void LoopsEmitter::CloseVectorLoop(const std::string& name, const Lanes& lanes,
                                   const std::string& begin, const std::string& end,
                                   bool is_whole) {
  out_.Line("};");
  IntExpr extent = Extent(ints_, lanes.var);
  const bool exact = is_whole && ints_.Mod(extent, lanes.width).is_const(0);
  out_.Line("KVectorLoop<", lanes.width, ", ", exact ? "true" : "false", ">(", begin, ", ", end,
            ", ", name, ");");
}

void LoopsEmitter::EmitLevel(const NestPhase& phase, const std::vector<IntExpr>& loops,
                             const std::vector<int>& levels, int level) {
  for (size_t i = 0; i < phase.steps.size(); ++i) {
    if (levels[i] != level) continue;
    const Step& step = phase.steps[i];
    if (auto turned = turned_.find(step.inst); turned != turned_.end()) {
      body_.Define(step.inst->result, step.inst->dtype, true, turned->second);
    } else if (LoadKept(step)) {
      continue;
    } else if (step.inst->op != ScalarOp::kReduce) {
      EmitPrefetch(step);
      body_.Emit(step);
      StoreKept(step);
    } else if (phase.inner.empty()) {
      EmitReduceOfOne(step);
    } else {
      accumulators_.Add(step);
    }
  }
  if (level == static_cast<int>(loops.size())) return;
  if (level == accumulators_.block_level()) {
    EmitBlockedLoop(phase, loops, levels, level);
  } else {
    EmitLoop(phase, loops, levels, level, "0", names_.Expr(Extent(ints_, loops[level])));
  }
}

// The loop at `level` in pieces that the phase's accumulators sum by themselves.
void LoopsEmitter::EmitBlockedLoop(const NestPhase& phase, const std::vector<IntExpr>& loops,
                                   const std::vector<int>& levels, int level) {
  const std::string extent = names_.Expr(Extent(ints_, loops[level]));
  const std::string block = StrCat(names_.Leaf(loops[level]), "_block");
  const int64_t length = accumulators_.block_length();
  out_.Line("KILN_ROLLED for (long ", block, " = 0; ", block, " < ", extent, "; ", block,
            " += ", length, ") {");
  accumulators_.BeginBlock();
  EmitLoop(phase, loops, levels, level, block,
           StrCat("KMinIndex(", block, " + ", length, ", ", extent, ")"));
  accumulators_.EndBlock();
  out_.Line("}");
}

// The loop at `level` from `begin` to `end`, and what is in it.
void LoopsEmitter::EmitLoop(const NestPhase& phase, const std::vector<IntExpr>& loops,
                            const std::vector<int>& levels, int level, const std::string& begin,
                            const std::string& end) {
  IntExpr var = loops[level];
  if (!plan_.outer && var == body_.lane_var()) {
    const std::string name = body_.NewName("body");
    OpenVectorLoop(name, var);
    EmitLevel(phase, loops, levels, level + 1);
    CloseVectorLoop(name, {var, body_.width()}, begin, end);
    return;
  }
  const std::string name = names_.Leaf(var);
  out_.Line("for (long ", name, " = ", begin, ", ", name, "_end = ", end, "; ", name, " < ", name,
            "_end; ++", name, ") {");
  EmitLevel(phase, loops, levels, level + 1);
  out_.Line("}");
}

// One phase, from the level at which it stands: a row, or the lanes of a row.
void LoopsEmitter::EmitPhase(size_t number) {
  const NestPhase& phase = nest_.phases[number];
  const std::vector<IntExpr> loops = PhaseLoops(number);
  const int base = plan_.outer ? 1 : 0;
  std::vector<int> levels;
  for (const Step& step : phase.steps) {
    levels.push_back(LevelOf(step, loops));
    if (step.inst->result >= 0) value_level_[step.inst->result] = levels.back();
  }
  if (!plan_.outer) {
    body_.SetLanes(plan_.phase_lanes[number].var, plan_.phase_lanes[number].width);
  }
  if (!phase.inner.empty()) accumulators_.Open(nest_, phase, loops, base);
  EmitLevel(phase, loops, levels, base);
  if (!phase.inner.empty()) CloseAccumulators(phase);
  if (!plan_.outer) body_.SetLanes(IntExpr(), 1);
}

void LoopsEmitter::EmitRowBodyVectorOuter(const std::string& begin, const std::string& end,
                                          bool is_whole) {
  // What is the same for all lanes of a row comes first.
  for (size_t i = 0; i < nest_.phases.size(); ++i) {
    const std::vector<IntExpr> loops = PhaseLoops(i);
    for (const Step& step : nest_.phases[i].steps) {
      const int level = LevelOf(step, loops);
      if (step.inst->result >= 0) {
        value_level_[step.inst->result] = step.inst->op == ScalarOp::kReduce ? 1 : level;
      }
      if (level == 0) body_.Emit(step);
    }
  }
  body_.SetLanes(plan_.lanes.var, plan_.lanes.width);
  const std::string name = body_.NewName("body");
  OpenVectorLoop(name, plan_.lanes.var);
  for (size_t i = 0; i < nest_.phases.size(); ++i) EmitPhase(i);
  CloseVectorLoop(name, plan_.lanes, begin, end, is_whole);
}

// One piece of code for each segment of the lanes, or of a loop around them.
void LoopsEmitter::EmitSegments(const Segments& segments) {
  const std::vector<Step> all = nest_.phases[0].steps;
  const bool of_lanes = segments.var == plan_.lanes.var;
  body_.SetAligned(segments.aligned);
  for (size_t i = 0; i < segments.steps.size(); ++i) {
    nest_.phases[0].steps = segments.steps[i];
    const bool is_first = i == 0, is_last = i == segments.breaks.size();
    const std::string from = is_first ? "" : names_.Expr(segments.breaks[i - 1]);
    const std::string to = is_last ? "" : names_.Expr(segments.breaks[i]);
    if (of_lanes) {
      out_.Line("if (const long begin = ",
                is_first ? "lane_begin" : StrCat("KMaxIndex(lane_begin, ", from, ")"),
                ", end = ", is_last ? "lane_end" : StrCat("KMinIndex(lane_end, ", to, ")"),
                "; begin < end) {");
      EmitRowBodyVectorOuter("begin", "end", false);
      out_.Line("}");
    } else {
      const std::string name = names_.Leaf(segments.var);
      out_.Line(is_first ? "" : "} else ", is_last ? "{" : StrCat("if (", name, " < ", to, ") {"));
      EmitRowBodyVectorOuter("lane_begin", "lane_end");
      if (is_last) out_.Line("}");
    }
  }
  body_.SetAligned(true);
  nest_.phases[0].steps = all;
}

void LoopsEmitter::EmitRowBody() {
  if (const auto segments = PlanSegments(ints_, nest_, plan_)) {
    EmitSegments(*segments);
    return;
  }
  if (plan_.outer) {
    EmitRowBodyVectorOuter(plan_.block ? "block" : "lane_begin",
                           plan_.block ? "block_end" : "lane_end");
    return;
  }
  for (size_t i = 0; i < nest_.phases.size(); ++i) EmitPhase(i);
}

// Rows [row_begin, row_end) of the outer loops, counted like an odometer.
void LoopsEmitter::EmitRows() {
  if (!rows_.empty()) {
    std::string rest = "row_begin";
    for (size_t i = rows_.size(); i-- > 0;) {
      const std::string extent = names_.Expr(Extent(ints_, rows_[i]));
      out_.Line("long ", names_.Leaf(rows_[i]), " = ",
                i == 0 ? rest : StrCat("KRem(", rest, ", ", extent, ")"), ";");
      rest = StrCat("KDiv(", rest, ", ", extent, ")");
    }
    out_.Line("KILN_ROLLED for (long row = row_begin; row < row_end; ++row) {");
  }
  EmitRowBody();
  for (size_t i = rows_.size(); i-- > 0;) {
    const std::string name = names_.Leaf(rows_[i]);
    if (i == 0) {
      out_.Line("++", name, ";");
    } else {
      out_.Line("if (++", name, " < ", names_.Expr(Extent(ints_, rows_[i])), ") continue;");
      out_.Line(name, " = 0;");
    }
  }
  if (!rows_.empty()) out_.Line("}");
}

// Loads that are contiguous along the rows, for a tile of rows and lanes: read row by row, turned,
// and kept as turned0[row][lane].
void LoopsEmitter::EmitTurnedLoads() {
  const std::string row = names_.Leaf(plan_.row_var), lane = names_.Leaf(plan_.lanes.var);
  for (const Step& step : nest_.phases[0].steps) {
    const ir::Inst& inst = *step.inst;
    if (inst.op != ScalarOp::kLoad || !inst.operands.empty() || inst.dtype == DType::kBool ||
        names_.IsStored(inst.buffer)) {
      continue;
    }
    IntExpr along_row = ints_.CoefficientOf(step.index, plan_.row_var);
    IntExpr along_lane = ints_.CoefficientOf(step.index, plan_.lanes.var);
    if (!along_row || !along_row.is_const(1) || !along_lane || along_lane.is_const(1) ||
        along_lane.is_const(0) || ContainsKind(along_lane, ir::IntKind::kVar)) {
      continue;
    }
    const std::string name = body_.NewName("turned");
    out_.Line("alignas(64) ", CppType(inst.dtype), " ", name, "[", kTileRows * plan_.block, "];");
    ir::IntContext::VarMap origin = {{plan_.row_var, ints_.Const(0)},
                                     {plan_.lanes.var, ints_.Const(0)}};
    const std::string stride = names_.Expr(along_lane);
    const IntExpr index = ints_.Substitute(step.index, origin);
    const std::string base = index.is_const(0) ? "" : StrCat(names_.Expr(index), " + ");
    out_.Line("KPackTransposed<", plan_.block, ">(", names_.Buffer(inst.buffer), " + ", base,
              "tile + block * ", stride, ", ", stride, ", block_end - block, run, ", name, ");");
    turned_[&inst] = StrCat("KLoad<", plan_.lanes.width, ", kTail>(", name, " + (", row,
                            " - tile) * ", plan_.block, " + (", lane, " - block), n)");
  }
}

// Rows by lanes in tiles, so that what is contiguous along the rows is read in whole cache lines.
void LoopsEmitter::EmitTiledRows() {
  const std::string row = names_.Leaf(plan_.row_var);
  const std::string extent = names_.Expr(Extent(ints_, plan_.row_var));
  out_.Line("KILN_ROLLED for (long block = lane_begin; block < lane_end; block += ", plan_.block,
            ") {");
  out_.Line("const long block_end = KMinIndex(block + ", plan_.block, ", lane_end);");
  out_.Line("KILN_ROLLED for (long row = row_begin, run; row < row_end; row += run) {");
  out_.Line("const long tile = KRem(row, ", extent, ");");
  out_.Line("run = KMinIndex(KMinIndex(", kTileRows, ", ", extent, " - tile), row_end - row);");
  std::string rest = StrCat("KDiv(row, ", extent, ")");
  for (size_t i = rows_.size() - 1; i-- > 0;) {
    const std::string other = names_.Expr(Extent(ints_, rows_[i]));
    out_.Line("const long ", names_.Leaf(rows_[i]), " = KRem(", rest, ", ", other, ");");
    rest = StrCat("KDiv(", rest, ", ", other, ")");
  }
  EmitTurnedLoads();
  out_.Line("KILN_ROLLED for (long ", row, " = tile; ", row, " < tile + run; ++", row, ") {");
  EmitRowBody();
  out_.Line("}");
  out_.Line("}");
  out_.Line("}");
}

// Scalar operations of one point of the grid of rows and lanes.
std::string LoopsEmitter::CostText() {
  std::string text;
  for (const NestPhase& phase : nest_.phases) {
    absl::StrAppend(&text, text.empty() ? "" : " + ", BodyCost(phase));
    for (IntExpr var : phase.inner) {
      absl::StrAppend(&text, " * (double)", names_.Expr(Extent(ints_, var)));
    }
  }
  return text.empty() ? "0" : text;
}

EmittedKernel LoopsEmitter::Emit() {
  NameLoops();
  if (plan_.block) {
    EmitTiledRows();
  } else {
    EmitRows();
  }
  if (streams_) out_.Line("KStreamEnd();");
  Shell shell(module_, names_);
  Writer& out = shell.out();
  shell.AddFunction("Run", "long row_begin, long row_end, long lane_begin, long lane_end",
                    out_.text());
  const std::string rows = names_.Expr([&] {
    IntExpr product = ints_.Const(1);
    for (IntExpr var : rows_) product = ints_.Mul(product, Extent(ints_, var));
    return product;
  }());
  const std::string lanes = plan_.outer ? names_.Expr(Extent(ints_, plan_.lanes.var)) : "1";
  const std::string cost = CostText();
  const int step = plan_.block ? plan_.block : plan_.lanes.width;
  out.Line("KRunGrid(context, KGrid<Args>{&args, Run, ", rows, ", ", lanes, ", ", step, ", 1, 1}, ",
           cost, ");");
  return shell.Finish(ints_.Const(0), ints_.Const(0));
}

}  // namespace

absl::StatusOr<EmittedKernel> EmitLoops(ir::Module& module, const ir::Kernel& kernel, VectorIsa isa,
                                        const DeviceInfo& device) {
  KILN_ASSIGN_OR_RETURN(Nest nest, BuildNest(module, kernel, /*collapse=*/true));
  return LoopsEmitter(module, kernel, std::move(nest), isa, device).Emit();
}

}  // namespace kiln::codegen::cpp
