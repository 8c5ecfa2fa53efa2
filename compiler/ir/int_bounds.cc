// Proofs of inequalities. Beyond the ranges of nodes they know that a variable stays below its
// extent where the extent is symbolic: in a difference each variable is replaced by the end of its
// interval that the sign of its coefficient asks for, then each symbol likewise.
#include "compiler/ir/int_impl.h"

namespace kiln::ir {
namespace {

constexpr int kMaxProofDepth = 3;
constexpr int kMaxEliminations = 24;

bool HasKind(IntExpr e, IntKind kind) {
  return (e.node()->kinds_mask >> static_cast<int>(kind)) & 1;
}

bool HasVar(IntExpr e) {
  return HasKind(e, IntKind::kVar) || HasKind(e, IntKind::kIndirect);
}

// Composites first, for their bounds may bring variables in; symbols last.
int EliminationRank(IntExpr atom) {
  switch (atom.kind()) {
    case IntKind::kSymbol:
      return 2;
    case IntKind::kVar:
    case IntKind::kIndirect:
      return 1;
    default:
      return 0;
  }
}

bool Bounded(int64_t v) {
  return v != IntRange::kMinInt && v != IntRange::kMaxInt;
}

// Without symbols a sum of single variables of constant extent has exactly the range it shows.
bool RangesSayItAll(const Sum& sum) {
  for (const Term& t : sum.terms) {
    IntKind kind = t.base.kind();
    bool variable = kind == IntKind::kVar || kind == IntKind::kIndirect;
    if (!variable || !t.base.extent().is_const()) return false;
  }
  return true;
}

class DepthScope {
 public:
  explicit DepthScope(int& depth) : depth_(depth) { ++depth_; }
  ~DepthScope() { --depth_; }
  DepthScope(const DepthScope&) = delete;
  DepthScope& operator=(const DepthScope&) = delete;

 private:
  int& depth_;
};

}  // namespace

// A bound of one atom: an expression without variables (without symbols, too, where `symbols`).
IntExpr IntContext::Impl::AtomBound(IntExpr atom, bool upper, bool symbols) {
  IntRange range = atom.range();
  int64_t end = upper ? range.max : range.min;
  absl::Span<const IntExpr> operands = atom.operands();
  if (!symbols) {
    switch (atom.kind()) {
      case IntKind::kSymbol:
        return atom;
      case IntKind::kVar:
      case IntKind::kIndirect:
        // An extent of 0 means that the code does not run, so this holds wherever it matters.
        return upper ? Sub(atom.extent(), one) : zero;
      case IntKind::kMod:
        if (upper && operands[1].range().min >= 0 && !operands[1].is_const()) {
          return Sub(operands[1], one);
        }
        break;
      case IntKind::kFloorDiv:
        if (operands[1].range().min >= 0 && !HasVar(operands[1])) {
          if (!HasVar(operands[0])) return atom;
          if (IntExpr bound = Bound(operands[0], upper, false)) return FloorDiv(bound, operands[1]);
        }
        break;
      case IntKind::kMin:
      case IntKind::kMax:
        if (!HasVar(atom)) return atom;
        // Any operand of a minimum bounds it from above; one with a symbol says more.
        if (upper == (atom.kind() == IntKind::kMin)) {
          for (IntExpr operand : operands) {
            if (!HasKind(operand, IntKind::kSymbol)) continue;
            if (IntExpr bound = Bound(operand, upper, false)) return bound;
          }
        }
        break;
      default:
        break;
    }
  }
  return Bounded(end) ? Const(end) : IntExpr();
}

// A bound of `sum`, in which `atom` is replaced by the end of its interval that the sign of its
// coefficient asks for. Null where the sign or the end is not known.
IntExpr IntContext::Impl::Eliminate(const Sum& sum, IntExpr atom, bool upper, bool symbols) {
  Sum c, rest;  // sum = c * atom + rest
  rest.constant = sum.constant;
  for (const Term& t : sum.terms) {
    IntExpr p;
    if (DivideBase(t.base, atom, &p)) {
      AddTerm(c, t.coef, p);
    } else {
      AddTerm(rest, t.coef, t.base);
    }
  }
  Normalize(c);
  IntRange sign = SumRange(c);
  if (c.overflow || (sign.min < 0 && sign.max > 0)) return IntExpr();
  bool atom_upper = upper == (sign.min >= 0);

  // n*floordiv(x, n) lies in [x - n + 1, x], which keeps x where the plain range would lose it.
  if (symbols && atom.kind() == IntKind::kFloorDiv && c.terms.empty()) {
    IntExpr n = atom.operands()[1];
    if (n.is_const() && n.value() > 0 && c.constant % n.value() == 0) {
      Sum x = ToSum(atom.operands()[0]);
      if (!atom_upper) AddTerm(x, 1 - n.value(), IntExpr());
      AddScaled(rest, x, c.constant / n.value());
      return Build(rest);
    }
  }
  IntExpr bound = AtomBound(atom, atom_upper, symbols);
  if (!bound || bound == atom) return IntExpr();
  AddProduct(rest, c, ToSum(bound));
  return Build(rest);
}

// One atom less; null where none can be eliminated.
IntExpr IntContext::Impl::EliminateOne(const Sum& sum, bool upper, bool symbols) {
  for (int rank = 0; rank <= 2; ++rank) {
    for (const Term& term : sum.terms) {
      IntExpr base = term.base;
      for (IntExpr atom : Factors(base)) {
        if (EliminationRank(atom) != rank || (!symbols && !HasVar(atom))) continue;
        if (IntExpr next = Eliminate(sum, atom, upper, symbols)) return next;
      }
    }
  }
  return IntExpr();
}

IntExpr IntContext::Impl::Bound(IntExpr e, bool upper, bool symbols) {
  if (proof_depth > kMaxProofDepth) return IntExpr();
  DepthScope scope(proof_depth);
  for (int step = 0; step < kMaxEliminations && e; ++step) {
    if (symbols ? e.is_const() : !HasVar(e)) return e;
    e = EliminateOne(ToSum(e), upper, symbols);
  }
  return IntExpr();
}

bool IntContext::Impl::ProvablyNonNegative(IntExpr e) {
  if (e.range().min >= 0) return true;
  if (e.range().max < 0 || e.node()->unfolded) return false;
  if (!HasKind(e, IntKind::kSymbol) && RangesSayItAll(ToSum(e))) return false;
  IntExpr bound = Bound(e, /*upper=*/false, /*symbols=*/false);
  if (!bound) return false;
  if (bound.range().min >= 0) return true;
  bound = Bound(bound, /*upper=*/false, /*symbols=*/true);
  return bound && bound.range().min >= 0;
}

bool IntContext::Impl::ProvablyLessEqual(IntExpr a, IntExpr b, int64_t margin) {
  if (a == b) return margin <= 0;
  IntRange ra = a.range(), rb = b.range();
  if (AddRanges({ra.max, ra.max}, {margin, margin}).max <= rb.min && ra.max != IntRange::kMaxInt) {
    return true;
  }
  if (ra.min != IntRange::kMinInt && AddRanges({ra.min, ra.min}, {margin, margin}).min > rb.max) {
    return false;
  }
  if (proof_depth > kMaxProofDepth) return false;
  auto all_of = [&](IntExpr e, auto test) {
    for (IntExpr operand : e.operands()) {
      if (!test(operand)) return false;
    }
    return true;
  };
  auto left = [&](IntExpr x) { return ProvablyLessEqual(x, b, margin); };
  auto right = [&](IntExpr x) { return ProvablyLessEqual(a, x, margin); };
  if (b.kind() == IntKind::kMin) return all_of(b, right);
  if (a.kind() == IntKind::kMax) return all_of(a, left);
  if (a.kind() == IntKind::kMin && !all_of(a, [&](IntExpr x) { return !left(x); })) return true;
  if (b.kind() == IntKind::kMax && !all_of(b, [&](IntExpr x) { return !right(x); })) return true;
  DepthScope scope(proof_depth);
  return ProvablyNonNegative(Sub(Sub(b, a), Const(margin)));
}

}  // namespace kiln::ir
