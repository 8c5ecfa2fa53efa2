#include "compiler/codegen/cpp/accumulators.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kiln::codegen::cpp {

using absl::StrCat;
using ir::IntExpr;
using ir::ScalarOp;

namespace {

constexpr int64_t kBlockSteps = 64;     // as KCascade's levels have
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

// The number of an inner point in row-major order.
IntExpr PointNumber(ir::IntContext& ints, const NestPhase& phase) {
  IntExpr number = ints.Const(0), stride = ints.Const(1);
  for (size_t i = phase.inner.size(); i-- > 0;) {
    number = ints.Add(number, ints.Mul(phase.inner[i], stride));
    stride = ints.Mul(stride, Extent(ints, phase.inner[i]));
  }
  return number;
}

}  // namespace

// Iterations of the loop where its variable takes `extent` values.
int64_t Accumulators::Steps(IntExpr loop, int64_t extent) const {
  const int width = loop == body_.lane_var() ? body_.width() : 1;
  return extent / width + (extent % width != 0);
}

// The outermost loop one iteration of which is less than a block.
void Accumulators::PlanBlocks(const std::vector<IntExpr>& loops, int base) {
  block_level_ = -1;
  double most = 1;
  for (size_t i = base; i < loops.size(); ++i) {
    const IntExpr extent = Extent(body_.ints(), loops[i]);
    most *= static_cast<double>(Steps(loops[i], extent.range().max));
  }
  if (most <= static_cast<double>(kLongSumSteps)) return;
  int64_t inside = 1;  // steps of one iteration of the loop
  for (size_t i = loops.size(); i-- > static_cast<size_t>(base);) {
    block_level_ = static_cast<int>(i);
    block_length_ = std::max<int64_t>(1, kBlockSteps / inside);
    if (loops[i] == body_.lane_var()) block_length_ *= body_.width();
    inside *= Steps(loops[i], ExtentHint(body_.ints(), loops[i]));
    if (inside >= kBlockSteps) return;
  }
}

void Accumulators::Open(const Nest& nest, const NestPhase& phase, const std::vector<IntExpr>& loops,
                        int base) {
  open_.clear();
  number_ = PointNumber(body_.ints(), phase);
  PlanBlocks(loops, base);
  bool any_cascade = false;
  // Whether operands vary is known only once they are emitted; a reduction of a phase that is
  // vectorised has vector accumulators in any case.
  const bool varying = body_.lane_var() && body_.width() > 1;
  const int width = varying ? body_.width() : 1;
  for (const Step& step : phase.steps) {
    if (step.inst->op != ScalarOp::kReduce) continue;
    const DType operand = OperandType(nest, *step.inst);
    Accumulator acc{step.inst,
                    DescribeReduce(*step.inst, operand),
                    body_.NewName("acc"),
                    ComputeTypeText(operand),
                    varying,
                    ""};
    const std::string vector = StrCat(acc.type, ", ", width);
    if (acc.text.functor.empty()) {
      body_.out().Line("KBest<", vector, "> ", acc.name, " = {KConst<", vector, ">(",
                       acc.text.identity, "), KConst<long, ", width, ">(0x7fffffffffffffffl)};");
    } else {
      body_.out().Line("Vec<", vector, "> ", acc.name, " = KConst<", vector, ">(",
                       acc.text.identity, ");");
    }
    const bool sum = step.inst->reduce_kind == ir::ReduceKind::kSum && IsFloat(operand);
    if (sum && block_level_ >= 0) {
      any_cascade = true;
      acc.cascade = body_.NewName("sums");
      body_.out().Line("KCascade<", vector, "> ", acc.cascade, ";");
    }
    open_.push_back(std::move(acc));
  }
  if (!any_cascade) block_level_ = -1;
}

void Accumulators::BeginBlock() {
  for (const Accumulator& acc : open_) {
    if (acc.cascade.empty()) continue;
    body_.out().Line(acc.name, " = KConst<", acc.type, ", ", acc.varying ? body_.width() : 1, ">(",
                     acc.text.identity, ");");
  }
}

void Accumulators::EndBlock() {
  for (const Accumulator& acc : open_) {
    if (!acc.cascade.empty()) body_.out().Line(acc.cascade, ".Add(", acc.name, ");");
  }
}

void Accumulators::Add(const Step& step) {
  const Accumulator& acc = *std::find_if(open_.begin(), open_.end(),
                                         [&](const Accumulator& a) { return a.inst == step.inst; });
  const std::string operand = body_.UseComputed(step.inst->operands[0], acc.varying);
  const bool tail_counts = acc.varying && !lanes_kept_;
  if (acc.text.functor.empty()) {
    AddToBest(acc, operand, tail_counts);
    return;
  }
  const std::string active = tail_counts ? StrCat("KActiveOr<kTail, ", acc.type, ">(", operand,
                                                  ", n, ", acc.text.identity, ")")
                                         : operand;
  body_.out().Line(acc.name, " = ", acc.text.functor, "()(", acc.name, ", ", active, ");");
}

void Accumulators::AddToBest(const Accumulator& acc, const std::string& operand, bool tail_counts) {
  ir::IntContext& ints = body_.ints();
  const int width = acc.varying ? body_.width() : 1;
  const IntExpr stride =
      acc.varying && !lanes_kept_ ? ints.CoefficientOf(number_, body_.lane_var()) : ints.Const(0);
  const std::string number = StrCat("KIota<", width, ">(", body_.names().Expr(number_), ", ",
                                    body_.names().Expr(stride), ")");
  const std::string all = StrCat("KConst<bool, ", width, ">(true)");
  const std::string active = tail_counts ? StrCat("kTail ? KActive<", width, ">(n) : ", all) : all;
  body_.out().Line("KUpdateBest<", acc.text.greatest ? "true" : "false", ">(", acc.name, ", ",
                   operand, ", ", number, ", ", active, ");");
}

void Accumulators::Close() {
  for (const Accumulator& acc : open_) {
    const bool folded = acc.varying && !lanes_kept_;
    std::string value = acc.cascade.empty() ? acc.name : StrCat(acc.cascade, ".Total()");
    if (acc.text.functor.empty()) {
      value = folded ? StrCat("KFoldBest<", acc.text.greatest ? "true" : "false", ">(", value, ")")
                     : value;
      absl::StrAppend(&value, ".number");
    } else if (folded) {
      value = StrCat("KFold<", acc.text.functor, ", ", acc.type, ">(", value, ")");
    }
    if (acc.type != CppType(acc.inst->dtype) && !acc.text.functor.empty()) {
      value = StrCat("KCast<", CppType(acc.inst->dtype), ">(", value, ")");
    }
    const bool varying = acc.varying && lanes_kept_;
    std::string name = body_.NewName("v");
    body_.out().Line("const Vec<", CppType(acc.inst->dtype), ", ", varying ? body_.width() : 1,
                     "> ", name, " = ", value, ";");
    body_.Define(acc.inst->result, acc.inst->dtype, varying, name);
  }
  open_.clear();
  block_level_ = -1;
}

}  // namespace kiln::codegen::cpp
