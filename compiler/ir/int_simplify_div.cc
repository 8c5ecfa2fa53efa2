// Floor division and remainder. Both are computed by one walk, so that quotient and remainder of
// the same operands always have matching forms and recombine (int_recombine.cc).
//
// The canonical forms: what the divisor divides is pulled out; common factors are cancelled;
// floordiv(floordiv(x, a), b) is floordiv(x, a*b); floordiv(mod(x, a*b), a) is
// mod(floordiv(x, a), b); mod(mod(x, a*b), a) is mod(x, a).
#include <algorithm>
#include <numeric>

#include "compiler/ir/int_impl.h"

namespace kiln::ir {
namespace {

int64_t Gcd(int64_t a, int64_t b) {
  // Of INT64_MIN only the factors that fit count; 1 is always right.
  if (a == IntRange::kMinInt || b == IntRange::kMinInt) return 1;
  return std::gcd(a, b);
}

size_t NumParts(const Sum& sum) {
  return sum.terms.size() + (sum.constant != 0 ? 1 : 0);
}

size_t Degree(IntExpr base) {
  return base ? Factors(base).size() : 0;
}

}  // namespace

IntExpr IntContext::Impl::FloorDiv(IntExpr a, IntExpr b) {
  return Divide(a, b, /*want_mod=*/false);
}

IntExpr IntContext::Impl::Mod(IntExpr a, IntExpr b) {
  return Divide(a, b, /*want_mod=*/true);
}

IntExpr IntContext::Impl::Divide(IntExpr a, IntExpr b, bool want_mod) {
  IntExpr plain[] = {a, b};
  IntKind kind = want_mod ? IntKind::kMod : IntKind::kFloorDiv;
  if (b.is_const(0)) return Node(kind, plain);
  if (b.is_const(1)) return want_mod ? zero : a;
  if (a.is_const(0)) return zero;
  if (b.is_const(-1)) return want_mod ? zero : Sub(zero, a);
  if (a.is_const() && b.is_const()) {
    return Const(want_mod ? FloorModInt(a.value(), b.value()) : FloorDivInt(a.value(), b.value()));
  }
  auto& memo = want_mod ? mods : floordivs;
  auto it = memo.find({a, b});
  if (it != memo.end()) return it->second;
  IntExpr result = DivideSum(ToSum(a), b, want_mod);
  if (!result) result = Node(kind, plain);
  // Inside a proof the simplifier gives up earlier; such results are not for keeping.
  if (proof_depth == 0) memo.emplace(std::make_pair(a, b), result);
  return result;
}

// Null where arithmetic would overflow.
IntExpr IntContext::Impl::DivideSum(const Sum& a, IntExpr b, bool want_mod) {
  Sum quotient, rest;
  SplitByDivisor(a, b, &quotient, &rest);
  Normalize(quotient);
  Normalize(rest);
  if (quotient.overflow || rest.overflow) return IntExpr();

  // rest = f * b + (something in [0, b)) for a known constant f: mostly f = 0.
  IntRange range = SumRange(rest);
  IntRange divisor = b.range();
  int64_t f = 0;
  bool known = false;
  if (b.is_const()) {
    f = FloorDivInt(range.min, b.value());
    known = f == FloorDivInt(range.max, b.value()) && range.min != IntRange::kMinInt &&
            range.max != IntRange::kMaxInt;
  } else if (range.min >= 0) {
    known = range.max < divisor.min || ProvablyLessEqual(BuildNormalized(rest), b, 1);
  } else if (range.max < 0 && divisor.min >= 0) {
    f = -1;
    known = ProvablyLessEqual(zero, Add(BuildNormalized(rest), b), 0);
  }
  if (known) {
    if (!want_mod) {
      AddTerm(quotient, f, IntExpr());
      return Build(quotient);
    }
    Accumulate(rest, b, -f);
    return Build(rest);
  }

  IntExpr result = DivideNested(rest, b, want_mod);
  if (!result) result = DivideByCommonFactor(rest, b, want_mod);
  if (!result) {
    IntExpr operands[] = {BuildNormalized(rest), b};
    result = Node(want_mod ? IntKind::kMod : IntKind::kFloorDiv, operands);
  }
  if (want_mod) return result;
  Accumulate(quotient, result, 1);
  return Build(quotient);
}

// x = quotient * divisor + rest. True if anything was pulled out.
bool IntContext::Impl::SplitByDivisor(const Sum& x, IntExpr divisor, Sum* quotient, Sum* rest) {
  Sum d = ToSum(divisor);
  if (NumParts(d) != 1) return SplitByPolynomial(x, d, quotient, rest);
  int64_t d_coef = d.terms.empty() ? d.constant : d.terms[0].coef;
  IntExpr d_base = d.terms.empty() ? IntExpr() : d.terms[0].base;
  for (const Term& t : x.terms) {
    IntExpr base;
    int64_t q = 0;
    // Rounded towards zero: a coefficient smaller than the divisor stays as it is.
    if (d_coef != -1 && DivideBase(t.base, d_base, &base)) q = t.coef / d_coef;
    if (d_coef == -1 && t.coef != IntRange::kMinInt && DivideBase(t.base, d_base, &base)) {
      q = -t.coef;
    }
    if (q != 0) AddTerm(*quotient, q, base);
    AddTerm(*rest, t.coef - q * d_coef, t.base);
  }
  if (d_base) {
    rest->constant = x.constant;
  } else {
    quotient->constant = FloorDivInt(x.constant, d_coef);
    rest->constant = FloorModInt(x.constant, d_coef);
  }
  return !quotient->terms.empty() || quotient->constant != 0;
}

// Division by a sum that holds symbols, such as s0 + 1: its term of the highest degree leads. The
// quotient is taken only if less is left than there was, or the same terms with smaller factors.
bool IntContext::Impl::SplitByPolynomial(const Sum& x, const Sum& divisor, Sum* quotient,
                                         Sum* rest) {
  constexpr int kMaxSteps = 16;
  auto higher = [](const Term& a, const Term& b) { return Degree(a.base) < Degree(b.base); };
  Term lead = *std::max_element(divisor.terms.begin(), divisor.terms.end(), higher);
  Sum q, r = x;
  for (int step = 0; step < kMaxSteps && !r.overflow; ++step) {
    IntExpr base;
    auto t = std::find_if(r.terms.begin(), r.terms.end(), [&](const Term& t) {
      return lead.coef != -1 && t.coef / lead.coef != 0 && DivideBase(t.base, lead.base, &base);
    });
    if (t == r.terms.end()) break;
    Sum factor;
    AddTerm(factor, t->coef / lead.coef, base);
    AddScaled(q, factor, 1);
    Sum product;
    AddProduct(product, factor, divisor);
    AddScaled(r, product, -1);
    Normalize(r);
  }
  auto occurs_in_x = [&](const Term& t) {
    return std::any_of(x.terms.begin(), x.terms.end(),
                       [&](const Term& own) { return own.base == t.base; });
  };
  bool less =
      NumParts(r) < NumParts(x) ||
      (NumParts(r) == NumParts(x) && std::all_of(r.terms.begin(), r.terms.end(), occurs_in_x));
  if (!r.overflow && !q.overflow && NumParts(q) != 0 && less) {
    *quotient = std::move(q);
    *rest = std::move(r);
    return true;
  }
  *rest = x;
  return false;
}

// x = quotient * of. A null handle for `quotient` never comes with true.
bool IntContext::Impl::IsMultiple(IntExpr x, IntExpr of, IntExpr* quotient) {
  Sum q, r;
  SplitByDivisor(ToSum(x), of, &q, &r);
  Normalize(r);
  if (r.overflow || !r.terms.empty() || r.constant != 0) return false;
  *quotient = Build(q);
  return static_cast<bool>(*quotient);
}

// Divisions and remainders inside x. Null where no rule applies.
IntExpr IntContext::Impl::DivideNested(const Sum& x, IntExpr divisor, bool want_mod) {
  if (want_mod) {
    // A remainder of a multiple of the divisor is no remainder here.
    for (size_t i = 0; i < x.terms.size(); ++i) {
      IntExpr base = x.terms[i].base, p, unused;
      for (IntExpr factor : Factors(base)) {
        if (factor.kind() != IntKind::kMod) continue;
        DivideBase(base, factor, &p);
        IntExpr outer = MakeTerm(x.terms[i].coef, p);
        if (!IsMultiple(Mul(outer, factor.operands()[1]), divisor, &unused)) continue;
        Sum inside = x;
        inside.terms[i].coef = 0;
        Accumulate(inside, Mul(outer, factor.operands()[0]), 1);
        IntExpr numerator = Build(inside);
        return numerator ? Mod(numerator, divisor) : IntExpr();
      }
    }
    return IntExpr();
  }
  if (divisor.range().min < 0) return IntExpr();
  for (const Term& t : x.terms) {
    // floordiv(floordiv(y, a) + z, b) = floordiv(y + z*a, a*b)
    if (t.coef != 1 || t.base.kind() != IntKind::kFloorDiv) continue;
    IntExpr y = t.base.operands()[0], a = t.base.operands()[1];
    Sum z = x;
    z.terms[&t - x.terms.data()].coef = 0;
    Normalize(z);
    IntExpr product = Mul(a, divisor);
    Sum numerator = ToSum(y);
    AddProduct(numerator, z, ToSum(a));
    IntExpr merged = product.node()->unfolded ? IntExpr() : Build(numerator);
    return merged ? FloorDiv(merged, product) : IntExpr();
  }
  if (x.terms.size() != 1 || x.terms[0].coef != 1) return IntExpr();
  IntExpr inner = x.terms[0].base;
  if (inner.kind() == IntKind::kMod && x.constant == 0 && inner.operands()[1].range().min >= 0) {
    IntExpr quotient;
    if (IsMultiple(inner.operands()[1], divisor, &quotient)) {
      return Mod(FloorDiv(inner.operands()[0], divisor), quotient);
    }
  }
  return IntExpr();
}

namespace {

// The common factor of two monomials, with a positive constant.
Monomial CommonFactor(IntContext::Impl& impl, Monomial a, Monomial b) {
  Monomial common;
  common.coef = Gcd(a.coef, b.coef);
  if (!a.base || !b.base) return common;
  absl::InlinedVector<IntExpr, 4> shared;
  absl::Span<const IntExpr> fb = Factors(b.base);
  absl::InlinedVector<IntExpr, 4> left(fb.begin(), fb.end());
  for (IntExpr factor : Factors(a.base)) {
    auto it = std::find(left.begin(), left.end(), factor);
    if (it == left.end()) continue;
    shared.push_back(factor);
    left.erase(it);
  }
  common.base = impl.MakeBase(shared);
  return common;
}

bool IsOne(const Monomial& m) {
  return m.coef == 1 && !m.base;
}

// The factor common to all parts of a divisor.
Monomial Content(IntContext::Impl& impl, const Sum& divisor) {
  Monomial content;
  bool first = true;
  auto take = [&](Monomial m) {
    content = CommonFactor(impl, first ? m : content, m);
    first = false;
  };
  for (const Term& t : divisor.terms) take({t.coef, t.base});
  if (divisor.constant != 0) take({divisor.constant, IntExpr()});
  return content;
}

// The factors worth trying: what each term shares with the divisor, largest first.
absl::InlinedVector<Monomial, 4> CandidateFactors(IntContext::Impl& impl, const Sum& x,
                                                  const Monomial& content) {
  absl::InlinedVector<Monomial, 4> candidates;
  for (const Term& t : x.terms) {
    Monomial m = CommonFactor(impl, {t.coef, t.base}, content);
    if (IsOne(m)) continue;
    bool seen = std::any_of(candidates.begin(), candidates.end(), [&](const Monomial& c) {
      return c.coef == m.coef && c.base == m.base;
    });
    if (!seen) candidates.push_back(m);
  }
  std::sort(candidates.begin(), candidates.end(), [](const Monomial& a, const Monomial& b) {
    if (Degree(a.base) != Degree(b.base)) return Degree(a.base) > Degree(b.base);
    if (a.coef != b.coef) return a.coef > b.coef;
    return a.base && b.base && CompareExprs(a.base, b.base) < 0;
  });
  // What all terms share may be less than what any one of them shares with the divisor.
  if (candidates.size() > 1) {
    Monomial all = candidates[0];
    for (const Monomial& c : candidates) all = CommonFactor(impl, all, c);
    const Monomial& last = candidates.back();
    if (!IsOne(all) && (all.coef != last.coef || all.base != last.base)) candidates.push_back(all);
  }
  return candidates;
}

}  // namespace

// With 0 <= rest < g:
//   floordiv(g*y + rest, g*d) = floordiv(y, d), mod(g*y + rest, g*d) = g*mod(y, d) + rest.
// Null where `rest` is not known to lie there.
IntExpr IntContext::Impl::DivideInParts(Sum& y, Sum& rest, IntExpr g, IntExpr d, bool want_mod) {
  Normalize(rest);
  if (rest.overflow) return IntExpr();
  if (NumParts(rest) != 0) {
    IntRange range = SumRange(rest);
    bool below = range.min >= 0 && d.range().min >= 0 &&
                 (range.max < g.range().min ||
                  (!g.is_const() && ProvablyLessEqual(BuildNormalized(rest), g, 1)));
    if (!below) return IntExpr();
  }
  IntExpr numerator = Build(y);
  if (!numerator) return IntExpr();
  if (!want_mod) return FloorDiv(numerator, d);
  Accumulate(rest, Mul(g, Mod(numerator, d)), 1);
  return Build(rest);
}

// Of a divisor such as 7*s1*s0 + 7*s1 the sums s0 + 1 and s1*s0 + s1 are factors. Null where
// neither helps.
IntExpr IntContext::Impl::DivideBySumFactor(const Sum& x, IntExpr divisor, const Monomial& content,
                                            bool want_mod) {
  IntExpr primitive;
  IntExpr content_expr = MakeTerm(content.coef, content.base);
  if (divisor.kind() != IntKind::kAdd || !IsMultiple(divisor, content_expr, &primitive)) {
    return IntExpr();
  }
  absl::InlinedVector<Monomial, 4> factors = CandidateFactors(*this, x, content);
  factors.push_back({1, content.base});
  factors.push_back({1, IntExpr()});
  for (const Monomial& m : factors) {
    if (m.coef == content.coef && m.base == content.base) continue;
    IntExpr factor = MakeTerm(m.coef, m.base);
    IntExpr g = Mul(primitive, factor);
    IntExpr d;
    Sum y, rest;
    if (!IsMultiple(content_expr, factor, &d) || !SplitByDivisor(x, g, &y, &rest)) continue;
    if (IntExpr e = DivideInParts(y, rest, g, d, want_mod)) return e;
  }
  return IntExpr();
}

// Cancels a factor g of the divisor; null if there is none that helps.
IntExpr IntContext::Impl::DivideByCommonFactor(const Sum& x, IntExpr divisor, bool want_mod) {
  Sum divisor_sum = ToSum(divisor);
  Monomial content = Content(*this, divisor_sum);
  if (IsOne(content)) return IntExpr();
  if (IntExpr e = DivideBySumFactor(x, divisor, content, want_mod)) return e;
  for (const Monomial& g : CandidateFactors(*this, x, content)) {
    IntExpr g_expr = MakeTerm(g.coef, g.base);
    Sum y, rest;
    for (const Term& t : x.terms) {
      IntExpr base;
      if (t.coef % g.coef == 0 && DivideBase(t.base, g.base, &base)) {
        AddTerm(y, t.coef / g.coef, base);
      } else {
        AddTerm(rest, t.coef, t.base);
      }
    }
    if (g.base) {
      rest.constant = x.constant;
    } else {
      AddTerm(y, FloorDivInt(x.constant, g.coef), IntExpr());
      rest.constant = FloorModInt(x.constant, g.coef);
    }
    IntExpr d;
    if (!IsMultiple(divisor, g_expr, &d)) continue;
    if (IntExpr e = DivideInParts(y, rest, g_expr, d, want_mod)) return e;
  }
  return IntExpr();
}

}  // namespace kiln::ir
