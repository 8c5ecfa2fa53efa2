// What reductions are called in the prelude.
#pragma once

#include <string>

#include "compiler/ir/scalar_op.h"

namespace kiln::codegen::source {

struct ReduceText {
  std::string functor;    // "KSum"; empty for argmax and argmin
  std::string identity;   // literal of the accumulation type
  bool greatest = false;  // argmax
};
// For operands of `type`, in which they are accumulated.
ReduceText DescribeReduce(ir::ReduceKind kind, DType type);

}  // namespace kiln::codegen::source
