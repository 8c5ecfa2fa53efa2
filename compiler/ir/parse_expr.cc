// Index expressions: sums of products of literals, names, calls and indirect operands.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/parse_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {

absl::StatusOr<IntExpr> Parser::Expr() {
  leaves_ = 0;
  return Sum(0);
}

absl::StatusOr<IntExpr> Parser::Sum(int depth) {
  if (depth > kMaxExprDepth) return Error("an expression is nested too deep");
  KILN_ASSIGN_OR_RETURN(IntExpr sum, Product(depth));
  while (At("+") || At("-")) {
    const bool minus = At("-");
    Advance();
    KILN_ASSIGN_OR_RETURN(IntExpr term, Product(depth));
    sum = minus ? module_.ints->Sub(sum, term) : module_.ints->Add(sum, term);
  }
  return sum;
}

absl::StatusOr<IntExpr> Parser::Product(int depth) {
  KILN_ASSIGN_OR_RETURN(IntExpr product, Factor(depth));
  while (Accept("*")) {
    KILN_ASSIGN_OR_RETURN(IntExpr factor, Factor(depth));
    product = module_.ints->Mul(product, factor);
  }
  return product;
}

absl::StatusOr<IntExpr> Parser::Factor(int depth) {
  if (++leaves_ > kMaxExprLeaves) return Error("an expression is too long");
  if (token_.kind == TokenKind::kNumber) return IntLiteral(false);
  if (token_.kind == TokenKind::kIdentifier) return NamedExpr(depth);
  if (At("[")) return IndirectIndex(depth);
  if (Accept("-")) {
    if (token_.kind == TokenKind::kNumber) return IntLiteral(true);
    if (depth >= kMaxExprDepth) return Error("an expression is nested too deep");
    KILN_ASSIGN_OR_RETURN(IntExpr factor, Factor(depth + 1));
    return module_.ints->Mul(factor, -1);
  }
  if (Accept("(")) {
    KILN_ASSIGN_OR_RETURN(IntExpr inner, Sum(depth + 1));
    KILN_RETURN_IF_ERROR(Expect(")"));
    return inner;
  }
  return Expected("an index expression");
}

absl::StatusOr<IntExpr> Parser::IntLiteral(bool negative) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(absl::StrCat(negative ? "-" : "", token_.text), &value)) {
    return Error(absl::StrCat("'", token_.text, "' is no 64-bit integer"));
  }
  Advance();
  return module_.ints->Const(value);
}

absl::StatusOr<IntExpr> Parser::NamedExpr(int depth) {
  const std::string name = token_.text;
  if (name == "floordiv" || name == "mod" || name == "min" || name == "max") {
    Advance();
    return Call(name, depth);
  }
  if (auto it = vars_.find(name); it != vars_.end()) {
    Advance();
    return it->second;
  }
  if (auto it = symbols_.find(name); it != symbols_.end()) {
    Advance();
    return it->second;
  }
  return Error(absl::StrCat("no symbol or loop variable '", name, "' is in scope"));
}

absl::StatusOr<IntExpr> Parser::Call(absl::string_view function, int depth) {
  KILN_RETURN_IF_ERROR(Expect("("));
  KILN_ASSIGN_OR_RETURN(IntExpr a, Sum(depth + 1));
  IntContext& ints = *module_.ints;
  const bool divides = function == "floordiv" || function == "mod";
  do {
    KILN_RETURN_IF_ERROR(Expect(","));
    KILN_ASSIGN_OR_RETURN(IntExpr b, Sum(depth + 1));
    if (divides && b.is_const(0)) return Error("division by zero");
    if (function == "floordiv") {
      a = ints.FloorDiv(a, b);
    } else if (function == "mod") {
      a = ints.Mod(a, b);
    } else {
      a = function == "min" ? ints.Min(a, b) : ints.Max(a, b);
    }
  } while (!divides && At(","));
  KILN_RETURN_IF_ERROR(Expect(")"));
  return a;
}

absl::StatusOr<IntExpr> Parser::IndirectIndex(int depth) {
  if (inst_ == nullptr) return Error("an indirect index can stand in a load or store only");
  KILN_RETURN_IF_ERROR(Expect("["));
  KILN_ASSIGN_OR_RETURN(ValueId value, Value());
  IntExpr extent = dimension_;
  if (Accept("<")) {
    KILN_ASSIGN_OR_RETURN(extent, Sum(depth + 1));
    if (ContainsKind(extent, IntKind::kVar) || ContainsKind(extent, IntKind::kIndirect)) {
      return Error("the bound of an indirect index must be a size");
    }
  }
  if (!extent) return Error("the bound of an indirect index is missing");
  KILN_RETURN_IF_ERROR(Expect("]"));
  std::vector<ValueId>& operands = inst_->operands;
  size_t operand = 0;
  while (operand < operands.size() && operands[operand] != value) ++operand;
  if (operand == operands.size()) operands.push_back(value);
  return module_.ints->Indirect(static_cast<int>(operand), extent);
}

absl::StatusOr<std::vector<IntExpr>> Parser::ExprList() {
  std::vector<IntExpr> list;
  KILN_RETURN_IF_ERROR(Expect("["));
  if (Accept("]")) return list;
  do {
    if (list.size() == kMaxDimensions) return Error("too many dimensions");
    KILN_ASSIGN_OR_RETURN(IntExpr expr, Expr());
    list.push_back(expr);
  } while (Accept(","));
  KILN_RETURN_IF_ERROR(Expect("]"));
  return list;
}

}  // namespace kiln::ir
