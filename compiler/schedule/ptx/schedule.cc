#include "compiler/schedule/ptx/schedule.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/packed_weights.h"
#include "compiler/schedule/kept_values.h"
#include "compiler/schedule/ptx/attention.h"
#include "compiler/schedule/ptx/attention_warps.h"
#include "compiler/schedule/ptx/few_queries.h"
#include "compiler/schedule/ptx/few_rows.h"
#include "compiler/schedule/ptx/gradients.h"
#include "compiler/schedule/ptx/product.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/schedule/row_scheduler.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule::ptx {

using ir::IntExpr;

namespace {

// Shared memory that the kept rows of a task may take: as many blocks as fill a multiprocessor's
// threads should fit beside each other.
constexpr int64_t kKeptBytes = 48 << 10;
// Of tiles that turn what they read: threads that share one, its sides, and bytes of an access.
constexpr int kTileTeam = 256;
constexpr int kSide = 64;
constexpr int kAccessBytes = 16;
constexpr int kMostTileLanes = 8;
constexpr int64_t kTileBytes = 96 << 10;  // of a task, which every architecture has

class Scheduler {
 public:
  Scheduler(ir::Module& module, const ir::Kernel& kernel, const Nest& nest, TeamPlan plan)
      : ints_(*module.ints),
        kernel_(kernel),
        nest_(nest),
        plan_(std::move(plan)),
        builder_(module, kernel, nest_),
        row_(*this) {}

  Tree Run() &&;

 private:
  // With loads from tiles that were turned.
  class Row : public RowScheduler {
   public:
    explicit Row(Scheduler& all) : RowScheduler(all.builder_, all.nest_, all.plan_), all_(all) {}
    using RowScheduler::AddAboveLanes, RowScheduler::AddPhase;

    void AddStep(const NestPhase& phase, const Step& step, Block& out) override {
      const auto turned = all_.turned_.find(step.inst);
      if (turned == all_.turned_.end()) return RowScheduler::AddStep(phase, step, out);
      const auto [alloc, index] = turned->second;
      builder_.AddLoad(step.inst->result, step.inst->dtype, alloc, index, out);
    }

   private:
    Scheduler& all_;
  };

  int TileLanes(const std::vector<const Step*>& steps, IntExpr along, IntExpr across);
  std::pair<IntExpr, IntExpr> AddTasksOf(int size, IntExpr extent, Block*& at);
  void AddTiles(IntExpr rows, Block& out);
  void AddGroups(Block& out);
  std::vector<const Step*> NeededLater(size_t phase) const;
  void Because(std::string reason) { builder_.tree().reasons.push_back(std::move(reason)); }

  ir::IntContext& ints_;
  const ir::Kernel& kernel_;
  const Nest& nest_;
  TeamPlan plan_;
  Builder builder_;
  Row row_;
  absl::flat_hash_map<const ir::Inst*, std::pair<AllocId, IntExpr>> turned_;
};

// Lanes of a thread's access along one side of a tile: as many as all lines begin at multiples of.
// `steps` access memory contiguously along `along`, a line for each value of `across`.
int Scheduler::TileLanes(const std::vector<const Step*>& steps, IntExpr along, IntExpr across) {
  int lanes = kMostTileLanes;
  const auto divides = [&](IntExpr e) { return e && e.is_const() && e.value() % lanes == 0; };
  for (const Step* step : steps) {
    lanes = std::min<int>(lanes, kAccessBytes / DTypeSize(step->inst->dtype));
    while (lanes > 2 && !divides(ints_.CoefficientOf(step->index, across))) lanes /= 2;
  }
  while (lanes > 2 && !divides(Extent(ints_, along))) lanes /= 2;
  return lanes;
}

// A loop of tasks at the end of `at`, whose body `at` is then, that take `size` of `extent` each;
// returns where a task's begin and end.
std::pair<IntExpr, IntExpr> Scheduler::AddTasksOf(int size, IntExpr extent, Block*& at) {
  IntExpr begin;
  const IntExpr step = ints_.Const(size);
  at = &builder_.AddSteps(begin, extent, ints_.Const(0), extent, step, Binding::kTask, *at);
  const IntExpr end = ints_.Add(begin, step);
  const bool is_whole = extent.is_const() && extent.value() % size == 0;
  return {begin, is_whole ? end : builder_.Let(ints_.Min(end, extent), extent, *at)};
}

// Tiles of `rows` by lanes: groups of threads read lines of what is contiguous along the rows into
// shared memory, whose lines have an element more than the tile, so that reading them across meets
// every bank.
void Scheduler::AddTiles(IntExpr rows, Block& out) {
  Because("in tiles, as something is contiguous along another loop");
  const IntExpr lanes = plan_.lanes.var;
  std::vector<const Step*> turned, others;
  int64_t bytes = 0;
  for (const Step& step : nest_.phases[0].steps) {
    if (!step.index || step.inst->buffer < 0) continue;
    const int64_t more = kSide * (kSide + 1) * DTypeSize(step.inst->dtype);
    if (!builder_.IsStored(step.inst->buffer) && IsTurned(ints_, step, rows, lanes) &&
        bytes + more <= kTileBytes) {
      turned.push_back(&step);
      bytes += more;
    } else if (const IntExpr along = ints_.CoefficientOf(step.index, lanes);
               along && along.is_const(1)) {
      others.push_back(&step);
    }
  }
  builder_.tree().team = plan_.team = kTileTeam;
  const IntExpr num_lanes = Extent(ints_, lanes), num_rows = Extent(ints_, rows);
  Block* at = &out;
  for (IntExpr var : nest_.outer) {
    if (var == lanes || var == rows) continue;
    at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  }
  // Tiles that run at a time are neighbours along the lanes, as what they store is.
  const auto [tile, tile_end] = AddTasksOf(kSide, num_rows, at);
  const auto [block, block_end] = AddTasksOf(kSide, num_lanes, at);
  const auto add_lines = [&](IntExpr var, IntExpr begin, IntExpr end, int lanes_of_thread) {
    return &builder_.AddLoop({var, begin, end, Binding::kGroup, kSide / lanes_of_thread}, *at);
  };
  const int turned_lanes = TileLanes(turned, rows, lanes);
  for (const Step* step : turned) {
    const DType dtype = step->inst->dtype;
    const AllocId alloc =
        builder_.Open({dtype, ints_.Const(kSide * (kSide + 1)), Space::kL1, {}, false}, *at);
    const auto place = [&](IntExpr row, IntExpr lane) {
      return ints_.Add(ints_.Mul(ints_.Sub(row, tile), kSide + 1), ints_.Sub(lane, block));
    };
    const IntExpr lane = ints_.NewVar(num_lanes), row = ints_.NewVar(num_rows);
    Block& lines = *add_lines(lane, block, block_end, turned_lanes);
    Block& across = builder_.AddLoop({row, tile, tile_end, Binding::kVector, kSide}, lines);
    Step read = *step;
    read.index = ints_.Substitute(step->index, {{rows, row}, {lanes, lane}});
    const ir::ValueId value = builder_.NewValue();
    builder_.Alias(step->inst->result, value);
    builder_.AddStep(read, across);
    builder_.AddStore(value, dtype, alloc, place(row, lane), across);
    builder_.Alias(step->inst->result, step->inst->result);
    turned_[step->inst] = {alloc, place(rows, lanes)};
  }
  at = add_lines(rows, tile, tile_end, TileLanes(others, lanes, rows));
  plan_.lanes.width = kSide;
  row_.AddLanesBody({lanes, block, block_end, Binding::kVector, kSide}, *at);
}

// Steps of `phase` above its loops whose values later phases take.
std::vector<const Step*> Scheduler::NeededLater(size_t phase) const {
  absl::flat_hash_set<ir::ValueId> taken;
  const auto take = [&](const Step& step) {
    taken.insert(step.inst->operands.begin(), step.inst->operands.end());
  };
  for (size_t p = phase + 1; p < nest_.phases.size(); ++p) {
    absl::c_for_each(nest_.phases[p].steps, take);
  }
  std::vector<const Step*> needed;
  for (size_t i = nest_.phases[phase].steps.size(); i-- > 0;) {
    const Step& step = nest_.phases[phase].steps[i];
    const bool by_loops =
        step.inst->op == ir::ScalarOp::kReduce && !nest_.phases[phase].inner.empty();
    if (by_loops || !taken.contains(step.inst->result)) continue;
    if (builder_.LevelOf(step.inst->result) != 1) continue;
    needed.push_back(&step);
    take(step);
  }
  absl::c_reverse(needed);
  return needed;
}

// Tasks of some columns: groups of threads share the iterations of a loop, and what each has
// reduced meets in shared memory, where the rest is done a column a thread.
void Scheduler::AddGroups(Block& out) {
  const IntExpr columns = plan_.lanes.var, zero = ints_.Const(0);
  const size_t shared = plan_.shared_phase;
  row_.AddAboveLanes(out);
  Block* at = &out;
  const auto [begin, end] = AddTasksOf(plan_.lanes.width, Extent(ints_, columns), at);
  Block& task = *at;
  const auto place = [&](IntExpr group) {
    return ints_.Add(ints_.Mul(group, plan_.lanes.width), ints_.Sub(columns, begin));
  };

  std::vector<std::pair<const ir::Inst*, AllocId>> reduced;
  for (const Step& step : nest_.phases[shared].steps) {
    if (step.inst->op != ir::ScalarOp::kReduce) continue;
    const IntExpr size = ints_.Const(int64_t{plan_.groups} * plan_.lanes.width);
    reduced.emplace_back(step.inst,
                         builder_.Open({step.inst->dtype, size, Space::kL1, {}, false}, task));
    builder_.Alias(step.inst->result, builder_.NewValue());
  }
  const IntExpr num_groups = ints_.Const(plan_.groups);
  const IntExpr group = ints_.NewVar(num_groups), part = ints_.NewVar(num_groups);
  const int of_group = plan_.team / plan_.groups;
  Block& groups = builder_.AddLoop({group, zero, num_groups, Binding::kGroup, of_group}, task);
  Block& loops =
      builder_.AddLoop({columns, begin, end, Binding::kVector, plan_.lanes.width}, groups);
  row_.Share(plan_.shared, group, plan_.groups);
  for (size_t p = 0; p < shared; ++p) {
    for (const Step* step : NeededLater(p)) row_.AddStep(nest_.phases[p], *step, loops);
  }
  row_.AddPhase(shared, loops);
  for (const auto& [reduce, alloc] : reduced) {
    builder_.AddStore(reduce->result, reduce->dtype, alloc, place(group), loops);
    builder_.Alias(reduce->result, reduce->result);
  }

  const int all = std::max(plan_.team, plan_.lanes.width);
  Block& results = builder_.AddLoop({columns, begin, end, Binding::kVector, all}, task);
  for (size_t p = 0; p < shared; ++p) row_.AddPhase(p, results);
  for (const Step* step : NeededLater(shared)) {
    row_.AddStep(nest_.phases[shared], *step, results);
  }
  std::vector<AllocId> sums;
  for (const auto& [reduce, alloc] : reduced) {
    sums.push_back(builder_.Open(
        {reduce->dtype, ints_.Const(1), Space::kRegister, reduce->reduce_kind, false}, results));
  }
  Block& parts = builder_.AddLoop({part, zero, num_groups, Binding::kSerial, 1}, results);
  for (size_t i = 0; i < reduced.size(); ++i) {
    const ir::ValueId value = builder_.NewValue();
    builder_.AddLoad(value, reduced[i].first->dtype, reduced[i].second, place(part), parts);
    parts.push_back({Update{sums[i], zero, value, {}}});
  }
  for (size_t i = 0; i < reduced.size(); ++i) {
    results.push_back({Combine{reduced[i].first->result, reduced[i].first->dtype, sums[i]}});
  }
  for (size_t p = shared + 1; p < nest_.phases.size(); ++p) row_.AddPhase(p, results);
}

Tree Scheduler::Run() && {
  Tree& tree = builder_.tree();
  tree.team = plan_.team;
  Because(plan_.reason);
  Block root;
  const IntExpr rows = plan_.outer ? FindTurnedRows(ints_, nest_, plan_.lanes) : IntExpr();
  if (rows && ExtentHint(ints_, rows) > 1) {
    AddTiles(rows, root);
    tree.body = std::move(root);
    return std::move(tree);
  }
  Block* at = &root;
  for (IntExpr var : nest_.outer) {
    if (plan_.outer && var == plan_.lanes.var) continue;
    at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  }
  if (plan_.groups > 1) {
    AddGroups(*at);
  } else if (plan_.outer) {
    const Binding binding = plan_.lanes.width > 1 ? Binding::kTaskVector : Binding::kTask;
    row_.AddLanesBody(builder_.Whole(plan_.lanes.var, binding, plan_.lanes.width), *at);
  } else {
    if (row_.Keep(FindKeptValues(ints_, nest_, kernel_.num_values,
                                 {.most_bytes = kKeptBytes, .loads = true}),
                  Space::kL1, *at)) {
      Because("a row of what two loops read or compute is kept");
    }
    row_.AddPhases(*at);
  }
  tree.body = std::move(root);
  return std::move(tree);
}

// Functions of the C library, which a GPU lacks; the prelude has its own of float32 alone.
bool CallsLibrary(const ir::Inst& inst, const std::vector<DType>& types) {
  const bool is_function = inst.op == ir::ScalarOp::kPow || inst.op == ir::ScalarOp::kAtan2 ||
                           (inst.op >= ir::ScalarOp::kExp && inst.op <= ir::ScalarOp::kSigmoid &&
                            inst.op != ir::ScalarOp::kSqrt && inst.op != ir::ScalarOp::kRsqrt);
  if (is_function) return inst.dtype == DType::kF64;
  const bool folds = inst.op == ir::ScalarOp::kReduce || inst.op == ir::ScalarOp::kScan ||
                     (inst.op == ir::ScalarOp::kStore && inst.accumulates);
  return folds && inst.reduce_kind == ir::ReduceKind::kLogAddExp &&
         types[inst.operands.back()] == DType::kF64;
}

// Whether some kernel makes the buffer of narrower numbers.
bool AreWidened(const ir::Module& module, ir::BufferId buffer) {
  return absl::c_any_of(module.operations, [&](const ir::Operation& operation) {
    const auto* kernel = std::get_if<ir::Kernel>(&operation);
    return kernel != nullptr && !kernel->phases[0].body.empty() &&
           kernel->phases[0].body.back().buffer == buffer &&
           (ir::WidensBytes(module, *kernel) || ir::UnpacksWeights(module, *kernel));
  });
}

std::optional<Product> ProductOf(ir::Module& module, const ir::Kernel& kernel,
                                 const DeviceInfo& device) {
  if (kernel.schedule != ir::Schedule::kContraction) return std::nullopt;
  const absl::StatusOr<Nest> nest = BuildNest(module, kernel, /*collapse=*/false);
  if (!nest.ok()) return std::nullopt;
  return FindProduct(*module.ints, module, *nest, device);
}

}  // namespace

std::string Lacks(const ir::Kernel& kernel) {
  if (kernel.schedule == ir::Schedule::kSorting) return "sorting";
  std::vector<DType> types(kernel.num_values, DType::kF32);
  std::string lacks;
  ForEachInst(kernel, [&](const ir::Inst& inst) {
    if (CallsLibrary(inst, types)) {
      lacks = absl::StrCat(IsElementary(inst.op) ? Info(inst.op).name : "logaddexp", " of float64");
    }
    if (inst.op == ir::ScalarOp::kNonzero) lacks = "check of a divisor";
    if (inst.result >= 0) types[inst.result] = inst.dtype;
  });
  return lacks;
}

bool TakesProduct(ir::Module& module, const ir::Kernel& kernel, bool goes_on,
                  const DeviceInfo& device) {
  const std::optional<Product> product = ProductOf(module, kernel, device);
  if (!product) return false;
  // A library would read all of the widened weights, which fusion takes away else.
  if (HasFewRows(*product) && AreWidened(module, product->b.buffer)) return true;
  return IsFasterThanLibraries(*product, goes_on, device);
}

bool IsProductOfFewRows(ir::Module& module, const ir::Kernel& kernel, const DeviceInfo& device) {
  const std::optional<Product> product = ProductOf(module, kernel, device);
  return product && HasFewRows(*product);
}

bool TakesAttention(ir::Module& module, const std::vector<const ir::Kernel*>& kernels,
                    bool by_libraries, const DeviceInfo& device) {
  if (const auto gradients = FindAttentionGradients(module, kernels)) {
    return IsOfTensorCores(module, *gradients, device) && IsFasterThanLibraries(module, *gradients);
  }
  const std::optional<Attention> attention = FindAttention(module, kernels);
  if (!attention) return false;
  if (const auto of_few = AsFewQueries(module, *attention, device)) {
    return !by_libraries || IsFasterThanLibraries(*module.ints, *of_few, device);
  }
  if (AttendsByWarps(module, *attention, device)) {
    return !by_libraries || AreWarpsFaster(module, *attention, device);
  }
  return IsOfTensorCores(module, *attention, device) &&
         (!by_libraries || IsFasterThanLibraries(module, *attention, device));
}

absl::StatusOr<Tree> ScheduleRepeat(ir::Module& module, const ir::Repeat& repeat,
                                    const DeviceInfo& device) {
  std::vector<const ir::Kernel*> kernels;
  for (const ir::Kernel& kernel : repeat.kernels) kernels.push_back(&kernel);
  const auto gradients = FindAttentionGradients(module, kernels);
  if (gradients && IsOfTensorCores(module, *gradients, device)) {
    return ScheduleGradients(module, repeat, *gradients, device);
  }
  const std::optional<Attention> attention = FindAttention(module, kernels);
  if (attention && repeat.steps.empty() && repeat.versions.empty()) {
    if (const auto of_few = AsFewQueries(module, *attention, device)) {
      return ScheduleFewQueries(module, repeat, *of_few, device);
    }
    if (IsOfTensorCores(module, *attention, device)) {
      return ScheduleAttention(module, repeat, *attention, device);
    }
    if (AttendsByWarps(module, *attention, device)) {
      return ScheduleAttentionByWarps(module, repeat, *attention, device);
    }
  }
  return absl::UnimplementedError(
      absl::StrCat("repeat @", repeat.name, ": target ptx runs no such kernels as one"));
}

absl::StatusOr<Tree> ScheduleKernel(ir::Module& module, const ir::Kernel& kernel,
                                    const DeviceInfo& device) {
  if (const std::string lacks = Lacks(kernel); !lacks.empty()) {
    return absl::UnimplementedError(absl::StrCat("kernel ", kernel.name, ": target ptx has no ",
                                                 lacks, "; a client with torch runs it by that"));
  }
  if (kernel.schedule == ir::Schedule::kContraction) {
    KILN_ASSIGN_OR_RETURN(const Nest nest, BuildNest(module, kernel, /*collapse=*/false));
    const std::optional<Product> product = FindProduct(*module.ints, module, nest, device);
    if (product) return ScheduleProduct(module, kernel, nest, *product, device);
  }
  KILN_ASSIGN_OR_RETURN(const Nest nest, BuildNest(module, kernel, /*collapse=*/true));
  return Scheduler(module, kernel, nest, PlanTeam(*module.ints, nest, device)).Run();
}

}  // namespace kiln::schedule::ptx
