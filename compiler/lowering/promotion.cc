#include "compiler/lowering/promotion.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

// bool, integer, float.
int Category(DType dtype) {
  return dtype == DType::kBool ? 0 : IsFloat(dtype) ? 2 : 1;
}

DType NumberType(const Number& number) {
  if (std::holds_alternative<bool>(number)) return DType::kBool;
  return IsFloatNumber(number) ? DType::kF32 : DType::kI64;
}

void Join(std::optional<DType>& into, DType dtype) {
  into = into ? PromoteTypes(*into, dtype) : dtype;
}

}  // namespace

DType PromoteTypes(DType a, DType b) {
  if (a == b) return a;
  if (Category(a) != Category(b)) return Category(a) > Category(b) ? a : b;
  if (IsFloat(a)) {
    // Neither of f16 and bf16 holds the other.
    if (DTypeSize(a) == DTypeSize(b)) return DType::kF32;
    return DTypeSize(a) > DTypeSize(b) ? a : b;
  }
  if (b == DType::kU8) std::swap(a, b);
  if (a == DType::kU8) return b == DType::kI8 ? DType::kI16 : b;
  return std::max(a, b);
}

DType PromoteOperands(absl::Span<const Operand> operands) {
  std::optional<DType> kinds[3];  // with dimensions, rank 0, numbers
  for (const Operand& operand : operands) {
    if (const auto* view = std::get_if<View>(&operand)) {
      Join(kinds[view->sizes.empty() ? 1 : 0], view->dtype);
    } else {
      Join(kinds[2], NumberType(std::get<Number>(operand)));
    }
  }
  std::optional<DType> result;
  for (const std::optional<DType>& kind : kinds) {
    if (!kind) continue;
    if (!result || Category(*kind) > Category(*result)) {
      result = result ? PromoteTypes(*result, *kind) : *kind;
    }
  }
  return result.value_or(DType::kF32);
}

Scalar LoadOperand(KernelBuilder& b, const Operand& operand, const Ints& at, DType dtype) {
  if (const auto* view = std::get_if<View>(&operand)) {
    return b.Cast(b.LoadBroadcast(*view, at), dtype);
  }
  return b.Const(dtype, std::get<Number>(operand));
}

absl::Status CheckOperands(NodeContext& n, absl::Span<const Operand> operands) {
  for (const Operand& operand : operands) {
    const auto* view = std::get_if<View>(&operand);
    if (view == nullptr) continue;
    KILN_RETURN_IF_ERROR(n.CheckBroadcast(view->sizes, n.Result(0).sizes));
  }
  return absl::OkStatus();
}

}  // namespace kiln::lowering
