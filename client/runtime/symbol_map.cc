#include "client/runtime/symbol_map.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr int kMaxDepth = 64;

absl::Status BadGraph(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the graph ", what));
}

}  // namespace

SymbolMap::SymbolMap(const Symbols& of_graph, const Symbols& of_program)
    : graph_(of_graph),
      program_(of_program),
      to_program_(static_cast<size_t>(of_graph.size())),
      to_graph_(static_cast<size_t>(of_program.size())) {}

bool SymbolMap::MatchSymbol(uint32_t of_graph, uint32_t of_program) {
  if (of_graph >= to_program_.size() || of_program >= to_graph_.size()) return false;
  if (to_program_[of_graph] || to_graph_[of_program]) {
    return to_program_[of_graph] == of_program && to_graph_[of_program] == of_graph;
  }
  const v1::Symbol& asked = graph_[static_cast<int>(of_graph)];
  const v1::Symbol& got = program_[static_cast<int>(of_program)];
  if (got.min() < asked.min() || got.max() > asked.max()) return false;
  to_program_[of_graph] = of_program;
  to_graph_[of_program] = of_graph;
  return true;
}

bool SymbolMap::Match(const v1::SymExpr& a, const v1::SymExpr& b, int depth) {
  if (depth > kMaxDepth || a.kind() != b.kind() || a.operands_size() != b.operands_size()) {
    return false;
  }
  if (a.kind() == v1::SymExpr::KIND_CONSTANT) return a.constant() == b.constant();
  if (a.kind() == v1::SymExpr::KIND_SYMBOL) return MatchSymbol(a.symbol(), b.symbol());
  for (int i = 0; i < a.operands_size(); ++i) {
    if (!Match(a.operands(i), b.operands(i), depth + 1)) return false;
  }
  return true;
}

bool SymbolMap::Match(const v1::SymInt& a, const v1::SymInt& b) {
  if (a.has_expr() != b.has_expr()) return false;
  return a.has_expr() ? Match(a.expr(), b.expr(), 0) : a.value() == b.value();
}

bool SymbolMap::Match(const v1::TensorType& a, const v1::TensorType& b) {
  if (a.dtype() != b.dtype() || a.sizes_size() != b.sizes_size() ||
      a.strides_size() != b.strides_size()) {
    return false;
  }
  for (int d = 0; d < a.sizes_size(); ++d) {
    if (!Match(a.sizes(d), b.sizes(d))) return false;
  }
  for (int d = 0; d < a.strides_size(); ++d) {
    if (!Match(a.strides(d), b.strides(d))) return false;
  }
  return Match(a.storage_offset(), b.storage_offset());
}

absl::Status SymbolMap::Translate(v1::SymExpr& expr, int depth) const {
  if (depth > kMaxDepth) return BadGraph("has an expression nested too deep");
  if (expr.kind() == v1::SymExpr::KIND_SYMBOL) {
    if (expr.symbol() >= to_program_.size()) {
      return BadGraph(absl::StrCat("has no symbol ", expr.symbol()));
    }
    if (to_program_[expr.symbol()]) {
      expr.set_symbol(*to_program_[expr.symbol()]);
      return absl::OkStatus();
    }
    const v1::Symbol& symbol = graph_[static_cast<int>(expr.symbol())];
    if (symbol.min() != symbol.max()) {
      return BadGraph(absl::StrCat("has no input that gives symbol '", symbol.name(), "'"));
    }
    expr.set_kind(v1::SymExpr::KIND_CONSTANT);
    expr.set_constant(symbol.min());
  }
  for (v1::SymExpr& operand : *expr.mutable_operands()) {
    KILN_RETURN_IF_ERROR(Translate(operand, depth + 1));
  }
  return absl::OkStatus();
}

absl::Status SymbolMap::Translate(v1::SymInt& size) const {
  return size.has_expr() ? Translate(*size.mutable_expr(), 0) : absl::OkStatus();
}

absl::Status SymbolMap::Translate(v1::TensorType& type) const {
  for (v1::SymInt& size : *type.mutable_sizes()) KILN_RETURN_IF_ERROR(Translate(size));
  for (v1::SymInt& stride : *type.mutable_strides()) KILN_RETURN_IF_ERROR(Translate(stride));
  return absl::OkStatus();
}

absl::Status SymbolMap::Translate(v1::ValueType& type) const {
  if (type.has_tensor()) return Translate(*type.mutable_tensor());
  return type.has_sym_int() ? Translate(*type.mutable_sym_int()) : absl::OkStatus();
}

absl::Status SymbolMap::Translate(v1::Argument& arg) const {
  return Translate(arg, 0);
}

absl::Status SymbolMap::Translate(v1::Argument& arg, int depth) const {
  if (depth > kMaxDepth) return BadGraph("has arguments nested too deep");
  if (arg.has_sym_int()) return Translate(*arg.mutable_sym_int());
  if (!arg.has_list()) return absl::OkStatus();
  for (v1::Argument& item : *arg.mutable_list()->mutable_items()) {
    KILN_RETURN_IF_ERROR(Translate(item, depth + 1));
  }
  return absl::OkStatus();
}

}  // namespace kiln::runtime
