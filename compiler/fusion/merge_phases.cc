#include "compiler/fusion/merge_phases.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/fusion/cost.h"
#include "compiler/fusion/join_kernels.h"
#include "compiler/fusion/match_loops.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

namespace {

constexpr double kMaxRecomputedOperations = 4;
constexpr int kMaxRecomputedLoads = 3;

struct Definition {
  size_t phase = 0;
  const Inst* inst = nullptr;
};

// What each value and each buffer of a kernel comes from. Stays valid while no body changes.
struct Definitions {
  explicit Definitions(const Kernel& kernel) : values(kernel.num_values) {
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      for (const Inst& inst : kernel.phases[p].body) {
        if (inst.op == ScalarOp::kStore) stores[inst.buffer] = {p, &inst};
        if (inst.result != ir::kNoValue) values[inst.result] = {p, &inst};
      }
    }
  }
  std::vector<Definition> values;
  absl::flat_hash_map<BufferId, Definition> stores;
};

class PhaseMerger {
 public:
  PhaseMerger(IntContext& ints, Kernel& kernel) : ints_(ints), kernel_(kernel) {}

  void Run() {
    for (bool changed = true; changed;) {
      changed = false;
      const Definitions definitions(kernel_);
      for (size_t q = 1; q < kernel_.phases.size() && !changed; ++q) {
        for (size_t p = q; p-- > 0 && !changed;) {
          const Target target = FindTarget(definitions, p, q);
          if (target == Target::kNone) continue;
          Merge(p, q, target == Target::kFirst);
          changed = true;
        }
      }
    }
  }

 private:
  enum class Target { kNone, kFirst, kSecond };
  enum class Dependence { kNone, kWithinPoint, kFull };

  // How phase q depends on phase p: kWithinPoint where one body can hold both.
  Dependence DependenceOf(const Definitions& definitions, size_t p, size_t q) const {
    Dependence worst = Dependence::kNone;
    for (const Inst& inst : kernel_.phases[q].body) {
      for (ValueId operand : inst.operands) {
        const Definition& definition = definitions.values[operand];
        if (definition.phase != p) continue;
        if (definition.inst->op == ScalarOp::kReduce) return Dependence::kFull;
        worst = Dependence::kWithinPoint;
      }
      if (inst.op != ScalarOp::kLoad) continue;
      const auto store = definitions.stores.find(inst.buffer);
      if (store == definitions.stores.end() || store->second.phase != p) continue;
      if (inst.has_mask || !SameElement(ints_, *store->second.inst, kernel_.phases[p].inner, inst,
                                        kernel_.phases[q].inner)) {
        return Dependence::kFull;
      }
      worst = Dependence::kWithinPoint;
    }
    return worst;
  }

  // Which of the two phases can hold the bodies of both.
  Target FindTarget(const Definitions& definitions, size_t p, size_t q) const {
    const bool is_contraction = kernel_.schedule == ir::Schedule::kContraction && p == 0;
    if (is_contraction || !EqualExtents(kernel_.phases[p].inner, kernel_.phases[q].inner) ||
        DependenceOf(definitions, p, q) == Dependence::kFull) {
      return Target::kNone;
    }
    bool q_waits = false, p_is_waited_for = false;
    for (size_t between = p + 1; between < q; ++between) {
      q_waits |= DependenceOf(definitions, between, q) != Dependence::kNone;
      p_is_waited_for |= DependenceOf(definitions, p, between) != Dependence::kNone;
    }
    if (!q_waits) return Target::kFirst;
    return p_is_waited_for ? Target::kNone : Target::kSecond;
  }

  void Merge(size_t p, size_t q, bool into_first) {
    Phase merged = std::move(kernel_.phases[p]);
    const IntContext::VarMap rename = RenameLoops(kernel_.phases[q].inner, merged.inner);
    for (Inst& inst : kernel_.phases[q].body) {
      SubstituteIndices(ints_, rename, inst);
      merged.body.push_back(std::move(inst));
    }
    ForwardWithin(merged);
    kernel_.phases[into_first ? p : q] = std::move(merged);
    kernel_.phases.erase(kernel_.phases.begin() + (into_first ? q : p));
  }

  // Loads of what the same body has stored become the value.
  void ForwardWithin(Phase& phase) {
    absl::flat_hash_map<BufferId, ValueId> stored;
    absl::flat_hash_map<ValueId, ValueId> alias;
    std::vector<Inst> body;
    for (Inst& inst : phase.body) {
      for (ValueId& operand : inst.operands) {
        if (auto it = alias.find(operand); it != alias.end()) operand = it->second;
      }
      if (inst.op == ScalarOp::kStore) stored[inst.buffer] = inst.operands.back();
      if (inst.op == ScalarOp::kLoad) {
        if (auto it = stored.find(inst.buffer); it != stored.end()) {
          alias[inst.result] = it->second;
          continue;
        }
      }
      body.push_back(std::move(inst));
    }
    phase.body = std::move(body);
  }

  IntContext& ints_;
  Kernel& kernel_;
};

// Computes the elements of one buffer again where they are loaded.
class Recomputer {
 public:
  Recomputer(IntContext& ints, Kernel& kernel) : ints_(ints), kernel_(kernel) {}

  // True where the buffer needs no memory any more.
  bool Run(BufferId buffer) {
    const Definitions definitions(kernel_);
    const Definition store = definitions.stores.at(buffer);
    std::vector<const Inst*> slice;
    const bool is_cheap = CollectSlice(definitions, store, slice);
    bool all = true;
    std::vector<std::vector<Inst>> bodies;
    for (size_t q = 0; q < kernel_.phases.size(); ++q) {
      bodies.push_back(RewritePhase(store, slice, is_cheap, q, all));
    }
    for (size_t q = 0; q < bodies.size(); ++q) kernel_.phases[q].body = std::move(bodies[q]);
    if (all) DropStore(buffer);
    return all;
  }

 private:
  // The instructions of the storing phase that make the stored value; false if they cost too much.
  bool CollectSlice(const Definitions& definitions, const Definition& store,
                    std::vector<const Inst*>& slice) const {
    std::vector<bool> needed(kernel_.num_values, false);
    needed[store.inst->operands.back()] = true;
    const std::vector<Inst>& body = kernel_.phases[store.phase].body;
    double operations = 0;
    int loads = 0;
    for (size_t i = body.size(); i-- > 0;) {
      const Inst& inst = body[i];
      if (inst.result == ir::kNoValue || !needed[inst.result]) continue;
      if (inst.op == ScalarOp::kScan) return false;  // all of it for each element
      slice.push_back(&inst);
      for (ValueId operand : inst.operands) {
        if (definitions.values[operand].phase == store.phase) needed[operand] = true;
      }
      operations += Info(inst.op).cost;
      loads += inst.op == ScalarOp::kLoad ? 1 : 0;
    }
    std::reverse(slice.begin(), slice.end());
    return operations <= kMaxRecomputedOperations && loads <= kMaxRecomputedLoads;
  }

  std::vector<Inst> RewritePhase(const Definition& store, const std::vector<const Inst*>& slice,
                                 bool is_cheap, size_t q, bool& all) {
    const Phase& phase = kernel_.phases[q];
    const std::vector<IntExpr>& inner = kernel_.phases[store.phase].inner;
    absl::flat_hash_map<ValueId, ValueId> alias;
    std::vector<Inst> body;
    for (const Inst& original : phase.body) {
      Inst inst = original;
      for (ValueId& operand : inst.operands) {
        if (auto it = alias.find(operand); it != alias.end()) operand = it->second;
      }
      if (inst.op == ScalarOp::kLoad && inst.buffer == store.inst->buffer) {
        if (is_cheap && !inst.has_mask &&
            SameElement(ints_, *store.inst, inner, inst, phase.inner)) {
          alias[inst.result] =
              CopySlice(slice, store.inst->operands.back(), RenameLoops(inner, phase.inner), body);
          continue;
        }
        all = false;
      }
      body.push_back(std::move(inst));
    }
    return body;
  }

  ValueId CopySlice(const std::vector<const Inst*>& slice, ValueId stored,
                    const IntContext::VarMap& rename, std::vector<Inst>& body) {
    absl::flat_hash_map<ValueId, ValueId> copies;
    for (const Inst* inst : slice) {
      Inst copy = *inst;
      for (ValueId& operand : copy.operands) {
        if (auto it = copies.find(operand); it != copies.end()) operand = it->second;
      }
      SubstituteIndices(ints_, rename, copy);
      copies[inst->result] = copy.result = kernel_.num_values++;
      body.push_back(std::move(copy));
    }
    const auto it = copies.find(stored);
    return it == copies.end() ? stored : it->second;
  }

  void DropStore(BufferId buffer) {
    for (Phase& phase : kernel_.phases) {
      std::erase_if(phase.body, [&](const Inst& inst) {
        return inst.op == ScalarOp::kStore && inst.buffer == buffer;
      });
    }
  }

  IntContext& ints_;
  Kernel& kernel_;
};

}  // namespace

void MergePhases(ir::Module& module, Kernel& kernel) {
  PhaseMerger(*module.ints, kernel).Run();
}

void DropPrivateStores(ir::Module& module, Kernel& kernel,
                       const std::function<bool(BufferId)>& is_private) {
  std::vector<BufferId> buffers;
  for (const Phase& phase : kernel.phases) {
    for (const Inst& inst : phase.body) {
      if (inst.op == ScalarOp::kStore && is_private(inst.buffer)) buffers.push_back(inst.buffer);
    }
  }
  // The last first: what a dropped buffer was computed from may then be free to go, too.
  std::reverse(buffers.begin(), buffers.end());
  for (BufferId buffer : buffers) Recomputer(*module.ints, kernel).Run(buffer);
}

}  // namespace kiln::fusion
