#include "compiler/schedule/accumulators.h"

#include <algorithm>

namespace kiln::schedule {

using ir::IntExpr;
using ir::ReduceKind;
using ir::ScalarOp;

namespace {

constexpr int64_t kBlockSteps = 64;     // as the levels of a cascade have
constexpr int64_t kLongSumSteps = 128;  // from here on blocks are worth their few instructions

// Of the `reduce`'s operand, which an earlier step of any phase made.
DType OperandType(const Nest& nest, const ir::Inst& reduce) {
  for (const NestPhase& phase : nest.phases) {
    for (const Step& step : phase.steps) {
      if (step.inst->result == reduce.operands[0]) return step.inst->dtype;
    }
  }
  return reduce.dtype;
}

}  // namespace

// From one iteration of the loop to the next.
int64_t Accumulators::StepOf(IntExpr loop) const {
  if (loop == lanes_.var) return lanes_.width;
  return loop == shared_ ? among_ : 1;
}

// Iterations of the loop where its variable takes `extent` values.
int64_t Accumulators::Steps(IntExpr loop, int64_t extent) const {
  const int64_t step = StepOf(loop);
  return extent / step + (extent % step != 0);
}

// The outermost loop one iteration of which is less than a block.
void Accumulators::PlanBlocks(const std::vector<IntExpr>& loops, int base) {
  block_level_ = -1;
  double most = 1;
  for (size_t i = base; i < loops.size(); ++i) {
    const IntExpr extent = Extent(builder_.ints(), loops[i]);
    most *= static_cast<double>(Steps(loops[i], extent.range().max));
  }
  if (most <= static_cast<double>(kLongSumSteps)) return;
  int64_t inside = 1;  // steps of one iteration of the loop
  for (size_t i = loops.size(); i-- > static_cast<size_t>(base);) {
    block_level_ = static_cast<int>(i);
    block_length_ = std::max<int64_t>(1, kBlockSteps / inside);
    block_length_ *= StepOf(loops[i]);
    inside *= Steps(loops[i], ExtentHint(builder_.ints(), loops[i]));
    if (inside >= kBlockSteps) return;
  }
}

Alloc Accumulators::Describe(const ir::Inst& reduce) const {
  const bool one_a_lane = lanes_.width > 1 && !lanes_kept_;
  return {OperandType(nest_, reduce), builder_.ints().Const(one_a_lane ? lanes_.width : 1),
          Space::kRegister, reduce.reduce_kind, false};
}

void Accumulators::Open(const NestPhase& phase, const std::vector<IntExpr>& loops, int base,
                        Lanes lanes, Block& out) {
  open_.clear();
  lanes_ = lanes;
  number_ = PointNumber(builder_.ints(), phase.inner);
  PlanBlocks(loops, base);
  bool any_cascade = false;
  for (const Step& step : phase.steps) {
    const bool scans = step.inst->op == ScalarOp::kScan;
    if (step.inst->op != ScalarOp::kReduce && !scans) continue;
    Alloc total = Describe(*step.inst);
    total.cascade =
        !scans && block_level_ >= 0 && *total.reduce == ReduceKind::kSum && IsFloat(total.dtype);
    any_cascade |= total.cascade;
    open_.push_back({step.inst, builder_.Open(std::move(total), out), -1});
  }
  if (!any_cascade) block_level_ = -1;
}

void Accumulators::BeginBlock(Block& out) {
  for (Accumulator& acc : open_) {
    if (!builder_.tree().allocs[acc.total].cascade) continue;
    acc.part = builder_.Open(Describe(*acc.inst), out);
  }
}

void Accumulators::EndBlock(Block& out) {
  for (Accumulator& acc : open_) {
    if (acc.part >= 0) out.push_back({Fold{acc.total, acc.part}});
  }
}

void Accumulators::Add(const Step& step, Block& out) {
  ir::IntContext& ints = builder_.ints();
  const Accumulator& acc = *std::find_if(open_.begin(), open_.end(),
                                         [&](const Accumulator& a) { return a.inst == step.inst; });
  const bool one_a_lane = lanes_.width > 1 && !lanes_kept_;
  const bool numbered = IsArg(step.inst->reduce_kind);
  out.push_back({Update{acc.part >= 0 ? acc.part : acc.total,
                        one_a_lane ? ints.Mod(lanes_.var, lanes_.width) : ints.Const(0),
                        builder_.Resolve(step.inst->operands[0]), numbered ? number_ : IntExpr()}});
  if (step.inst->op == ScalarOp::kScan) {
    out.push_back({Combine{step.inst->result, step.inst->dtype, acc.total}});
  }
}

void Accumulators::Close(Block& out) {
  for (const Accumulator& acc : open_) {
    if (acc.inst->op == ScalarOp::kScan) continue;
    out.push_back({Combine{builder_.Resolve(acc.inst->result), acc.inst->dtype, acc.total}});
  }
  open_.clear();
  block_level_ = -1;
}

}  // namespace kiln::schedule
