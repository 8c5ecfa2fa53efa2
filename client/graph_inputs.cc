#include "client/graph_inputs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/dtype.h"

namespace kiln {

const std::string* InputName(const v1::Graph& graph, size_t input, size_t which) {
  if (input >= static_cast<size_t>(graph.inputs_size())) return nullptr;
  const v1::Input& found = graph.inputs(static_cast<int>(input));
  if (which == 0) return &found.name();
  if (which > static_cast<size_t>(found.module_names_size())) return nullptr;
  return &found.module_names(static_cast<int>(which - 1));
}

std::string TypeText(const v1::TensorType& type, const v1::Graph& graph) {
  const auto dtype = DTypeFromProto(type.dtype());
  const auto size = [&graph](std::string* out, const v1::SymInt& s) {
    const v1::SymExpr& expr = s.expr();
    if (!s.has_expr()) {
      absl::StrAppend(out, s.value());
    } else if (expr.kind() == v1::SymExpr::KIND_SYMBOL &&
               expr.symbol() < static_cast<uint32_t>(graph.symbols_size())) {
      absl::StrAppend(out, graph.symbols(static_cast<int>(expr.symbol())).name());
    } else {
      absl::StrAppend(out, "?");
    }
  };
  return absl::StrCat(dtype.ok() ? DTypeName(*dtype) : "unknown", "[",
                      absl::StrJoin(type.sizes(), ", ", size), "]");
}

}  // namespace kiln
