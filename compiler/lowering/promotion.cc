#include "compiler/lowering/promotion.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "compiler/ir/half.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {

using ir::IntExpr;

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

double RoundTo(DType dtype, double value) {
  if (dtype == DType::kF64) return value;
  const double single = static_cast<float>(value);
  if (dtype == DType::kF16) return ir::DoubleFromHalf(ir::HalfFromDouble(single));
  if (dtype == DType::kBF16) return ir::DoubleFromBFloat16(ir::BFloat16FromDouble(single));
  return single;
}

namespace {

// `number` as arithmetic on `common` takes it once it is rounded to `common`.
Scalar ConstRounded(KernelBuilder& b, const Number& number, DType common) {
  if (std::holds_alternative<IntExpr>(number)) return b.Widen(b.Const(common, number));
  const DType compute = ComputeType(common);
  if (compute == common) return b.Const(common, number);
  const double value = std::visit(
      [](auto v) {
        if constexpr (std::is_arithmetic_v<decltype(v)>) return static_cast<double>(v);
        return 0.0;
      },
      number);
  return b.Const(compute, RoundTo(common, value));
}

}  // namespace

Scalar LoadRounded(KernelBuilder& b, const Operand& operand, const Ints& at, DType common) {
  const auto* view = std::get_if<View>(&operand);
  if (view == nullptr) return ConstRounded(b, std::get<Number>(operand), common);
  return b.Widen(b.Cast(b.LoadBroadcast(*view, at), common));
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
