// The captured graph as plain structures: what import makes of kiln.v1.Graph and lowering reads.
// Everything in it has been checked: see import.h.
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/ir/int_expr.h"
#include "proto/base/dtype.h"

namespace kiln::graph {

struct TensorType {
  DType dtype = DType::kF32;
  std::vector<ir::IntExpr> sizes;    // elements
  std::vector<ir::IntExpr> strides;  // elements, as many as sizes
  ir::IntExpr offset;                // elements
};

// A number of a value: inputs first, then constants, then the nodes' results.
struct ValueRef {
  int id = -1;
  friend bool operator==(ValueRef, ValueRef) = default;
};

struct None {
  friend bool operator==(None, None) = default;
};
// A tensor, a size that arrives as a number, or a result that its call leaves out (an output mask):
// no argument and no output refers to one of those.
using ValueType = std::variant<TensorType, ir::IntExpr, None>;

struct Arg;
using ArgList = std::vector<Arg>;
struct Arg {
  std::variant<None, ValueRef, int64_t, double, bool, std::string, DType, ir::IntExpr, ArgList,
               std::complex<double>>
      value;
};

struct Node {
  std::string name;
  std::string op;  // "aten.add.Tensor"
  std::vector<Arg> args;
  std::vector<std::pair<std::string, Arg>> kwargs;
  std::vector<ValueRef> results;
};

enum class InputRole : uint8_t { kUser, kParameter, kSymbol };

struct Input {
  std::string name;
  InputRole role = InputRole::kUser;
};

struct Constant {
  std::string name;
  std::string data;  // little endian, contiguous
};

using Output = std::variant<None, ValueRef, ir::IntExpr>;

struct Mutation {
  int input = -1;
  ValueRef value;
};

struct Graph {
  std::vector<Input> inputs;        // values 0 .. inputs-1
  std::vector<Constant> constants;  // the values after them
  std::vector<ValueType> values;    // by number
  std::vector<Node> nodes;
  std::vector<Output> outputs;
  std::vector<Mutation> mutations;
};

}  // namespace kiln::graph
