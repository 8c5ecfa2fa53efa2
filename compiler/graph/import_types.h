// The parts of import that deal with types: symbols, size expressions, tensor types. Internal to
// compiler/graph.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/graph/graph.h"

namespace kiln::v1 {
class Graph;
class SymInt;
class TensorType;
class ValueType;
}  // namespace kiln::v1

namespace kiln::graph {

// Operands and leaves of one size expression, all levels together.
inline constexpr int kMaxExpressionNodes = 1024;
// Simplifying takes time quadratic in an expression's size, so those of more than
// kLargeExpressionNodes have at most kMaxLargeExpressionNodes in all of a graph.
inline constexpr int kLargeExpressionNodes = 256;
inline constexpr int kMaxLargeExpressionNodes = 1 << 17;
inline constexpr uint32_t kMaxExpandedNodes = 4096;  // of one, products multiplied out

// Where an error lies: the node, input or constant being read.
struct Place {
  std::string name;  // "add_3", or "input 4 (x)" where it is no node
  std::string op;    // empty where it is no node
};

absl::Status BadGraph(const Place& place, absl::string_view what, absl::string_view expected);

// `name` with everything but letters, digits, '_' and '.' replaced by '_', cut to 200 characters.
// Names come from the client and end in kernels' comments, messages and files' names.
std::string SafeName(absl::string_view name);

// Makes types in one IntContext. The symbols of the graph are created first.
class TypeReader {
 public:
  explicit TypeReader(ir::IntContext& ints) : ints_(ints) {}

  absl::Status ReadSymbols(const v1::Graph& graph);
  absl::StatusOr<ir::IntExpr> ReadInt(const v1::SymInt& proto, const Place& place);
  absl::StatusOr<TensorType> ReadTensor(const v1::TensorType& proto, const Place& place);
  absl::StatusOr<ValueType> ReadValue(const v1::ValueType& proto, const Place& place);

 private:
  absl::Status CheckExtent(const v1::TensorType& proto, const Place& place) const;

  ir::IntContext& ints_;
  std::vector<ir::IntExpr> symbols_;
  std::vector<int64_t> hints_;  // within the symbol's range
  int large_nodes_ = 0;         // of the large expressions so far
};

}  // namespace kiln::graph
