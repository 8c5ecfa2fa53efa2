// Loops of one iteration hide that two kernels have the same loops, and those of none that a kernel
// gives constants.
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "compiler/fusion/match_loops.h"
#include "compiler/fusion/passes.h"
#include "compiler/fusion/simplify_kernel.h"

namespace kiln::fusion {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;

namespace {

bool NeedsLoop(const Phase& phase) {
  for (const Inst& inst : phase.body) {
    if (inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) return true;
  }
  return false;
}

// Removes the unit loops from `loops`, but the last one where `keep_one` and all are.
void DropUnitLoops(IntContext& ints, bool keep_one, std::vector<IntExpr>& loops,
                   IntContext::VarMap& zeros) {
  std::vector<IntExpr> left;
  for (size_t i = 0; i < loops.size(); ++i) {
    const bool is_last_chance = keep_one && left.empty() && i + 1 == loops.size();
    if (loops[i].extent().is_const(1) && !is_last_chance) {
      zeros[loops[i]] = ints.Const(0);
    } else {
      left.push_back(loops[i]);
    }
  }
  loops = std::move(left);
}

bool IsEmptyReduction(const Phase& phase) {
  const auto is_empty = [](IntExpr loop) { return loop.extent().is_const(0); };
  const auto stays = [](const Inst& inst) {
    if (inst.op == ScalarOp::kReduce) return ir::IsArg(inst.reduce_kind);
    return inst.op == ScalarOp::kStore || inst.op == ScalarOp::kSort;
  };
  return absl::c_any_of(phase.inner, is_empty) && absl::c_none_of(phase.body, stays);
}

}  // namespace

void FoldEmptyReductions(FusionGraph& graph) {
  for (int id : graph.order()) {
    Kernel* kernel = graph.Fusible(id);
    if (kernel == nullptr || kernel->schedule != ir::Schedule::kLoops) continue;
    if (absl::c_none_of(kernel->phases, IsEmptyReduction)) continue;
    for (Phase& phase : kernel->phases) {
      if (!IsEmptyReduction(phase)) continue;
      std::vector<Inst> constants;
      for (const Inst& inst : phase.body) {
        if (inst.op != ScalarOp::kReduce) continue;
        Inst constant{.op = ScalarOp::kConst, .dtype = inst.dtype, .result = inst.result};
        ir::SetIdentity(inst.reduce_kind, constant);
        constants.push_back(std::move(constant));
      }
      phase = {.body = std::move(constants)};
    }
    SimplifyKernel(*kernel);
    graph.Update(id);
  }
}

void RemoveUnitLoops(FusionGraph& graph) {
  for (int id : graph.order()) {
    Kernel* kernel = graph.Fusible(id);
    if (kernel == nullptr) continue;
    IntContext::VarMap zeros;
    DropUnitLoops(graph.ints(), false, kernel->outer, zeros);
    for (Phase& phase : kernel->phases) {
      DropUnitLoops(graph.ints(), NeedsLoop(phase), phase.inner, zeros);
    }
    if (zeros.empty()) continue;
    for (Phase& phase : kernel->phases) {
      for (Inst& inst : phase.body) SubstituteIndices(graph.ints(), zeros, inst);
    }
    SimplifyKernel(*kernel);
    graph.Update(id);
  }
}

}  // namespace kiln::fusion
