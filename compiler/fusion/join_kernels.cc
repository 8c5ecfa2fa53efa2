#include "compiler/fusion/join_kernels.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/fusion/fusion_graph.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::IntKind;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

namespace {

struct StoreSite {
  size_t phase;
  const Inst* store;
};
using StoreSites = absl::flat_hash_map<BufferId, StoreSite>;

// The kernel's phases within other outer loops.
std::vector<Phase> PhasesOfGuest(IntContext& ints, const Kernel& guest, const LoopMatch& match) {
  std::vector<Phase> phases = guest.phases;
  if (!match.inner.empty()) {
    // The guest is pointwise: its phases run as one.
    for (size_t p = 1; p < phases.size(); ++p) {
      phases[0].body.insert(phases[0].body.end(), std::make_move_iterator(phases[p].body.begin()),
                            std::make_move_iterator(phases[p].body.end()));
    }
    phases.resize(1);
    phases[0].inner = match.inner;
  }
  for (Phase& phase : phases) {
    for (Inst& inst : phase.body) SubstituteIndices(ints, match.guest_vars, inst);
  }
  return phases;
}

void OffsetValues(int offset, std::vector<Phase>& phases) {
  for (Phase& phase : phases) {
    for (Inst& inst : phase.body) {
      for (ValueId& operand : inst.operands) operand += offset;
      if (inst.result != ir::kNoValue) inst.result += offset;
    }
  }
}

enum class Usage { kNone, kInnerOnly, kOuterOnly, kBoth };

Usage UsageOf(IntExpr index, const std::vector<IntExpr>& inner) {
  bool uses_inner = false, uses_outer = false;
  ForEachLeaf(index, [&](IntExpr leaf) {
    if (leaf.kind() != IntKind::kVar) return;
    bool is_inner = false;
    for (IntExpr var : inner) is_inner |= var == leaf;
    (is_inner ? uses_inner : uses_outer) = true;
  });
  if (uses_inner) return uses_outer ? Usage::kBoth : Usage::kInnerOnly;
  return uses_outer ? Usage::kOuterOnly : Usage::kNone;
}

// Whether `load` can only read what its own outer point has stored: dimensions that depend on the
// outer loops alone are equal, and no other dimension depends on them.
bool ReadsOwnPoint(const StoreSite& store, const std::vector<IntExpr>& store_inner,
                   const Inst& load, const std::vector<IntExpr>& load_inner) {
  for (size_t k = 0; k < load.indices.size(); ++k) {
    const IntExpr stored = store.store->indices[k], loaded = load.indices[k];
    const Usage of_store = UsageOf(stored, store_inner), of_load = UsageOf(loaded, load_inner);
    if (of_store == Usage::kBoth || of_load == Usage::kBoth) return false;
    const bool outer = of_store == Usage::kOuterOnly || of_load == Usage::kOuterOnly;
    if (outer && stored != loaded) return false;
    if (ContainsKind(stored, IntKind::kIndirect) || ContainsKind(loaded, IntKind::kIndirect)) {
      return false;
    }
  }
  return true;
}

// Replaces or admits the loads in `phases` of what `first` stores; false where one is illegal.
bool ForwardStores(IntContext& ints, const std::vector<Phase>& first, const StoreSites& stores,
                   int num_values, std::vector<Phase>& phases) {
  std::vector<ValueId> alias(num_values, ir::kNoValue);
  for (Phase& phase : phases) {
    std::vector<Inst> body;
    for (Inst& inst : phase.body) {
      for (ValueId& operand : inst.operands) {
        if (alias[operand] != ir::kNoValue) operand = alias[operand];
      }
      const auto site = inst.op == ScalarOp::kLoad ? stores.find(inst.buffer) : stores.end();
      if (site == stores.end()) {
        body.push_back(std::move(inst));
        continue;
      }
      const std::vector<IntExpr>& inner = first[site->second.phase].inner;
      if (inst.has_mask || NumIndirect(inst) > 0) return false;
      if (inner.empty()) {
        if (inst.indices != site->second.store->indices) return false;
        alias[inst.result] = site->second.store->operands.back();
        continue;
      }
      if (!SameElement(ints, *site->second.store, inner, inst, phase.inner) &&
          !ReadsOwnPoint(site->second, inner, inst, phase.inner)) {
        return false;
      }
      if (phase.inner.empty()) return false;  // one element of a row: not worth the trouble
      body.push_back(std::move(inst));
    }
    phase.body = std::move(body);
  }
  return true;
}

}  // namespace

bool SameElement(IntContext& ints, const Inst& a, const std::vector<IntExpr>& a_inner,
                 const Inst& b, const std::vector<IntExpr>& b_inner) {
  if (a.buffer != b.buffer || !EqualExtents(a_inner, b_inner)) return false;
  const IntContext::VarMap rename = RenameLoops(b_inner, a_inner);
  for (size_t k = 0; k < a.indices.size(); ++k) {
    if (ContainsKind(a.indices[k], IntKind::kIndirect)) return false;
    if (a.indices[k] != ints.Substitute(b.indices[k], rename)) return false;
  }
  return true;
}

std::optional<Kernel> JoinKernels(ir::Module& module, const Kernel& first, const Kernel& second,
                                  bool first_is_host, const LoopMatch& match) {
  IntContext& ints = *module.ints;
  Kernel joined;
  joined.name = second.name;
  joined.origins = first.origins;
  AppendOrigins(second.origins, joined.origins);
  joined.outer = first_is_host ? first.outer : second.outer;
  joined.schedule = first.schedule;
  joined.num_values = first.num_values + second.num_values;
  joined.phases = first_is_host ? first.phases : PhasesOfGuest(ints, first, match);
  std::vector<Phase> phases = first_is_host ? PhasesOfGuest(ints, second, match) : second.phases;
  OffsetValues(first.num_values, phases);

  StoreSites stores;
  for (size_t p = 0; p < joined.phases.size(); ++p) {
    for (const Inst& inst : joined.phases[p].body) {
      if (inst.op == ScalarOp::kStore) stores[inst.buffer] = {p, &inst};
    }
  }
  if (!ForwardStores(ints, joined.phases, stores, joined.num_values, phases)) return std::nullopt;
  // `stores` points into phases that must not move before this.
  for (Phase& phase : phases) joined.phases.push_back(std::move(phase));
  return joined;
}

}  // namespace kiln::fusion
