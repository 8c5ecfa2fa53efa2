#include "compiler/ir/scalar_op.h"

#include <iterator>

#include "absl/container/flat_hash_map.h"

namespace kiln::ir {
namespace {

constexpr ScalarOpInfo kInfos[] = {
#define X(e, s, a, r, c, cost, text) {s, a, TypeRule::r, TypeClass::c, cost, text},
    KILN_SCALAR_OPS(X)
#undef X
};

// By ReduceKind.
constexpr absl::string_view kReduceNames[] = {"sum", "prod", "max",    "min",   "logaddexp",
                                              "any", "all",  "argmax", "argmin"};
static_assert(std::size(kReduceNames) == static_cast<size_t>(ReduceKind::kArgMin) + 1);

}  // namespace

const ScalarOpInfo& Info(ScalarOp op) {
  return kInfos[static_cast<size_t>(op)];
}

bool Takes(ScalarOp op, DType dtype) {
  switch (Info(op).operands) {
    case TypeClass::kAny:
      return true;
    case TypeClass::kFloat:
      return IsFloat(dtype);
    case TypeClass::kInteger:
      return IsInteger(dtype);
    case TypeClass::kIntegral:
      return IsIntegral(dtype);
    case TypeClass::kNumber:
      return IsInteger(dtype) || IsFloat(dtype);
    case TypeClass::kBool:
      return dtype == DType::kBool;
  }
  return false;
}

std::optional<ScalarOp> ScalarOpFromName(absl::string_view name) {
  static const auto& by_name = *[] {
    auto* map = new absl::flat_hash_map<absl::string_view, ScalarOp>;
    for (size_t i = 0; i < std::size(kInfos); ++i) {
      map->emplace(kInfos[i].name, static_cast<ScalarOp>(i));
    }
    return map;
  }();
  auto it = by_name.find(name);
  if (it == by_name.end()) return std::nullopt;
  return it->second;
}

std::optional<ScalarOp> CombinerOf(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return ScalarOp::kAdd;
    case ReduceKind::kProd:
      return ScalarOp::kMul;
    case ReduceKind::kMax:
      return ScalarOp::kMax;
    case ReduceKind::kMin:
      return ScalarOp::kMin;
    case ReduceKind::kAny:
      return ScalarOp::kOr;
    case ReduceKind::kAll:
      return ScalarOp::kAnd;
    case ReduceKind::kLogAddExp:
    case ReduceKind::kArgMax:
    case ReduceKind::kArgMin:
      break;
  }
  return std::nullopt;
}

absl::string_view ReduceKindName(ReduceKind kind) {
  return kReduceNames[static_cast<size_t>(kind)];
}

std::optional<ReduceKind> ReduceKindFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kReduceNames); ++i) {
    if (kReduceNames[i] == name) return static_cast<ReduceKind>(i);
  }
  return std::nullopt;
}

}  // namespace kiln::ir
