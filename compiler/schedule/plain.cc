#include "compiler/schedule/plain.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/schedule/nest.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {
namespace {

using ir::IntExpr;
using ir::ScalarOp;

class PlainScheduler {
 public:
  PlainScheduler(ir::Module& module, const ir::Kernel& kernel, int sort_lanes)
      : ints_(*module.ints), sort_lanes_(sort_lanes) {
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
    return AddLoop(var, Extent(ints_, var), binding, 1, out);
  }
  Block& AddLoop(IntExpr var, IntExpr end, Binding binding, int width, Block& out) {
    out.push_back({For{var, ints_.Const(0), end, ints_.Const(1), binding, width, {}}});
    return std::get<For>(out.back().value).body;
  }

  // The steps that stores need, the sort without what it sorts.
  static std::vector<const Step*> NeededByStores(const NestPhase& phase, const Step& sort) {
    absl::flat_hash_set<ir::ValueId> used;
    std::vector<const Step*> needed;
    for (auto step = phase.steps.rbegin(); step != phase.steps.rend(); ++step) {
      if (step->inst->op != ScalarOp::kStore && !used.contains(step->inst->result)) continue;
      needed.push_back(&*step);
      if (&*step != &sort) used.insert(step->inst->operands.begin(), step->inst->operands.end());
    }
    std::reverse(needed.begin(), needed.end());
    return needed;
  }

  // Into memory of the thread, sorted there, and read again. Steps of the one loop that the other
  // needs, too, are done in both.
  void AddSort(const NestPhase& phase, const Step& sort, Block& out) {
    const IntExpr var = phase.inner[0], zero = ints_.Const(0);
    AllocId memory[2];
    for (AllocId& id : memory) {
      id = static_cast<AllocId>(tree_.allocs.size());
      tree_.allocs.push_back({DType::kI64, Extent(ints_, var), Space::kL2, {}, false});
      out.push_back({Open{id}});
    }
    const IntExpr length = Extent(ints_, var);
    const int64_t first = sort.inst->immediate_int;  // 0: all
    const Binding lanes = sort_lanes_ > 1 ? Binding::kVector : Binding::kSerial;
    Block& keys = AddLoop(var, length, lanes, sort_lanes_, out);
    for (const Step& step : phase.steps) {
      if (&step == &sort) break;
      if (step.inst->op != ScalarOp::kStore) keys.push_back({ToCompute(step)});
    }
    ir::Inst put{.op = ScalarOp::kStore, .dtype = DType::kI64, .operands = sort.inst->operands};
    put.indices = {var};
    keys.push_back({Compute{std::move(put), memory[0], false}});
    Micro micro{MicroKind::kSort, {}, {{-1, memory[0], zero}, {-1, memory[1], zero}}, {length}};
    if (first > 0) {
      micro.kind = MicroKind::kSelect;
      micro.sizes.push_back(ints_.Const(first));
    }
    out.push_back({std::move(micro)});
    const IntExpr end = first > 0 ? ints_.Min(length, ints_.Const(first)) : length;
    Block& results = AddLoop(var, end, lanes, sort_lanes_, out);
    for (const Step* step : NeededByStores(phase, sort)) {
      if (step != &sort) {
        results.push_back({ToCompute(*step)});
        continue;
      }
      ir::Inst get{.op = ScalarOp::kLoad, .dtype = DType::kI64, .result = sort.inst->result};
      get.indices = {var};
      results.push_back({Compute{std::move(get), memory[0], false}});
    }
  }

  void AddPhase(const NestPhase& phase, Block& out) {
    for (const Step& step : phase.steps) {
      if (step.inst->op == ScalarOp::kSort) return AddSort(phase, step, out);
    }
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
  const int sort_lanes_;
  Tree tree_;
  absl::flat_hash_map<ir::ValueId, DType> types_;
};

}  // namespace

absl::StatusOr<Tree> SchedulePlainly(ir::Module& module, const ir::Kernel& kernel, int sort_lanes) {
  KILN_ASSIGN_OR_RETURN(const Nest nest, BuildNest(module, kernel, /*collapse=*/false));
  return PlainScheduler(module, kernel, sort_lanes).Run(nest);
}

}  // namespace kiln::schedule
