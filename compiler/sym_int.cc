#include "compiler/sym_int.h"

#include "absl/status/status.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

absl::StatusOr<v1::SymExpr> ToSymExpr(ir::IntExpr expr,
                                      const std::function<uint32_t(int)>& number) {
  v1::SymExpr out;
  switch (expr.kind()) {
    case ir::IntKind::kConst:
      out.set_kind(v1::SymExpr::KIND_CONSTANT);
      out.set_constant(expr.value());
      return out;
    case ir::IntKind::kSymbol:
      out.set_kind(v1::SymExpr::KIND_SYMBOL);
      out.set_symbol(number ? number(expr.id()) : static_cast<uint32_t>(expr.id()));
      return out;
    case ir::IntKind::kVar:
    case ir::IntKind::kIndirect:
      return absl::InternalError("a size of the program depends on a loop variable");
    case ir::IntKind::kAdd:
      out.set_kind(v1::SymExpr::KIND_ADD);
      break;
    case ir::IntKind::kMul:
      out.set_kind(v1::SymExpr::KIND_MUL);
      break;
    case ir::IntKind::kFloorDiv:
      out.set_kind(v1::SymExpr::KIND_FLOOR_DIV);
      break;
    case ir::IntKind::kMod:
      out.set_kind(v1::SymExpr::KIND_MOD);
      break;
    case ir::IntKind::kMin:
      out.set_kind(v1::SymExpr::KIND_MIN);
      break;
    case ir::IntKind::kMax:
      out.set_kind(v1::SymExpr::KIND_MAX);
      break;
  }
  for (ir::IntExpr operand : expr.operands()) {
    KILN_ASSIGN_OR_RETURN(*out.add_operands(), ToSymExpr(operand, number));
  }
  return out;
}

}  // namespace

absl::StatusOr<v1::SymInt> ToSymInt(ir::IntExpr expr, const std::function<uint32_t(int)>& number) {
  v1::SymInt out;
  if (!expr) return out;
  if (expr.is_const()) {
    out.set_value(expr.value());
  } else {
    KILN_ASSIGN_OR_RETURN(*out.mutable_expr(), ToSymExpr(expr, number));
  }
  return out;
}

}  // namespace kiln
