// The public face of IntContext; the work is in the int_*.cc files beside this one.
#include "compiler/ir/int_expr.h"

#include <utility>

#include "compiler/ir/int_impl.h"

namespace kiln::ir {

IntKind IntExpr::kind() const {
  return node_->kind;
}
int64_t IntExpr::value() const {
  return node_->value;
}
int IntExpr::id() const {
  return node_->id;
}
IntExpr IntExpr::extent() const {
  return node_->extent;
}
absl::Span<const IntExpr> IntExpr::operands() const {
  return absl::Span<const IntExpr>(node_->operands, node_->num_operands);
}
IntRange IntExpr::range() const {
  return node_->range;
}

IntContext::IntContext() : impl_(std::make_unique<Impl>()) {}
IntContext::~IntContext() = default;

IntExpr IntContext::Const(int64_t value) {
  return impl_->Const(value);
}

IntExpr IntContext::NewSymbol(std::string name, int64_t min, int64_t max, int64_t hint) {
  impl_->symbols.push_back({std::move(name), min, max, hint});
  return Symbol(static_cast<int>(impl_->symbols.size()) - 1);
}

IntExpr IntContext::Symbol(int id) {
  return impl_->Intern(IntKind::kSymbol, id, 0, IntExpr(), {});
}

IntExpr IntContext::NewVar(IntExpr extent) {
  impl_->vars.push_back({extent});
  int id = static_cast<int>(impl_->vars.size()) - 1;
  return impl_->Intern(IntKind::kVar, id, 0, extent, {});
}

IntExpr IntContext::Indirect(int operand, IntExpr extent) {
  return impl_->Intern(IntKind::kIndirect, operand, 0, extent, {});
}

IntExpr IntContext::Add(IntExpr a, IntExpr b) {
  return impl_->Add(a, b);
}
IntExpr IntContext::Sub(IntExpr a, IntExpr b) {
  return impl_->Sub(a, b);
}
IntExpr IntContext::Mul(IntExpr a, IntExpr b) {
  return impl_->Mul(a, b);
}
IntExpr IntContext::FloorDiv(IntExpr a, IntExpr b) {
  return impl_->FloorDiv(a, b);
}
IntExpr IntContext::Mod(IntExpr a, IntExpr b) {
  return impl_->Mod(a, b);
}

IntExpr IntContext::CeilDiv(IntExpr a, IntExpr b) {
  if (b.range().min >= 0) return FloorDiv(Add(a, Add(b, -1)), b);
  return Sub(impl_->zero, FloorDiv(Sub(impl_->zero, a), b));
}

IntExpr IntContext::Min(IntExpr a, IntExpr b) {
  return impl_->MinMax(IntKind::kMin, {a, b});
}
IntExpr IntContext::Max(IntExpr a, IntExpr b) {
  return impl_->MinMax(IntKind::kMax, {a, b});
}

IntExpr IntContext::Product(absl::Span<const IntExpr> factors) {
  IntExpr product = impl_->one;
  for (IntExpr factor : factors) product = Mul(product, factor);
  return product;
}

bool IntContext::ProvablyLess(IntExpr a, IntExpr b) {
  return impl_->ProvablyLessEqual(a, b, 1);
}
bool IntContext::ProvablyLessEqual(IntExpr a, IntExpr b) {
  return impl_->ProvablyLessEqual(a, b, 0);
}

void IntContext::set_budget(int64_t steps) {
  impl_->budget = steps;
}
bool IntContext::IsExhausted() const {
  return impl_->steps > impl_->budget;
}
int64_t IntContext::budget() const {
  return impl_->budget;
}
int64_t IntContext::steps() const {
  return impl_->steps;
}

const std::vector<IntContext::SymbolInfo>& IntContext::symbols() const {
  return impl_->symbols;
}
const std::vector<IntContext::VarInfo>& IntContext::vars() const {
  return impl_->vars;
}

}  // namespace kiln::ir
