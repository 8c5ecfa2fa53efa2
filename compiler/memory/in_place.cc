#include "compiler/memory/in_place.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"

namespace kiln::memory {
namespace {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::Phase;
using ir::ScalarOp;

// Where an instruction stands.
struct Place {
  size_t phase;
  size_t position;
  const Inst* inst;
};

std::vector<Place> Find(const Kernel& kernel, ScalarOp op, BufferId buffer) {
  std::vector<Place> places;
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    const std::vector<Inst>& body = kernel.phases[p].body;
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i].op == op && body[i].buffer == buffer) places.push_back({p, i, &body[i]});
    }
  }
  return places;
}

bool SameLayout(const ir::Buffer& a, const ir::Buffer& b) {
  return a.sizes == b.sizes && a.strides == b.strides && DTypeSize(a.dtype) == DTypeSize(b.dtype);
}

// Whether different points of the loops reach different elements: sorted by coefficient, each
// variable's coefficient is at least the span of the one before.
bool IsInjective(IntContext& ints, const Kernel& kernel, const Phase& phase, IntExpr linear) {
  std::vector<std::pair<IntExpr, IntExpr>> dims;  // coefficient, extent
  for (const std::vector<IntExpr>* vars : {&kernel.outer, &phase.inner}) {
    for (IntExpr var : *vars) {
      if (var.extent().is_const(1)) continue;
      IntExpr coefficient = ints.CoefficientOf(linear, var);
      if (!coefficient || coefficient.range().min < 1) return false;
      dims.emplace_back(coefficient, var.extent());
    }
  }
  std::stable_sort(dims.begin(), dims.end(), [&](const auto& a, const auto& b) {
    return a.first != b.first && ints.ProvablyLess(a.first, b.first);
  });
  for (size_t i = 1; i < dims.size(); ++i) {
    IntExpr span = ints.Mul(dims[i - 1].first, dims[i - 1].second);
    if (!ints.ProvablyLessEqual(span, dims[i].first)) return false;
  }
  return true;
}

// The indices of a load in another phase, in terms of the store's inner variables.
bool SameIndicesInEarlierPhase(IntContext& ints, const Phase& load_phase, const Inst& load,
                               const Phase& store_phase, const Inst& store) {
  if (load_phase.inner.size() != store_phase.inner.size()) return false;
  IntContext::VarMap renamed;
  for (size_t i = 0; i < load_phase.inner.size(); ++i) {
    if (load_phase.inner[i].extent() != store_phase.inner[i].extent()) return false;
    renamed[load_phase.inner[i]] = store_phase.inner[i];
  }
  for (size_t i = 0; i < load.indices.size(); ++i) {
    if (ints.Substitute(load.indices[i], renamed) != store.indices[i]) return false;
  }
  return true;
}

bool MayReuse(Module& module, const Kernel& kernel, BufferId stored, BufferId dying) {
  // A sort's iterations read what others store.
  if (kernel.schedule == ir::Schedule::kSorting) return false;
  IntContext& ints = *module.ints;
  const ir::Buffer& to = module.buffers[stored];
  if (!SameLayout(to, module.buffers[dying])) return false;
  std::vector<Place> stores = Find(kernel, ScalarOp::kStore, stored);
  if (stores.size() != 1 || HasIndirect(*stores[0].inst)) return false;
  const Place& store = stores[0];
  bool contraction = kernel.schedule == ir::Schedule::kContraction;
  if (contraction && store.phase == 0) return false;
  const Phase& store_phase = kernel.phases[store.phase];
  for (const Place& load : Find(kernel, ScalarOp::kLoad, dying)) {
    if (HasIndirect(*load.inst) || load.phase > store.phase) return false;
    if (load.phase == store.phase) {
      if (load.position > store.position || load.inst->indices != store.inst->indices) return false;
    } else if (contraction || !SameIndicesInEarlierPhase(ints, kernel.phases[load.phase],
                                                         *load.inst, store_phase, *store.inst)) {
      return false;
    }
  }
  return IsInjective(ints, kernel, store_phase, LinearIndex(ints, to, store.inst->indices));
}

}  // namespace

bool HasIndirect(const Inst& inst) {
  return std::any_of(inst.indices.begin(), inst.indices.end(),
                     [](IntExpr e) { return ir::ContainsKind(e, ir::IntKind::kIndirect); });
}

std::vector<BufferId> ChooseInPlace(Module& module, const Kernel& kernel,
                                    const std::vector<BufferId>& stored,
                                    const std::vector<BufferId>& dying) {
  std::vector<BufferId> chosen;
  std::vector<BufferId> left = dying;
  for (BufferId to : stored) {
    auto it = std::find_if(left.begin(), left.end(),
                           [&](BufferId from) { return MayReuse(module, kernel, to, from); });
    chosen.push_back(it == left.end() ? -1 : *it);
    if (it != left.end()) left.erase(it);
  }
  return chosen;
}

}  // namespace kiln::memory
