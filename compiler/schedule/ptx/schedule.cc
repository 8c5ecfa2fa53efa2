#include "compiler/schedule/ptx/schedule.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/kept_values.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/schedule/row_scheduler.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule::ptx {

using ir::IntExpr;

namespace {

// Shared memory that the kept rows of a task may take: as many blocks as fill a multiprocessor's
// threads should fit beside each other.
constexpr int64_t kKeptBytes = 48 << 10;
// Of a tile that turns what it reads: a warp reads and writes pieces of so many bytes.
constexpr int kTileBytes = 128;
constexpr int kWarp = 32;

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

   private:
    void AddStep(const NestPhase& phase, const Step& step, Block& out) override {
      const auto turned = all_.turned_.find(step.inst);
      if (turned == all_.turned_.end()) return RowScheduler::AddStep(phase, step, out);
      const auto [alloc, index] = turned->second;
      builder_.AddLoad(step.inst->result, step.inst->dtype, alloc, index, out);
    }

    Scheduler& all_;
  };

  void AddTiles(IntExpr rows, Block& out);
  void Because(std::string reason) { builder_.tree().reasons.push_back(std::move(reason)); }

  ir::IntContext& ints_;
  const ir::Kernel& kernel_;
  const Nest& nest_;
  TeamPlan plan_;
  Builder builder_;
  Row row_;
  absl::flat_hash_map<const ir::Inst*, std::pair<AllocId, IntExpr>> turned_;
};

// Tiles of `rows` by lanes, a warp each: what is contiguous along the rows is read so into shared
// memory, whose lines have a word more than lanes, so that reading them across meets every bank.
void Scheduler::AddTiles(IntExpr rows, Block& out) {
  Because("in tiles, as something is contiguous along another loop");
  const IntExpr lanes = plan_.lanes.var;
  int64_t least_size = 8;
  std::vector<const Step*> turned;
  for (const Step& step : nest_.phases[0].steps) {
    if (builder_.IsStored(step.inst->buffer) || !IsTurned(ints_, step, rows, lanes)) continue;
    turned.push_back(&step);
    least_size = std::min<int64_t>(least_size, DTypeSize(step.inst->dtype));
  }
  const int side = std::max<int>(kWarp, kTileBytes / static_cast<int>(least_size));
  const int tile_rows = kWarp, line = side + 1;
  builder_.tree().team = plan_.team = kWarp;
  const IntExpr num_lanes = Extent(ints_, lanes), num_rows = Extent(ints_, rows);
  const IntExpr zero = ints_.Const(0);

  Block* at = &out;
  for (IntExpr var : nest_.outer) {
    if (var == lanes || var == rows) continue;
    at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  }
  IntExpr block, tile;
  at =
      &builder_.AddSteps(block, num_lanes, zero, num_lanes, ints_.Const(side), Binding::kTask, *at);
  at = &builder_.AddSteps(tile, num_rows, zero, num_rows, ints_.Const(tile_rows), Binding::kTask,
                          *at);
  const IntExpr block_end =
      builder_.Let(ints_.Min(ints_.Add(block, side), num_lanes), num_lanes, *at);
  const IntExpr tile_end =
      builder_.Let(ints_.Min(ints_.Add(tile, tile_rows), num_rows), num_rows, *at);
  for (const Step* step : turned) {
    const DType dtype = step->inst->dtype;
    const AllocId alloc =
        builder_.Open({dtype, ints_.Const(tile_rows * line), Space::kL1, {}, false}, *at);
    const auto place = [&](IntExpr row, IntExpr lane) {
      return ints_.Add(ints_.Mul(ints_.Sub(row, tile), line), ints_.Sub(lane, block));
    };
    const IntExpr lane = ints_.NewVar(num_lanes), row = ints_.NewVar(num_rows);
    Block& lines = builder_.AddLoop({lane, block, block_end, Binding::kSerial, 1}, *at);
    Block& across = builder_.AddLoop({row, tile, tile_end, Binding::kVector, kWarp}, lines);
    Step read = *step;
    read.index = ints_.Substitute(step->index, {{rows, row}, {lanes, lane}});
    const ir::ValueId value = builder_.NewValue();
    builder_.Alias(step->inst->result, value);
    builder_.AddStep(read, across);
    builder_.AddStore(value, dtype, alloc, place(row, lane), across);
    builder_.Alias(step->inst->result, step->inst->result);
    turned_[step->inst] = {alloc, place(rows, lanes)};
  }
  at = &builder_.AddLoop({rows, tile, tile_end, Binding::kSerial, 1}, *at);
  plan_.lanes.width = side;
  row_.AddLanesBody({lanes, block, block_end, Binding::kVector, side}, *at);
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
  if (plan_.outer) {
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

}  // namespace

std::string Lacks(const ir::Kernel& kernel) {
  if (kernel.schedule == ir::Schedule::kSorting) return "sorting";
  std::vector<DType> types(kernel.num_values, DType::kF32);
  std::string lacks;
  ForEachInst(kernel, [&](const ir::Inst& inst) {
    if (CallsLibrary(inst, types)) {
      lacks = absl::StrCat(IsElementary(inst.op) ? Info(inst.op).name : "logaddexp", " of float64");
    }
    if (inst.result >= 0) types[inst.result] = inst.dtype;
  });
  return lacks;
}

absl::StatusOr<Tree> ScheduleKernel(ir::Module& module, const ir::Kernel& kernel,
                                    const DeviceInfo& device) {
  if (const std::string lacks = Lacks(kernel); !lacks.empty()) {
    return absl::UnimplementedError(absl::StrCat("kernel ", kernel.name, ": target ptx has no ",
                                                 lacks, "; a client with torch runs it by that"));
  }
  KILN_ASSIGN_OR_RETURN(const Nest nest, BuildNest(module, kernel, /*collapse=*/true));
  return Scheduler(module, kernel, nest, PlanTeam(*module.ints, nest, device)).Run();
}

}  // namespace kiln::schedule::ptx
