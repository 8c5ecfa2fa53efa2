// Loops of one iteration hide that two kernels have the same loops.
#include "compiler/fusion/match_loops.h"
#include "compiler/fusion/passes.h"
#include "compiler/fusion/simplify_kernel.h"

namespace kiln::fusion {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;

namespace {

bool NeedsLoop(const Phase& phase) {
  for (const Inst& inst : phase.body) {
    if (inst.op == ir::ScalarOp::kReduce || inst.op == ir::ScalarOp::kScan) return true;
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

}  // namespace

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
