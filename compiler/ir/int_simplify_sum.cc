// Sums and products: terms are flattened, sorted and collected, and products of small sums
// distributed, so that equal polynomials are the same node.
#include <algorithm>

#include "compiler/ir/int_impl.h"

namespace kiln::ir {
namespace {

// A product of sums is distributed where the result has at most this many terms.
constexpr size_t kMaxDistributedTerms = 16;

constexpr uint16_t kDivOrMod = static_cast<uint16_t>((1u << static_cast<int>(IntKind::kFloorDiv)) |
                                                     (1u << static_cast<int>(IntKind::kMod)));

size_t NumParts(const Sum& sum) {
  return sum.terms.size() + (sum.constant != 0 ? 1 : 0);
}

}  // namespace

void IntContext::Impl::AddTerm(Sum& sum, int64_t coef, IntExpr base) {
  if (!base) {
    sum.overflow |= __builtin_add_overflow(sum.constant, coef, &sum.constant);
  } else if (coef != 0) {
    sum.terms.push_back({coef, base});
  }
}

// Adds scale * e.
void IntContext::Impl::Accumulate(Sum& sum, IntExpr e, int64_t scale) {
  const IntNode& node = *e.node();
  int64_t coef = scale;
  if (node.kind == IntKind::kConst) {
    sum.overflow |= __builtin_mul_overflow(scale, node.value, &coef);
    AddTerm(sum, coef, IntExpr());
  } else if (node.kind == IntKind::kAdd && !node.unfolded) {
    for (IntExpr operand : e.operands()) Accumulate(sum, operand, scale);
  } else if (node.kind == IntKind::kMul && !node.unfolded && node.extent) {
    sum.overflow |= __builtin_mul_overflow(scale, e.operands().back().value(), &coef);
    AddTerm(sum, coef, node.extent);
  } else {
    AddTerm(sum, coef, e);
  }
}

Sum IntContext::Impl::ToSum(IntExpr e) {
  Sum sum;
  Accumulate(sum, e, 1);
  return sum;
}

void IntContext::Impl::AddScaled(Sum& sum, const Sum& other, int64_t scale) {
  int64_t coef = 0;
  sum.overflow |= other.overflow || __builtin_mul_overflow(other.constant, scale, &coef);
  AddTerm(sum, coef, IntExpr());
  for (const Term& t : other.terms) {
    sum.overflow |= __builtin_mul_overflow(t.coef, scale, &coef);
    AddTerm(sum, coef, t.base);
  }
}

// Adds a * b.
void IntContext::Impl::AddProduct(Sum& sum, const Sum& a, const Sum& b) {
  AddScaled(sum, b, a.constant);
  for (const Term& x : a.terms) {
    int64_t coef;
    sum.overflow |= __builtin_mul_overflow(x.coef, b.constant, &coef);
    AddTerm(sum, coef, x.base);
    for (const Term& y : b.terms) {
      sum.overflow |= __builtin_mul_overflow(x.coef, y.coef, &coef);
      AddTerm(sum, coef, MulBases(x.base, y.base));
    }
  }
}

// Sorts the terms, merges equal bases and drops zeros.
void IntContext::Impl::Normalize(Sum& sum) {
  if (sum.overflow) return;
  auto less = [](const Term& a, const Term& b) { return CompareExprs(a.base, b.base) < 0; };
  if (!std::is_sorted(sum.terms.begin(), sum.terms.end(), less)) {
    std::sort(sum.terms.begin(), sum.terms.end(), less);
  }
  size_t kept = 0;
  for (size_t i = 0; i < sum.terms.size();) {
    Term merged = sum.terms[i++];
    for (; i < sum.terms.size() && sum.terms[i].base == merged.base; ++i) {
      sum.overflow |= __builtin_add_overflow(merged.coef, sum.terms[i].coef, &merged.coef);
    }
    if (merged.coef != 0) sum.terms[kept++] = merged;
  }
  sum.terms.resize(kept);
}

IntExpr IntContext::Impl::Build(Sum& sum) {
  Normalize(sum);
  uint16_t kinds = 0;
  for (const Term& t : sum.terms) kinds |= t.base.node()->kinds_mask;
  if ((kinds & kDivOrMod) != 0 && NumParts(sum) > 1) {
    while (!sum.overflow && Recombine(sum)) {
    }
  }
  return sum.overflow ? IntExpr() : BuildNormalized(sum);
}

IntExpr IntContext::Impl::BuildNormalized(const Sum& sum) {
  if (sum.terms.empty()) return Const(sum.constant);
  if (NumParts(sum) == 1) return MakeTerm(sum.terms[0].coef, sum.terms[0].base);
  absl::InlinedVector<IntExpr, 8> operands;
  for (const Term& t : sum.terms) operands.push_back(MakeTerm(t.coef, t.base));
  if (sum.constant != 0) operands.push_back(Const(sum.constant));
  return Node(IntKind::kAdd, operands);
}

IntExpr IntContext::Impl::MakeTerm(int64_t coef, IntExpr base) {
  if (!base) return Const(coef);
  if (coef == 1) return base;
  absl::Span<const IntExpr> factors = Factors(base);
  absl::InlinedVector<IntExpr, 6> operands(factors.begin(), factors.end());
  operands.push_back(Const(coef));
  return Intern(IntKind::kMul, -1, 0, base, operands);
}

// The product of `factors`, none of them a constant or a product; null for none.
IntExpr IntContext::Impl::MakeBase(absl::InlinedVector<IntExpr, 4>& factors) {
  if (factors.empty()) return IntExpr();
  if (factors.size() == 1) return factors[0];
  std::sort(factors.begin(), factors.end(),
            [](IntExpr a, IntExpr b) { return CompareExprs(a, b) < 0; });
  return Node(IntKind::kMul, factors);
}

IntExpr IntContext::Impl::MulBases(IntExpr a, IntExpr b) {
  if (!a) return b;
  if (!b) return a;
  absl::Span<const IntExpr> fa = Factors(a), fb = Factors(b);
  absl::InlinedVector<IntExpr, 4> factors(fa.begin(), fa.end());
  factors.insert(factors.end(), fb.begin(), fb.end());
  return MakeBase(factors);
}

// base / by, where every factor of `by` is a factor of `base`; null stands for 1 everywhere.
bool IntContext::Impl::DivideBase(IntExpr base, IntExpr by, IntExpr* quotient) {
  if (!by || base == by) {
    *quotient = by ? IntExpr() : base;
    return true;
  }
  if (!base) return false;
  absl::Span<const IntExpr> have = Factors(base), want = Factors(by);
  if (want.size() >= have.size()) return false;
  absl::InlinedVector<IntExpr, 4> left(have.begin(), have.end());
  for (IntExpr factor : want) {
    auto it = std::find(left.begin(), left.end(), factor);
    if (it == left.end()) return false;
    left.erase(it);
  }
  *quotient = MakeBase(left);
  return true;
}

IntExpr IntContext::Impl::Add(IntExpr a, IntExpr b) {
  if (a.is_const(0)) return b;
  if (b.is_const(0)) return a;
  IntExpr operands[] = {a, b};
  return AddMany(operands);
}

IntExpr IntContext::Impl::AddMany(absl::Span<const IntExpr> operands) {
  Sum sum;
  for (IntExpr operand : operands) Accumulate(sum, operand, 1);
  if (IntExpr built = Build(sum)) return built;
  absl::InlinedVector<IntExpr, 8> sorted(operands.begin(), operands.end());
  std::sort(sorted.begin(), sorted.end(),
            [](IntExpr a, IntExpr b) { return CompareExprs(a, b) < 0; });
  return Node(IntKind::kAdd, sorted, /*unfolded=*/true);
}

IntExpr IntContext::Impl::Sub(IntExpr a, IntExpr b) {
  if (b.is_const(0)) return a;
  Sum sum;
  Accumulate(sum, a, 1);
  Accumulate(sum, b, -1);
  if (IntExpr built = Build(sum)) return built;
  return Add(a, Mul(Const(-1), b));
}

IntExpr IntContext::Impl::Mul(IntExpr a, IntExpr b) {
  if (a.is_const(1) || b.is_const(0)) return b;
  if (b.is_const(1) || a.is_const(0)) return a;
  Sum x = ToSum(a), y = ToSum(b), product;
  if (x.terms.empty() || y.terms.empty() || NumParts(x) * NumParts(y) <= kMaxDistributedTerms) {
    AddProduct(product, x, y);
    if (IntExpr built = Build(product)) return built;
    IntExpr operands[] = {a, b};
    if (CompareExprs(a, b) > 0) std::swap(operands[0], operands[1]);
    return Node(IntKind::kMul, operands, /*unfolded=*/true);
  }
  // Too large to distribute: a product with the sums as factors.
  int64_t coef = 1;
  absl::InlinedVector<IntExpr, 4> factors;
  for (const Sum* sum : {&x, &y}) {
    if (NumParts(*sum) == 1) {
      if (__builtin_mul_overflow(coef, sum->terms[0].coef, &coef)) {
        IntExpr operands[] = {a, b};
        return Node(IntKind::kMul, operands, /*unfolded=*/true);
      }
      absl::Span<const IntExpr> own = Factors(sum->terms[0].base);
      factors.insert(factors.end(), own.begin(), own.end());
    } else {
      factors.push_back(sum == &x ? a : b);
    }
  }
  return MakeTerm(coef, MakeBase(factors));
}

}  // namespace kiln::ir
