// Element types as ATen promotes them, and operands brought to them.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// The common type of two tensors' types.
DType PromoteTypes(DType a, DType b);

// The common type of operands: tensors with dimensions count before scalars of rank 0, and those
// before numbers; a later kind counts only where its category (bool, integer, float) is higher.
DType PromoteOperands(absl::Span<const Operand> operands);

// The element of `operand` at `at` of the result, broadcast, as `dtype`.
Scalar LoadOperand(KernelBuilder& b, const Operand& operand, const Ints& at, DType dtype);

// The same for arithmetic in ComputeType(common): rounded to `common` first where that is a 16-bit
// float and the operand another type, as ATen brings operands to one type before it computes.
Scalar LoadRounded(KernelBuilder& b, const Operand& operand, const Ints& at, DType common);

// `value` rounded to a float type, by way of f32 as ATen's conversions of numbers go.
double RoundTo(DType dtype, double value);

// INVALID_ARGUMENT unless every tensor broadcasts to result 0.
absl::Status CheckOperands(NodeContext& n, absl::Span<const Operand> operands);

}  // namespace kiln::lowering
