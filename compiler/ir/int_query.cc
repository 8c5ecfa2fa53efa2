// Substitution, evaluation, printing and questions about the shape of an expression.
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/int_impl.h"

namespace kiln::ir {
namespace {

// Expressions up to this tree size are walked without a memo: a shared part is at worst visited a
// few times.
constexpr uint32_t kSmallTree = 64;

bool IsLeaf(IntKind kind) {
  return kind == IntKind::kSymbol || kind == IntKind::kVar || kind == IntKind::kIndirect;
}

using ExprMap = absl::flat_hash_map<IntExpr, IntExpr>;

// Rewrites the leaves of an expression; `replace` returns a null handle for one that stays.
template <typename Replace, typename Rebuild>
IntExpr Rewrite(IntExpr e, uint64_t leaf_mask, const Replace& replace, const Rebuild& rebuild,
                ExprMap& memo) {
  const IntNode& node = *e.node();
  if ((node.leaf_mask & leaf_mask) == 0) return e;
  if (IsLeaf(node.kind)) {
    IntExpr replacement = replace(e);
    return replacement ? replacement : e;
  }
  auto it = memo.find(e);
  if (it != memo.end()) return it->second;
  absl::InlinedVector<IntExpr, 8> operands;
  bool changed = false;
  for (IntExpr operand : e.operands()) {
    IntExpr rewritten = Rewrite(operand, leaf_mask, replace, rebuild, memo);
    changed |= rewritten != operand;
    operands.push_back(rewritten);
  }
  IntExpr result = changed ? rebuild(e, absl::MakeConstSpan(operands)) : e;
  memo.emplace(e, result);
  return result;
}

int64_t WrapAdd(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t WrapMul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

int64_t Apply(IntKind kind, int64_t a, int64_t b) {
  switch (kind) {
    case IntKind::kAdd:
      return WrapAdd(a, b);
    case IntKind::kMul:
      return WrapMul(a, b);
    case IntKind::kFloorDiv:
      return FloorDivInt(a, b);
    case IntKind::kMod:
      return FloorModInt(a, b);
    case IntKind::kMin:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}

int64_t EvaluateWithMemo(IntExpr e, const std::function<int64_t(IntExpr)>& leaf,
                         absl::flat_hash_map<IntExpr, int64_t>* memo) {
  const IntNode& node = *e.node();
  if (node.kind == IntKind::kConst) return node.value;
  if (IsLeaf(node.kind)) return leaf(e);
  if (memo != nullptr) {
    auto it = memo->find(e);
    if (it != memo->end()) return it->second;
  }
  int64_t result = EvaluateWithMemo(node.operands[0], leaf, memo);
  for (uint32_t i = 1; i < node.num_operands; ++i) {
    result = Apply(node.kind, result, EvaluateWithMemo(node.operands[i], leaf, memo));
  }
  if (memo != nullptr) memo->emplace(e, result);
  return result;
}

void CollectLeaves(IntExpr e, absl::flat_hash_set<IntExpr>& seen,
                   const std::function<void(IntExpr)>& visit) {
  if (e.node()->leaf_mask == 0 || !seen.insert(e).second) return;
  if (IsLeaf(e.kind())) {
    visit(e);
    return;
  }
  for (IntExpr operand : e.operands()) CollectLeaves(operand, seen, visit);
}

bool Contains(IntExpr e, IntExpr var, absl::flat_hash_set<IntExpr>* seen) {
  if (e == var) return true;
  if ((e.node()->leaf_mask & var.node()->leaf_mask) == 0) return false;
  if (seen != nullptr && !seen->insert(e).second) return false;
  for (IntExpr operand : e.operands()) {
    if (Contains(operand, var, seen)) return true;
  }
  return false;
}

using LeafName = std::function<std::string(IntExpr)>;

void AppendExpr(IntExpr e, const LeafName& leaf, std::string& out);

// A factor of a product: sums in parentheses.
void AppendFactor(IntExpr e, const LeafName& leaf, std::string& out) {
  bool parentheses = e.kind() == IntKind::kAdd || e.kind() == IntKind::kMul;
  if (parentheses) out += '(';
  AppendExpr(e, leaf, out);
  if (parentheses) out += ')';
}

// A product with its constant factor first; `negate` drops the constant's minus sign.
void AppendProduct(IntExpr e, bool negate, const LeafName& leaf, std::string& out) {
  if (e.kind() == IntKind::kConst) {
    absl::StrAppend(&out, negate ? -e.value() : e.value());
    return;
  }
  if (e.kind() != IntKind::kMul) return AppendFactor(e, leaf, out);
  absl::Span<const IntExpr> factors = e.operands();
  bool first = true;
  if (factors.back().is_const()) {
    int64_t c = negate ? -factors.back().value() : factors.back().value();
    if (c != 1 || factors.size() == 1) {
      absl::StrAppend(&out, c);
      first = false;
    }
    factors.remove_suffix(1);
  }
  for (IntExpr factor : factors) {
    if (!first) out += '*';
    first = false;
    AppendFactor(factor, leaf, out);
  }
}

// Whether a term of a sum prints as "- something".
bool PrintsNegative(IntExpr term) {
  IntExpr c = term.kind() == IntKind::kMul ? term.operands().back() : term;
  return c.is_const() && c.value() < 0 && c.value() != IntRange::kMinInt;
}

void AppendCall(absl::string_view name, IntExpr e, const LeafName& leaf, std::string& out) {
  absl::StrAppend(&out, name, "(");
  bool first = true;
  for (IntExpr operand : e.operands()) {
    if (!first) out += ", ";
    first = false;
    AppendExpr(operand, leaf, out);
  }
  out += ')';
}

void AppendExpr(IntExpr e, const LeafName& leaf, std::string& out) {
  switch (e.kind()) {
    case IntKind::kConst:
    case IntKind::kMul:
      return AppendProduct(e, /*negate=*/false, leaf, out);
    case IntKind::kSymbol:
    case IntKind::kVar:
    case IntKind::kIndirect:
      out += leaf(e);
      return;
    case IntKind::kAdd: {
      bool first = true;
      for (IntExpr term : e.operands()) {
        bool negative = !first && PrintsNegative(term);
        if (!first) out += negative ? " - " : " + ";
        first = false;
        if (term.kind() == IntKind::kAdd) {
          AppendFactor(term, leaf, out);
        } else {
          AppendProduct(term, negative, leaf, out);
        }
      }
      return;
    }
    case IntKind::kFloorDiv:
      return AppendCall("floordiv", e, leaf, out);
    case IntKind::kMod:
      return AppendCall("mod", e, leaf, out);
    case IntKind::kMin:
      return AppendCall("min", e, leaf, out);
    case IntKind::kMax:
      return AppendCall("max", e, leaf, out);
  }
}

}  // namespace

IntExpr IntContext::Substitute(IntExpr expr, const VarMap& map) {
  if (map.empty()) return expr;
  uint64_t leaf_mask = 0;
  for (const auto& [from, to] : map) leaf_mask |= from.node()->leaf_mask;
  if ((expr.node()->leaf_mask & leaf_mask) == 0) return expr;
  ExprMap memo;
  auto replace = [&](IntExpr leaf) {
    auto it = map.find(leaf);
    return it == map.end() ? IntExpr() : it->second;
  };
  auto rebuild = [&](IntExpr e, absl::Span<const IntExpr> operands) {
    return impl_->Rebuild(e, operands);
  };
  return Rewrite(expr, leaf_mask, replace, rebuild, memo);
}

IntExpr IntContext::RemapIndirect(IntExpr expr, const std::function<IntExpr(IntExpr)>& map) {
  if (!ContainsKind(expr, IntKind::kIndirect)) return expr;
  ExprMap memo;
  auto replace = [&](IntExpr leaf) {
    return leaf.kind() == IntKind::kIndirect ? map(leaf) : IntExpr();
  };
  auto rebuild = [&](IntExpr e, absl::Span<const IntExpr> operands) {
    return impl_->Rebuild(e, operands);
  };
  return Rewrite(expr, ~uint64_t{0} << 48, replace, rebuild, memo);
}

IntExpr IntContext::Impl::Rebuild(IntExpr e, absl::Span<const IntExpr> operands) {
  switch (e.kind()) {
    case IntKind::kAdd:
      return AddMany(operands);
    case IntKind::kMul: {
      IntExpr product = one;
      for (IntExpr operand : operands) product = Mul(product, operand);
      return product;
    }
    case IntKind::kFloorDiv:
      return FloorDiv(operands[0], operands[1]);
    case IntKind::kMod:
      return Mod(operands[0], operands[1]);
    case IntKind::kMin:
    case IntKind::kMax:
      return MinMax(e.kind(), operands);
    default:
      return e;
  }
}

IntExpr IntContext::CoefficientOf(IntExpr expr, IntExpr var) {
  if (!ContainsVar(expr, var)) return impl_->zero;
  Sum coefficient;
  Sum sum = impl_->ToSum(expr);
  for (const Term& term : sum.terms) {
    if (!ContainsVar(term.base, var)) continue;
    IntExpr rest;
    if (!impl_->DivideBase(term.base, var, &rest)) return IntExpr();
    if (rest && ContainsVar(rest, var)) return IntExpr();
    if (rest) {
      impl_->AddTerm(coefficient, term.coef, rest);
    } else {
      coefficient.overflow |=
          __builtin_add_overflow(coefficient.constant, term.coef, &coefficient.constant);
    }
  }
  return impl_->Build(coefficient);
}

int64_t IntContext::Evaluate(IntExpr expr, const std::function<int64_t(IntExpr)>& leaf) const {
  if (expr.node()->tree_size <= kSmallTree) return EvaluateWithMemo(expr, leaf, nullptr);
  absl::flat_hash_map<IntExpr, int64_t> memo;
  return EvaluateWithMemo(expr, leaf, &memo);
}

int64_t IntContext::EvaluateAtHints(IntExpr expr) const {
  return Evaluate(expr, [this](IntExpr leaf) {
    return leaf.kind() == IntKind::kSymbol ? impl_->symbols[leaf.id()].hint : 0;
  });
}

void IntContext::SetHint(IntExpr symbol, int64_t hint) {
  impl_->symbols[symbol.id()].hint = hint;
}

uint32_t TreeSize(IntExpr expr) {
  return expr.node()->tree_size;
}

bool ContainsVar(IntExpr expr, IntExpr var) {
  if (expr.node()->tree_size <= kSmallTree) return Contains(expr, var, nullptr);
  absl::flat_hash_set<IntExpr> seen;
  return Contains(expr, var, &seen);
}

bool ContainsKind(IntExpr expr, IntKind kind) {
  return (expr.node()->kinds_mask >> static_cast<int>(kind)) & 1;
}

void ForEachLeaf(IntExpr expr, const std::function<void(IntExpr)>& visit) {
  absl::flat_hash_set<IntExpr> seen;
  CollectLeaves(expr, seen, visit);
}

std::string ToString(IntExpr expr, const std::function<std::string(IntExpr)>& leaf) {
  std::string out;
  AppendExpr(expr, leaf, out);
  return out;
}

}  // namespace kiln::ir
