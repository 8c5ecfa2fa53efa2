// Tensors made from nothing but numbers.
#include <vector>

#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;

absl::Status Fill(NodeContext& n, const Operand& value) {
  KILN_RETURN_IF_ERROR(CheckOperands(n, {value}));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return LoadOperand(b, value, at, n.Result(0).dtype);
  });
  return absl::OkStatus();
}

// The fill value is argument number `position`.
Lowering FillFrom(size_t position, const char* name) {
  return [position, name](NodeContext& n) -> absl::Status {
    KILN_ASSIGN_OR_RETURN(const Operand value, n.TensorOrNumber(position, name));
    return Fill(n, value);
  };
}

// Memory that eager leaves undefined is zero here, so that a run can be repeated exactly.
Lowering FillWith(int64_t value) {
  return [value](NodeContext& n) { return Fill(n, Number(value)); };
}

// arange.start_step(start, end, step); the recorded size says where it ends.
absl::Status LowerArange(NodeContext& n, size_t start_position, size_t step_position) {
  Number start = int64_t{0}, step = int64_t{1};
  if (start_position != SIZE_MAX) {
    KILN_ASSIGN_OR_RETURN(start, n.ScalarArg(start_position, "start"));
  }
  if (step_position != SIZE_MAX) {
    KILN_ASSIGN_OR_RETURN(step, n.ScalarArg(step_position, "step", int64_t{1}));
  }
  if (n.Result(0).sizes.size() != 1) return n.BadGraph("the result's rank", "1");
  // ATen accumulates floats in f64.
  const DType compute = IsFloat(n.Result(0).dtype) ? DType::kF64 : DType::kI64;
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar i = b.Cast(b.Index(at[0]), compute);
    return b.Op(kAdd, b.Const(compute, start), b.Op(kMul, i, b.Const(compute, step)));
  });
  return absl::OkStatus();
}

// eye(n, m)
absl::Status LowerEye(NodeContext& n) {
  if (n.Result(0).sizes.size() != 2) return n.BadGraph("the result's rank", "2");
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return b.Op(kEq, b.Index(at[0]), b.Index(at[1]));
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterCreation(Registry& registry) {
  registry["full.default"] = FillFrom(1, "fill_value");
  registry["full_like.default"] = FillFrom(1, "fill_value");
  registry["new_full.default"] = FillFrom(2, "fill_value");
  registry["scalar_tensor.default"] = FillFrom(0, "s");
  for (const char* op :
       {"zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format",
        "empty_like.default", "empty_strided.default", "new_empty.default",
        "new_empty_strided.default", "empty_permuted.default"}) {
    registry[op] = FillWith(0);
  }
  for (const char* op : {"ones.default", "ones_like.default", "new_ones.default"}) {
    registry[op] = FillWith(1);
  }
  registry["arange.default"] = [](NodeContext& n) { return LowerArange(n, SIZE_MAX, SIZE_MAX); };
  registry["arange.start"] = [](NodeContext& n) { return LowerArange(n, 0, SIZE_MAX); };
  registry["arange.start_step"] = [](NodeContext& n) { return LowerArange(n, 0, 2); };
  registry["eye.default"] = registry["eye.m"] = LowerEye;
}

}  // namespace kiln::lowering
