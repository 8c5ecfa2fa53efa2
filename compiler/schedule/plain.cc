#include "compiler/schedule/plain.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/schedule/nest.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {
namespace {

using ir::IntExpr;
using ir::ScalarOp;

class PlainScheduler {
 public:
  PlainScheduler(ir::Module& module, const ir::Kernel& kernel) : ints_(*module.ints) {
    tree_.name = kernel.name;
    tree_.origins = kernel.origins;
    tree_.num_values = kernel.num_values;
  }

  Tree Run(const Nest& nest) && {
    Block* at = &tree_.body;
    for (IntExpr var : nest.outer) at = &AddLoop(var, Binding::kTask, *at);
    for (const NestPhase& phase : nest.phases) AddPhase(phase, *at);
    return std::move(tree_);
  }

 private:
  Block& AddLoop(IntExpr var, Binding binding, Block& out) {
    const IntExpr zero = ints_.Const(0), one = ints_.Const(1);
    out.push_back({For{var, zero, Extent(ints_, var), one, binding, 1, {}}});
    return std::get<For>(out.back().value).body;
  }

  void AddPhase(const NestPhase& phase, Block& out) {
    absl::flat_hash_map<const ir::Inst*, AllocId> accumulators;
    for (const Step& step : phase.steps) {
      types_[step.inst->result] = step.inst->dtype;
      if (step.inst->op != ScalarOp::kReduce && step.inst->op != ScalarOp::kScan) continue;
      const auto id = static_cast<AllocId>(tree_.allocs.size());
      tree_.allocs.push_back({types_.at(step.inst->operands[0]), ints_.Const(1), Space::kRegister,
                              step.inst->reduce_kind, false});
      accumulators[step.inst] = id;
      out.push_back({Open{id}});
    }
    Block* at = &out;
    for (IntExpr var : phase.inner) at = &AddLoop(var, Binding::kSerial, *at);
    for (const Step& step : phase.steps) {
      const auto acc = accumulators.find(step.inst);
      if (acc == accumulators.end()) {
        at->push_back({ToCompute(step)});
        continue;
      }
      const bool numbered = IsArg(step.inst->reduce_kind);
      at->push_back({Update{acc->second, ints_.Const(0), step.inst->operands[0],
                            numbered ? PointNumber(ints_, phase.inner) : IntExpr()}});
      if (step.inst->op == ScalarOp::kScan) {
        at->push_back({Combine{step.inst->result, step.inst->dtype, acc->second}});
      }
    }
    for (const Step& step : phase.steps) {
      const auto acc = accumulators.find(step.inst);
      if (acc == accumulators.end() || step.inst->op == ScalarOp::kScan) continue;
      out.push_back({Combine{step.inst->result, step.inst->dtype, acc->second}});
    }
  }

  ir::IntContext& ints_;
  Tree tree_;
  absl::flat_hash_map<ir::ValueId, DType> types_;
};

}  // namespace

absl::StatusOr<Tree> SchedulePlainly(ir::Module& module, const ir::Kernel& kernel) {
  KILN_ASSIGN_OR_RETURN(const Nest nest, BuildNest(module, kernel, /*collapse=*/false));
  return PlainScheduler(module, kernel).Run(nest);
}

}  // namespace kiln::schedule
