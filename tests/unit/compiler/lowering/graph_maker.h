// Small graphs for tests: made node by node, then imported, lowered, verified and interpreted.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/module.h"
#include "compiler/lowering/lower.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::lowering {

using Sizes = std::vector<int64_t>;

// A node's argument.
v1::Argument Value(int id);
v1::Argument Int(int64_t value);
v1::Argument Float(double value);
v1::Argument Bool(bool value);
v1::Argument String(const std::string& value);
v1::Argument IntList(const Sizes& values);
v1::Argument ValueList(const std::vector<int>& ids);
v1::Argument NoArg();

class GraphMaker {
 public:
  GraphMaker();

  // Inputs come first. Row-major data; `strides` default to contiguous ones. Return the value's id.
  int Input(const Sizes& sizes, const std::vector<double>& data, v1::DType = v1::DTYPE_FLOAT32);
  int InputStrided(const Sizes& sizes, const Sizes& strides, const std::vector<double>& memory);
  // A symbol in [2, 1000]; sizes of kSymbol + number mean it.
  int64_t Symbol(int64_t value);
  static constexpr int64_t kSymbol = int64_t{1} << 50;

  // Adds a node with one contiguous result and returns its id.
  int Node(const std::string& op, std::vector<v1::Argument> args, const Sizes& sizes,
           v1::DType dtype = v1::DTYPE_FLOAT32);
  // Adds a result to the last node.
  int MoreResult(const Sizes& sizes, v1::DType dtype = v1::DTYPE_FLOAT32);
  void Keyword(const std::string& name, v1::Argument value);  // of the last node
  void Output(int id);

  v1::Graph& proto() { return proto_; }
  void CheckDivisors() { checks_divisors_ = true; }  // LoweringOptions

  // Import and Lower; `module` is left as Lower leaves it.
  absl::Status Lower(ir::Module& module, bool library_steps = false) const;
  // Lower, Verify and Interpret.
  absl::StatusOr<std::vector<ir::ReferenceTensor>> Run() const;

 private:
  void SetType(v1::TensorType& type, const Sizes& sizes, const Sizes& strides, v1::DType dtype);
  Sizes Contiguous(const Sizes& sizes) const;

  v1::Graph proto_;
  std::vector<HostTensor> inputs_;
  std::vector<int64_t> symbols_;
  int next_id_ = 0;
  bool checks_divisors_ = false;
};

// Runs a graph with one output; an empty vector, after a test failure, where it fails.
std::vector<double> RunOne(const GraphMaker& maker);

}  // namespace kiln::lowering
