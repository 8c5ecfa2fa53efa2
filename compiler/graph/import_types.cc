#include "compiler/graph/import_types.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/import.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/random_inputs.h"
#include "proto/base/status_macros.h"

namespace kiln::graph {
namespace {

constexpr size_t kMaxNameLength = 200;
constexpr int kMaxSymbols = 10'000;

// Counts the nodes of an expression and measures its depth before anything is built from it.
absl::Status CheckExpression(const v1::SymExpr& expr, int depth, int& nodes, const Place& place) {
  if (depth > kMaxNesting) {
    return BadGraph(place, "a size expression is nested too deeply",
                    absl::StrCat("at most ", kMaxNesting, " levels"));
  }
  if (++nodes > kMaxExpressionNodes) {
    return BadGraph(place, "a size expression is too large",
                    absl::StrCat("at most ", kMaxExpressionNodes, " operands in all"));
  }
  for (const v1::SymExpr& operand : expr.operands()) {
    KILN_RETURN_IF_ERROR(CheckExpression(operand, depth + 1, nodes, place));
  }
  return absl::OkStatus();
}

absl::Status CheckOperandCount(const v1::SymExpr& expr, const Place& place) {
  const int count = expr.operands_size();
  switch (expr.kind()) {
    case v1::SymExpr::KIND_CONSTANT:
    case v1::SymExpr::KIND_SYMBOL:
      if (count != 0) return BadGraph(place, "a leaf of a size expression has operands", "none");
      return absl::OkStatus();
    case v1::SymExpr::KIND_FLOOR_DIV:
    case v1::SymExpr::KIND_MOD:
      if (count != 2) {
        return BadGraph(place, absl::StrCat("a division in a size has ", count, " operands"), "2");
      }
      return absl::OkStatus();
    case v1::SymExpr::KIND_ADD:
    case v1::SymExpr::KIND_MUL:
    case v1::SymExpr::KIND_MIN:
    case v1::SymExpr::KIND_MAX:
      if (count < 2) {
        return BadGraph(place, absl::StrCat("a size expression has ", count, " operands"),
                        "two or more");
      }
      return absl::OkStatus();
    default:
      return BadGraph(place, absl::StrCat("size expression of unknown kind ", expr.kind()),
                      "one of SymExpr.Kind");
  }
}

// a / b rounded down, or what it leaves, with b's sign. No model reaches a division by zero, since
// eager raises there too; but ranges may include it, and an expression must have a value for all
// values of its symbols. Of a b that may be of either sign, as an integer argument may, the sign
// goes to a, since a / b = (-a) / (-b) and a mod b = -((-a) mod (-b)).
ir::IntExpr Divide(v1::SymExpr::Kind kind, ir::IntExpr a, ir::IntExpr b, ir::IntContext& ints) {
  const ir::IntExpr one = ints.Const(1);
  const bool mod = kind == v1::SymExpr::KIND_MOD;
  const bool not_negative = ints.ProvablyLessEqual(ints.Const(0), b);
  if (not_negative || b.range().max < 0) {
    if (not_negative) b = ints.Max(b, one);
    return mod ? ints.Mod(a, b) : ints.FloorDiv(a, b);
  }
  const ir::IntExpr sign = ints.Min(ints.Max(b, ints.Const(-1)), one);
  const ir::IntExpr size = ints.Max(ints.Max(b, ints.Mul(b, -1)), one);
  a = ints.Mul(sign, a);
  return mod ? ints.Mul(sign, ints.Mod(a, size)) : ints.FloorDiv(a, size);
}

absl::StatusOr<ir::IntExpr> BuildExpression(const v1::SymExpr& expr,
                                            const std::vector<ir::IntExpr>& symbols,
                                            ir::IntContext& ints, const Place& place) {
  KILN_RETURN_IF_ERROR(CheckOperandCount(expr, place));
  if (expr.kind() == v1::SymExpr::KIND_CONSTANT) return ints.Const(expr.constant());
  if (expr.kind() == v1::SymExpr::KIND_SYMBOL) {
    if (expr.symbol() >= symbols.size()) {
      return BadGraph(place, absl::StrCat("a size refers to symbol ", expr.symbol()),
                      absl::StrCat("a number below ", symbols.size()));
    }
    return symbols[expr.symbol()];
  }
  KILN_ASSIGN_OR_RETURN(ir::IntExpr result,
                        BuildExpression(expr.operands(0), symbols, ints, place));
  for (int i = 1; i < expr.operands_size(); ++i) {
    KILN_ASSIGN_OR_RETURN(const ir::IntExpr operand,
                          BuildExpression(expr.operands(i), symbols, ints, place));
    switch (expr.kind()) {
      case v1::SymExpr::KIND_ADD:
        result = ints.Add(result, operand);
        break;
      case v1::SymExpr::KIND_MUL:
        result = ints.Mul(result, operand);
        break;
      case v1::SymExpr::KIND_MIN:
        result = ints.Min(result, operand);
        break;
      case v1::SymExpr::KIND_MAX:
        result = ints.Max(result, operand);
        break;
      default:
        result = Divide(expr.kind(), result, operand, ints);
    }
  }
  return result;
}

// The one operand that is no constant, and what the constants add up (multiply) to; null where
// there are several such operands, or the constants are too large to reckon with.
const v1::SymExpr* OnlyVariable(const v1::SymExpr& expr, __int128& constants) {
  const bool product = expr.kind() == v1::SymExpr::KIND_MUL;
  const v1::SymExpr* variable = nullptr;
  constants = product ? 1 : 0;
  for (const v1::SymExpr& operand : expr.operands()) {
    if (operand.kind() == v1::SymExpr::KIND_CONSTANT) {
      constants = product ? constants * operand.constant() : constants + operand.constant();
      if (constants > INT64_MAX || constants < INT64_MIN) return nullptr;
    } else if (variable != nullptr) {
      return nullptr;
    } else {
      variable = &operand;
    }
  }
  return variable;
}

// What `size` >= 0 says about its symbol, where it is a chain of sums, products and divisions by
// constants: that of (s - 10) // 5 + 1 is at least 5. Raises minima[symbol].
void RaiseMinimum(const v1::SymExpr& size, std::vector<int64_t>& minima) {
  const v1::SymExpr* expr = &size;
  __int128 least = 0, constants = 0;
  for (int depth = 0; expr != nullptr && depth < kMaxNesting; ++depth) {
    if (least > INT64_MAX || least < INT64_MIN) return;
    switch (expr->kind()) {
      case v1::SymExpr::KIND_SYMBOL:
        if (expr->symbol() >= minima.size()) return;
        minima[expr->symbol()] = std::max(minima[expr->symbol()], static_cast<int64_t>(least));
        return;
      case v1::SymExpr::KIND_ADD:
        expr = OnlyVariable(*expr, constants);
        least -= constants;
        break;
      case v1::SymExpr::KIND_MUL:
        expr = OnlyVariable(*expr, constants);
        if (constants <= 0) return;
        least = (least > 0 ? least + constants - 1 : least) / constants;
        break;
      case v1::SymExpr::KIND_FLOOR_DIV: {
        if (expr->operands_size() != 2) return;
        const v1::SymExpr& divisor = expr->operands(1);
        if (divisor.kind() != v1::SymExpr::KIND_CONSTANT || divisor.constant() <= 0) return;
        least *= divisor.constant();
        expr = &expr->operands(0);
        break;
      }
      default:
        return;
    }
  }
}

void RaiseMinima(const v1::ValueType& value, std::vector<int64_t>& minima) {
  for (const v1::SymInt& size : value.tensor().sizes()) {
    if (size.has_expr()) RaiseMinimum(size.expr(), minima);
  }
}

// The least value of each symbol for which every tensor of the graph has a size of 0 or more.
std::vector<int64_t> SymbolMinima(const v1::Graph& graph) {
  std::vector<int64_t> minima;
  for (const v1::Symbol& symbol : graph.symbols()) minima.push_back(symbol.min());
  for (const v1::Input& input : graph.inputs()) RaiseMinima(input.type(), minima);
  for (const v1::Node& node : graph.nodes()) {
    for (const v1::ValueType& result : node.results()) RaiseMinima(result, minima);
  }
  return minima;
}

}  // namespace

absl::Status BadGraph(const Place& place, absl::string_view what, absl::string_view expected) {
  return BadGraphError(place.name, place.op, what, expected);
}

std::string SafeName(absl::string_view name) {
  std::string safe(name.substr(0, kMaxNameLength));
  for (char& c : safe) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') c = '_';
  }
  return safe;
}

absl::Status TypeReader::ReadSymbols(const v1::Graph& graph) {
  const Place place{"graph", ""};
  if (graph.symbols_size() > kMaxSymbols) {
    return BadGraph(place, absl::StrCat(graph.symbols_size(), " symbols"),
                    absl::StrCat("at most ", kMaxSymbols));
  }
  const std::vector<int64_t> minima = SymbolMinima(graph);
  for (int i = 0; i < graph.symbols_size(); ++i) {
    const v1::Symbol& symbol = graph.symbols(i);
    if (symbol.min() > symbol.max()) {
      return BadGraph({absl::StrCat("symbol ", SafeName(symbol.name())), ""},
                      absl::StrCat("its range is [", symbol.min(), ", ", symbol.max(), "]"),
                      "a minimum that is not above the maximum");
    }
    const int64_t min = std::min(minima[i], symbol.max());
    hints_.push_back(std::clamp(symbol.hint(), min, symbol.max()));
    symbols_.push_back(ints_.NewSymbol(SafeName(symbol.name()), min, symbol.max(), hints_.back()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ir::IntExpr> TypeReader::ReadInt(const v1::SymInt& proto, const Place& place) {
  switch (proto.kind_case()) {
    case v1::SymInt::kValue:
      return ints_.Const(proto.value());
    case v1::SymInt::kExpr: {
      int nodes = 0;
      KILN_RETURN_IF_ERROR(CheckExpression(proto.expr(), 1, nodes, place));
      if (nodes > kLargeExpressionNodes) large_nodes_ += nodes;
      if (large_nodes_ > kMaxLargeExpressionNodes) {
        return BadGraph(place, "the graph's large size expressions are too many",
                        absl::StrCat("at most ", kMaxLargeExpressionNodes, " operands in all"));
      }
      KILN_ASSIGN_OR_RETURN(const ir::IntExpr expr,
                            BuildExpression(proto.expr(), symbols_, ints_, place));
      if (ir::TreeSize(expr) > kMaxExpandedNodes) {
        return BadGraph(place, "a size expression is too large when it is multiplied out",
                        absl::StrCat("at most ", kMaxExpandedNodes, " operands"));
      }
      // Overflow at the hints, where later stages evaluate sizes to make choices.
      if (absl::Status status = EvaluateSymInt(proto, hints_).status(); !status.ok()) {
        return BadGraph(place, status.message(), "a size that fits 64 bits");
      }
      return expr;
    }
    default:
      return BadGraph(place, "a size without a value", "a number or an expression");
  }
}

absl::Status TypeReader::CheckExtent(const v1::TensorType& proto, const Place& place) const {
  // At the hints where sizes are symbolic; ReadInt has checked that they evaluate.
  __int128 elements = 1;
  __int128 reach = 0;
  for (int i = 0; i < proto.sizes_size(); ++i) {
    KILN_ASSIGN_OR_RETURN(const int64_t size, EvaluateSymInt(proto.sizes(i), hints_));
    KILN_ASSIGN_OR_RETURN(const int64_t stride, EvaluateSymInt(proto.strides(i), hints_));
    if (size < 0) {
      return BadGraph(place, absl::StrCat("dimension ", i, " has size ", size),
                      "a size of 0 or more");
    }
    if (stride < 0) {
      return BadGraph(place, absl::StrCat("dimension ", i, " has stride ", stride),
                      "a stride of 0 or more");
    }
    elements *= size;
    // Where an earlier size is 0, a later one may be anything; each is bounded by itself.
    if (size > kMaxElements || elements > kMaxElements) {
      return BadGraph(place, "the tensor is too large",
                      absl::StrCat("at most ", kMaxElements, " elements"));
    }
    if (stride > kMaxElements) {
      return BadGraph(place, absl::StrCat("dimension ", i, " has stride ", stride),
                      absl::StrCat("at most ", kMaxElements));
    }
    if (size > 0) reach += static_cast<__int128>(size - 1) * stride;
  }
  int64_t offset = 0;
  if (proto.has_storage_offset()) {
    KILN_ASSIGN_OR_RETURN(offset, EvaluateSymInt(proto.storage_offset(), hints_));
  }
  if (offset < 0 || offset > kMaxElements) {
    return BadGraph(place, absl::StrCat("the storage offset is ", offset),
                    absl::StrCat("0 to ", kMaxElements));
  }
  if (reach > kMaxElements) {
    return BadGraph(place, "the tensor's strides reach too far",
                    absl::StrCat("at most ", kMaxElements, " elements from its start"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorType> TypeReader::ReadTensor(const v1::TensorType& proto, const Place& place) {
  TensorType type;
  absl::StatusOr<DType> dtype = DTypeFromProto(proto.dtype());
  if (!dtype.ok()) {
    return BadGraph(place, absl::StrCat("element type ", static_cast<int>(proto.dtype())),
                    "one of DType");
  }
  type.dtype = *dtype;
  if (proto.sizes_size() > kMaxRank) {
    return BadGraph(place, absl::StrCat("a tensor of ", proto.sizes_size(), " dimensions"),
                    absl::StrCat("at most ", kMaxRank));
  }
  if (proto.sizes_size() != proto.strides_size()) {
    return BadGraph(
        place, absl::StrCat(proto.sizes_size(), " sizes but ", proto.strides_size(), " strides"),
        "as many strides as sizes");
  }
  for (const v1::SymInt& size : proto.sizes()) {
    KILN_ASSIGN_OR_RETURN(ir::IntExpr expr, ReadInt(size, place));
    // The client guarantees it where the ranges do not show it; loops must never run backwards.
    if (!expr.is_const() && expr.range().min < 0) expr = ints_.Max(expr, ints_.Const(0));
    type.sizes.push_back(expr);
  }
  for (const v1::SymInt& stride : proto.strides()) {
    KILN_ASSIGN_OR_RETURN(type.strides.emplace_back(), ReadInt(stride, place));
  }
  type.offset = ints_.Const(0);
  if (proto.has_storage_offset()) {
    KILN_ASSIGN_OR_RETURN(type.offset, ReadInt(proto.storage_offset(), place));
  }
  KILN_RETURN_IF_ERROR(CheckExtent(proto, place));
  return type;
}

absl::StatusOr<ValueType> TypeReader::ReadValue(const v1::ValueType& proto, const Place& place) {
  switch (proto.kind_case()) {
    case v1::ValueType::kTensor: {
      KILN_ASSIGN_OR_RETURN(TensorType type, ReadTensor(proto.tensor(), place));
      return ValueType(std::move(type));
    }
    case v1::ValueType::kSymInt: {
      KILN_ASSIGN_OR_RETURN(const ir::IntExpr value, ReadInt(proto.sym_int(), place));
      return ValueType(value);
    }
    default:
      return BadGraph(place, "a value without a type", "a tensor type or a size");
  }
}

}  // namespace kiln::graph
