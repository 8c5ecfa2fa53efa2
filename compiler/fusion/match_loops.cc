#include "compiler/fusion/match_loops.h"

#include <algorithm>

#include "compiler/fusion/fusion_graph.h"

namespace kiln::fusion {

using ir::IntContext;
using ir::IntExpr;
using ir::IntKind;
using ir::Kernel;

bool LinearForm::Uses(IntExpr var) const {
  return std::any_of(digits.begin(), digits.end(), [&](const Digit& d) { return d.var == var; });
}
bool LinearForm::UsesAll(const std::vector<IntExpr>& vars) const {
  return std::all_of(vars.begin(), vars.end(), [&](IntExpr v) { return Uses(v); });
}
bool LinearForm::UsesAny(const std::vector<IntExpr>& vars) const {
  return std::any_of(vars.begin(), vars.end(), [&](IntExpr v) { return Uses(v); });
}

IntExpr Position(IntContext& ints, const std::vector<IntExpr>& sizes,
                 const std::vector<IntExpr>& indices) {
  IntExpr position = ints.Const(0);
  IntExpr stride = ints.Const(1);
  for (size_t k = sizes.size(); k-- > 0;) {
    position = ints.Add(position, ints.Mul(indices[k], stride));
    stride = ints.Mul(stride, sizes[k]);
  }
  return position;
}

std::optional<LinearForm> FindLinearForm(IntContext& ints, const std::vector<IntExpr>& sizes,
                                         const std::vector<IntExpr>& indices,
                                         const std::vector<IntExpr>& vars) {
  LinearForm form;
  form.position = Position(ints, sizes, indices);
  if (ContainsKind(form.position, IntKind::kIndirect)) return std::nullopt;
  std::vector<LinearForm::Digit> left;
  IntExpr sum = ints.Const(0);
  for (IntExpr var : vars) {
    const IntExpr stride = ints.CoefficientOf(form.position, var);
    if (!stride) return std::nullopt;
    if (stride.is_const(0)) continue;
    left.push_back({var, stride});
    sum = ints.Add(sum, ints.Mul(stride, var));
  }
  if (sum != form.position) return std::nullopt;
  form.total = ints.Const(1);
  while (!left.empty()) {
    const auto next = std::find_if(left.begin(), left.end(), [&](const LinearForm::Digit& d) {
      return d.stride == form.total;
    });
    if (next == left.end()) return std::nullopt;
    form.digits.push_back(*next);
    form.total = ints.Mul(form.total, next->var.extent());
    left.erase(next);
  }
  return form;
}

IntContext::VarMap SolveForm(IntContext& ints, const LinearForm& form, IntExpr position) {
  IntContext::VarMap map;
  for (size_t i = 0; i < form.digits.size(); ++i) {
    const LinearForm::Digit& digit = form.digits[i];
    IntExpr value = ints.FloorDiv(position, digit.stride);
    if (i + 1 < form.digits.size()) value = ints.Mod(value, digit.var.extent());
    map[digit.var] = value;
  }
  return map;
}

bool EqualExtents(const std::vector<IntExpr>& a, const std::vector<IntExpr>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](IntExpr x, IntExpr y) { return x.extent() == y.extent(); });
}

IntContext::VarMap RenameLoops(const std::vector<IntExpr>& from, const std::vector<IntExpr>& to) {
  IntContext::VarMap map;
  for (size_t i = 0; i < from.size(); ++i) map[from[i]] = to[i];
  return map;
}

std::vector<IntExpr> CloneLoops(IntContext& ints, const std::vector<IntExpr>& loops) {
  std::vector<IntExpr> clones;
  for (IntExpr var : loops) clones.push_back(ints.NewVar(var.extent()));
  return clones;
}

void SubstituteIndices(IntContext& ints, const IntContext::VarMap& map, ir::Inst& inst) {
  for (IntExpr& index : inst.indices) index = ints.Substitute(index, map);
}

namespace {

IntExpr TotalExtent(IntContext& ints, const std::vector<IntExpr>& loops) {
  IntExpr total = ints.Const(1);
  for (IntExpr var : loops) total = ints.Mul(total, var.extent());
  return total;
}

bool HasOnlyVars(IntExpr expr, const std::vector<IntExpr>& vars) {
  bool only = true;
  ForEachLeaf(expr, [&](IntExpr leaf) {
    if (leaf.kind() == IntKind::kVar && std::find(vars.begin(), vars.end(), leaf) == vars.end()) {
      only = false;
    }
  });
  return only;
}

std::vector<IntExpr> Concatenate(const std::vector<IntExpr>& a, const std::vector<IntExpr>& b) {
  std::vector<IntExpr> both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

}  // namespace

std::optional<LoopMatch> MatchLoops(ir::Module& module, const AccessSite& host,
                                    const AccessSite& guest) {
  IntContext& ints = *module.ints;
  const std::vector<IntExpr>& sizes = module.buffers[host.inst->buffer].sizes;
  const std::vector<IntExpr>& host_outer = host.kernel->outer;
  const std::vector<IntExpr>& guest_outer = guest.kernel->outer;
  const std::vector<IntExpr>& host_inner = host.kernel->phases[host.phase].inner;
  const std::vector<IntExpr>& guest_inner = guest.kernel->phases[guest.phase].inner;
  const auto host_form =
      FindLinearForm(ints, sizes, host.inst->indices, Concatenate(host_outer, host_inner));
  const auto guest_form =
      FindLinearForm(ints, sizes, guest.inst->indices, Concatenate(guest_outer, guest_inner));
  if (!host_form || !guest_form || host_form->total != guest_form->total ||
      !host_form->UsesAll(host_outer)) {
    return std::nullopt;
  }
  const bool host_uses_inner = host_form->UsesAny(host_inner);
  const bool guest_uses_inner = guest_form->UsesAny(guest_inner);
  const bool guest_is_pointwise = IsPointwise(*guest.kernel);
  LoopMatch match;
  if (!host_uses_inner && !guest_uses_inner) {
    match.guest_vars = SolveForm(ints, *guest_form, host_form->position);
    for (IntExpr var : guest_outer) {
      if (guest_form->Uses(var)) continue;
      if (!guest_is_pointwise) return std::nullopt;
      match.inner.push_back(ints.NewVar(var.extent()));
      match.guest_vars[var] = match.inner.back();
    }
    return match;
  }
  if (!guest_form->UsesAll(guest_outer)) return std::nullopt;
  if (!guest_uses_inner) {
    if (!guest_is_pointwise || !host_form->UsesAll(host_inner)) return std::nullopt;
    match.inner = CloneLoops(ints, host_inner);
    match.guest_vars =
        SolveForm(ints, *guest_form,
                  ints.Substitute(host_form->position, RenameLoops(host_inner, match.inner)));
    return match;
  }
  // Both loop inside: the outer loops must correspond on their own, and then so do the inner ones.
  if (!host_uses_inner || TotalExtent(ints, host_outer) != TotalExtent(ints, guest_outer)) {
    return std::nullopt;
  }
  const IntContext::VarMap solution = SolveForm(ints, *guest_form, host_form->position);
  for (IntExpr var : guest_outer) {
    match.guest_vars[var] = solution.at(var);
    if (!HasOnlyVars(solution.at(var), host_outer)) return std::nullopt;
  }
  return match;
}

}  // namespace kiln::fusion
