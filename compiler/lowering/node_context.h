// What a lowering sees of its node: arguments, types of the results, and where results go.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/graph/graph.h"
#include "compiler/ir/module.h"
#include "compiler/lowering/kernel_builder.h"
#include "compiler/lowering/storage.h"
#include "compiler/lowering/view.h"

namespace kiln::lowering {

// The state of lowering one graph.
struct LoweringState {
  const graph::Graph& graph;
  ir::Module& module;
  std::vector<std::optional<View>> values;  // by the graph's value number
  std::vector<bool> used;                   // values that someone reads
  absl::flat_hash_set<std::string> names;   // of buffers and kernels
  Storage storage;
  bool contracts_few_rows = false, checks_divisors = false;  // LoweringOptions
  bool lanes_beside_windows = false;                         // the same
  int64_t random_streams = 0;                                // that nodes have taken
  // Of the node's operations those up to there may be one launch of a device.
  size_t together_begin = 0, together_end = SIZE_MAX;

  // `base`, or `base_2`, `base_3`, ... where it is taken; letters, digits and '_' only.
  std::string UniqueName(absl::string_view base);
};

// A tensor or a number: what binary operators take.
using Operand = std::variant<View, Number>;

// Arguments are found by position in the schema, else by name: callers give both. Errors are of two
// kinds: INVALID_ARGUMENT ends the compile, UNIMPLEMENTED ("declines") sends the node to a library
// step.
class NodeContext {
 public:
  NodeContext(LoweringState& state, const graph::Node& node) : state_(state), node_(node) {}

  const graph::Node& node() const { return node_; }
  ir::Module& module() { return state_.module; }
  ir::IntContext& ints() { return *state_.module.ints; }
  bool contracts_few_rows() const { return state_.contracts_few_rows; }
  bool checks_divisors() const { return state_.checks_divisors; }
  bool lanes_beside_windows() const { return state_.lanes_beside_windows; }

  absl::Status BadGraph(absl::string_view what, absl::string_view expected) const;
  absl::Status Decline(absl::string_view why) const;

  // Null where the argument is absent or None.
  const graph::Arg* Find(size_t position, absl::string_view name) const;

  absl::StatusOr<View> Tensor(size_t position, absl::string_view name) const;
  absl::StatusOr<std::optional<View>> OptionalTensor(size_t position, absl::string_view name) const;
  // None among them is an empty optional.
  absl::StatusOr<std::vector<std::optional<View>>> TensorList(size_t position,
                                                              absl::string_view name) const;
  absl::StatusOr<Operand> TensorOrNumber(size_t position, absl::string_view name) const;
  absl::StatusOr<Number> ScalarArg(size_t position, absl::string_view name) const;
  absl::StatusOr<Number> ScalarArg(size_t position, absl::string_view name, Number otherwise) const;
  absl::StatusOr<double> Float(size_t position, absl::string_view name, double otherwise) const;
  absl::StatusOr<bool> Bool(size_t position, absl::string_view name, bool otherwise) const;
  absl::StatusOr<std::string> String(size_t position, absl::string_view name,
                                     absl::string_view otherwise) const;
  // A number or a size expression.
  absl::StatusOr<ir::IntExpr> Int(size_t position, absl::string_view name) const;
  // Declines where it is symbolic.
  absl::StatusOr<int64_t> ConstInt(size_t position, absl::string_view name,
                                   int64_t otherwise) const;
  // Empty where absent. A single number counts as a list of one.
  absl::StatusOr<Ints> IntList(size_t position, absl::string_view name) const;
  absl::StatusOr<std::vector<int64_t>> ConstIntList(size_t position, absl::string_view name) const;
  // Empty where absent; None among the items is 0.
  absl::StatusOr<std::vector<double>> FloatList(size_t position, absl::string_view name) const;
  // A list for `rank` spatial dimensions: one item counts for all, none gives `otherwise`.
  absl::StatusOr<std::vector<int64_t>> SpatialList(size_t position, absl::string_view name,
                                                   size_t rank, int64_t otherwise) const;
  // A dimension of a tensor of `rank`, counted from the end where negative.
  absl::StatusOr<int> Dimension(size_t position, absl::string_view name, size_t rank,
                                int64_t otherwise) const;
  absl::StatusOr<int> WrapDimension(int64_t dim, size_t rank) const;
  // Sorted, each once; every dimension where the argument is absent or empty.
  absl::StatusOr<std::vector<int>> Dimensions(size_t position, absl::string_view name,
                                              size_t rank) const;

  // False for one that the node leaves out: see HasOutputMask in registry.h.
  bool HasResult(size_t i) const;
  // REQUIRES: CheckResults has accepted the node, or HasResult(i).
  size_t num_results() const { return node_.results.size(); }
  const graph::TensorType& Result(size_t i) const;
  // The recorded type of a tensor value.
  const graph::TensorType& TypeOf(graph::ValueRef value) const;
  // False for a size as well: those who use it have its expression.
  bool ResultUsed(size_t i) const;
  void SetResult(size_t i, View view) { state_.values[node_.results[i].id] = std::move(view); }
  // Sets result i after checking that `view` has the recorded type's sizes and dtype.
  absl::Status SetView(size_t i, View view);
  // INVALID_ARGUMENT unless there are `count` results and all are tensors.
  absl::Status CheckResults(size_t count) const;
  // INVALID_ARGUMENT where constant sizes differ; symbolic ones are trusted.
  absl::Status CheckSizes(const Ints& actual, const Ints& expected, absl::string_view what) const;
  // INVALID_ARGUMENT unless `from` broadcasts to `to`.
  absl::Status CheckBroadcast(const Ints& from, const Ints& to) const;

  // A new temporary buffer: with the recorded strides of result i where those are dense, or
  // contiguous.
  View NewResult(size_t i);
  View NewTempLike(size_t i, DType dtype);  // laid out as result i
  View NewTemp(const Ints& sizes, DType dtype);
  // Before the first and behind the last of the kernels that a device may take together
  // (LoweringOptions::taken_together): without calls they are all that the node emits.
  void BeginTogether() { state_.together_begin = state_.module.operations.size(); }
  void EndTogether() { state_.together_end = state_.module.operations.size(); }
  // A number that no other node has.
  int64_t NextRandomStream() { return state_.random_streams++; }
  KernelBuilder NewKernel();
  // The loop nest's order that writes `view`'s buffer in memory order. REQUIRES: a whole buffer.
  std::vector<int> LoopOrder(const View& view) const;

  // One kernel over all elements of `out`; `body` gives the element at its coordinates.
  using Body = std::function<Scalar(KernelBuilder&, const Ints&)>;
  void Pointwise(const View& out, const Body& body);
  // The same for result i, and sets it.
  void PointwiseResult(size_t i, const Body& body);

 private:
  absl::StatusOr<ir::IntExpr> ToInt(const graph::Arg& arg, absl::string_view name) const;
  absl::Status WrongArgument(absl::string_view name, absl::string_view expected) const;

  LoweringState& state_;
  const graph::Node& node_;
};

}  // namespace kiln::lowering
