// What dividing took apart is put together again where quotient and remainder meet in one sum.
// That makes the round trip of a reshape (split an index, merge it back) disappear.
#include "compiler/ir/int_impl.h"

namespace kiln::ir {

// Subtracts `part` where each of its terms occurs in `sum` with the same coefficient; the constant
// is taken away in any case. False, and `sum` unchanged, where one does not.
bool IntContext::Impl::TakeAway(Sum& sum, const Sum& part) {
  if (part.overflow) return false;
  absl::InlinedVector<size_t, 6> found;
  for (const Term& want : part.terms) {
    size_t i = 0;
    while (i < sum.terms.size() &&
           !(sum.terms[i].base == want.base && sum.terms[i].coef == want.coef)) {
      ++i;
    }
    if (i == sum.terms.size()) return false;
    found.push_back(i);
  }
  int64_t constant;
  if (__builtin_sub_overflow(sum.constant, part.constant, &constant)) return false;
  sum.constant = constant;
  for (size_t i : found) sum.terms[i].coef = 0;  // Normalize drops them
  return true;
}

bool IntContext::Impl::Recombine(Sum& sum) {
  for (size_t i = 0; i < sum.terms.size(); ++i) {
    IntExpr base = sum.terms[i].base;  // a copy: the terms change under Factors otherwise
    for (IntExpr factor : Factors(base)) {
      if (factor.kind() == IntKind::kMod && RecombineMod(sum, i, factor)) return true;
      if (factor.kind() == IntKind::kFloorDiv && RecombineFloorDiv(sum, i, factor)) return true;
    }
  }
  return false;
}

// c*p*mod(x, n) + c*p*n*floordiv(x, n)             -> c*p*x
// c*p*mod(x, n) + c*p*n*mod(floordiv(x, n) + k, m) -> c*p*mod(x + k*n, n*m)
bool IntContext::Impl::RecombineMod(Sum& sum, size_t term, IntExpr mod) {
  IntExpr x = mod.operands()[0], n = mod.operands()[1];
  Sum outer;  // c*p
  IntExpr p;
  DivideBase(sum.terms[term].base, mod, &p);
  AddTerm(outer, sum.terms[term].coef, p);
  Sum outer_n;  // c*p*n
  AddProduct(outer_n, outer, ToSum(n));
  Normalize(outer_n);
  if (outer_n.overflow) return false;

  IntExpr quotient = FloorDiv(x, n);
  Sum rest = sum;
  rest.terms[term].coef = 0;
  Sum part;
  AddProduct(part, outer_n, ToSum(quotient));
  Normalize(part);
  if (TakeAway(rest, part)) {
    AddProduct(rest, outer, ToSum(x));
    Normalize(rest);
    if (rest.overflow) return false;
    sum = std::move(rest);
    return true;
  }

  if (outer_n.terms.size() + (outer_n.constant != 0) != 1 || n.range().min < 0) return false;
  for (const Term& other : sum.terms) {
    IntExpr other_base = other.base;
    for (IntExpr factor : Factors(other_base)) {
      if (factor.kind() != IntKind::kMod || factor == mod) continue;
      IntExpr m = factor.operands()[1];
      Sum k = ToSum(factor.operands()[0]);
      if (!TakeAway(k, ToSum(quotient))) continue;
      Sum inner;
      AddProduct(inner, outer_n, ToSum(factor));
      Normalize(inner);
      rest = sum;
      rest.terms[term].coef = 0;
      if (m.range().min < 0 || !TakeAway(rest, inner)) continue;
      Sum inside = ToSum(x);
      Normalize(k);
      AddProduct(inside, k, ToSum(n));
      IntExpr numerator = Build(inside);
      if (!numerator) return false;
      AddProduct(rest, outer, ToSum(Mod(numerator, Mul(n, m))));
      Normalize(rest);
      if (rest.overflow) return false;
      sum = std::move(rest);
      return true;
    }
  }
  return false;
}

// c*p*x - c*p*n*floordiv(x, n) -> c*p*mod(x, n)
bool IntContext::Impl::RecombineFloorDiv(Sum& sum, size_t term, IntExpr div) {
  IntExpr x = div.operands()[0], n = div.operands()[1];
  Sum divisor = ToSum(n);
  if (divisor.terms.size() + (divisor.constant != 0) != 1) return false;
  int64_t n_coef = divisor.terms.empty() ? divisor.constant : divisor.terms[0].coef;
  IntExpr n_base = divisor.terms.empty() ? IntExpr() : divisor.terms[0].base;
  IntExpr p;
  if (n_coef == 0 || n_coef == -1 || sum.terms[term].coef == IntRange::kMinInt ||
      sum.terms[term].coef % n_coef != 0 || !DivideBase(sum.terms[term].base, div, &p) ||
      !DivideBase(p, n_base, &p)) {
    return false;
  }
  Sum outer;  // c*p
  AddTerm(outer, -(sum.terms[term].coef / n_coef), p);
  Sum part;
  AddProduct(part, outer, ToSum(x));
  Normalize(part);
  Sum rest = sum;
  rest.terms[term].coef = 0;
  if (!TakeAway(rest, part)) return false;
  AddProduct(rest, outer, ToSum(Mod(x, n)));
  Normalize(rest);
  if (rest.overflow) return false;
  sum = std::move(rest);
  return true;
}

}  // namespace kiln::ir
