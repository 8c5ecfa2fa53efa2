#include "compiler/lowering/matmul.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/packed_weights.h"
#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

// Up to so many rows or columns, loading the other matrix bounds the time and blocking gains
// nothing.
constexpr int64_t kFew = 4;
// The same of rows times a parameter, which is laid out in panels once: reading those for three
// rows takes half of the time that sums of rows need.
constexpr int64_t kFewRowsOfParameter = 2;

bool IsFew(IntExpr size, int64_t few = kFew) {
  return size.is_const() && size.value() <= few;
}

absl::Status CheckMatrices(NodeContext& n, const View& a, const View& b, size_t rank) {
  if (a.sizes.size() != rank || b.sizes.size() != rank) {
    return n.BadGraph("an operand's rank", rank == 2 ? "2" : "3");
  }
  if (a.dtype != b.dtype) return n.BadGraph("operands of different types", "equal types");
  if (a.dtype == DType::kBool) return n.Decline("of bools");
  Ints sizes(a.sizes.begin(), a.sizes.end() - 1);
  sizes.push_back(b.sizes.back());
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, sizes, "the result"));
  Ints expected(a.sizes.begin(), a.sizes.end() - 2);
  expected.push_back(a.sizes.back());
  expected.push_back(b.sizes.back());
  return n.CheckSizes(b.sizes, expected, "the second matrix");
}

absl::Status LowerMatmul(NodeContext& n, size_t rank) {
  KILN_ASSIGN_OR_RETURN(const View a, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View b, n.Tensor(1, "mat2"));
  KILN_RETURN_IF_ERROR(CheckMatrices(n, a, b, rank));
  const View out = n.NewResult(0);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, a, b, out));
  n.SetResult(0, out);
  return absl::OkStatus();
}

// beta * self + alpha * (a @ b): the product in one kernel, the rest in a second one that fusion
// makes its epilogue. The product keeps its accumulation type, as one fused kernel would.
absl::Status LowerAddMatmul(NodeContext& n, size_t rank) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View a, n.Tensor(1, "mat1"));
  KILN_ASSIGN_OR_RETURN(const View b, n.Tensor(2, "mat2"));
  KILN_ASSIGN_OR_RETURN(const Number beta, n.ScalarArg(3, "beta", int64_t{1}));
  KILN_ASSIGN_OR_RETURN(const Number alpha, n.ScalarArg(4, "alpha", int64_t{1}));
  KILN_RETURN_IF_ERROR(CheckMatrices(n, a, b, rank));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  const DType compute = ComputeType(n.Result(0).dtype);
  const View product = n.NewTempLike(0, compute);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, a, b, product));
  const auto is = [](const Number& number, double value) {
    const auto* i = std::get_if<int64_t>(&number);
    const auto* d = std::get_if<double>(&number);
    return (i != nullptr && static_cast<double>(*i) == value) || (d != nullptr && *d == value);
  };
  n.PointwiseResult(0, [&](KernelBuilder& k, const Ints& at) {
    Scalar result = k.Load(product, at);
    if (!is(alpha, 1)) result = k.Op(kMul, result, k.Const(compute, alpha));
    // A factor of 0 hides even NaN in `self`.
    if (is(beta, 0)) return result;
    Scalar bias = k.Cast(k.LoadBroadcast(self, at), compute);
    if (!is(beta, 1)) bias = k.Op(kMul, bias, k.Const(compute, beta));
    return k.Op(kAdd, result, bias);
  });
  return absl::OkStatus();
}

// mv, dot: no rows or columns to block over.
absl::Status LowerVectorProduct(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View a, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View b, n.Tensor(1, "vec"));
  if (b.sizes.size() != 1 || a.sizes.empty() || a.sizes.size() > 2 || a.dtype != b.dtype) {
    return n.BadGraph("its operands", "a matrix or vector and a vector of one type");
  }
  if (a.dtype == DType::kBool) return n.Decline("of bools");
  KILN_RETURN_IF_ERROR(n.CheckSizes({a.sizes.back()}, b.sizes, "the last dimension"));
  const Ints rows(a.sizes.begin(), a.sizes.end() - 1);
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, rows, "the result"));
  const View out = n.NewResult(0);
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(rows);
  const Ints inner = k.StartPhase(b.sizes);
  Ints at = outer;
  at.push_back(inner[0]);
  const Scalar x = k.Widen(k.Load(a, at));
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, x, k.Widen(k.Load(b, inner))));
  k.StartPhase();
  k.Store(out, outer, sum);
  k.Finish();
  n.SetResult(0, out);
  return absl::OkStatus();
}

// linear(input, weight, bias): input[.., k] @ weight[j, k]^T + bias[j]
absl::Status LowerLinear(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View input, n.Tensor(0, "input"));
  KILN_ASSIGN_OR_RETURN(const View weight, n.Tensor(1, "weight"));
  KILN_ASSIGN_OR_RETURN(const std::optional<View> bias, n.OptionalTensor(2, "bias"));
  if (input.sizes.empty() || weight.sizes.size() != 2 || input.dtype != weight.dtype) {
    return n.BadGraph("its operands", "an input and a matrix of one type");
  }
  if (!IsFloat(input.dtype)) return n.Decline("of integers");
  Ints sizes(input.sizes.begin(), input.sizes.end() - 1);
  const IntExpr rows = n.ints().Product(sizes);
  sizes.push_back(weight.sizes[0]);
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, sizes, "the result"));
  KILN_RETURN_IF_ERROR(n.CheckSizes({weight.sizes[1]}, {input.sizes.back()}, "the weight"));
  if (bias) KILN_RETURN_IF_ERROR(n.CheckBroadcast(bias->sizes, {weight.sizes[0]}));
  const View matrix = Reshape(n.ints(), input, {rows, input.sizes.back()});
  const View out = bias ? n.NewTemp(sizes, ComputeType(n.Result(0).dtype)) : n.NewResult(0);
  const View flat = Reshape(n.ints(), out, {rows, weight.sizes[0]});
  KILN_RETURN_IF_ERROR(EmitMatmul(n, matrix, Permute(n.ints(), weight, {1, 0}), flat));
  if (!bias) {
    n.SetResult(0, out);
    return absl::OkStatus();
  }
  n.PointwiseResult(0, [&](KernelBuilder& k, const Ints& at) {
    const Scalar product = k.Load(out, at);
    return k.Op(kAdd, product, k.Cast(k.LoadBroadcast(*bias, at), product.dtype));
  });
  return absl::OkStatus();
}

// _weight_int4pack_mm(self, mat2, group, scales): self [m, k] times weights of 4 bits, which
// compiler/ir/packed_weights.h says more of. Unpacked by a kernel of their own, which fusion takes
// into the product where the device multiplies by them as they lie.
absl::Status LowerPackedMatmul(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View a, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View words, n.Tensor(1, "mat2"));
  KILN_ASSIGN_OR_RETURN(const int64_t group, n.ConstInt(2, "qGroupSize", 0));
  KILN_ASSIGN_OR_RETURN(const View scales, n.Tensor(3, "qScaleAndZeros"));
  if (a.sizes.size() != 2 || words.sizes.size() != 4 || scales.sizes.size() != 3) {
    return n.BadGraph("its operands", "ranks of 2, 4 and 3");
  }
  if ((a.dtype != DType::kBF16 && a.dtype != DType::kF16) || words.dtype != DType::kI32 ||
      scales.dtype != a.dtype) {
    return n.Decline("of such types");
  }
  if (group != 32 && group != 64 && group != 128 && group != 256) {
    return n.BadGraph(absl::StrCat("'qGroupSize' ", group), "32, 64, 128 or 256");
  }
  const IntExpr half = words.sizes[3];
  if (!half.is_const(1) && !half.is_const(2) && !half.is_const(4)) {
    return n.BadGraph("'mat2'", "1, 2 or 4 words of a lane");
  }
  ir::IntContext& ints = n.ints();
  const int64_t inner = 2 * half.value();
  const IntExpr depth = a.sizes[1], columns = ints.Mul(words.sizes[0], ir::kPackedColumns);
  if (!depth.is_const() || !columns.is_const()) return n.Decline("of unknown sizes");
  KILN_RETURN_IF_ERROR(
      n.CheckSizes({ints.Mul(words.sizes[1], ir::kPackedDepth * inner), words.sizes[2]},
                   {depth, ints.Const(ir::kPackedLanes)}, "'mat2'"));
  if (depth.value() % group != 0) {
    return n.BadGraph(absl::StrCat("a depth of ", depth.value()), "a multiple of 'qGroupSize'");
  }
  KILN_RETURN_IF_ERROR(n.CheckSizes(
      scales.sizes, {ints.Const(depth.value() / group), columns, ints.Const(2)}, "the scales"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, {a.sizes[0], columns}, "the result"));
  const View weights = n.NewTemp({columns, depth}, a.dtype);
  n.Pointwise(weights, [&](KernelBuilder& k, const Ints& at) {
    const std::array<IntExpr, 4> word = ir::PackedWord(ints, inner, at[0], at[1]);
    const Scalar shift = k.Cast(k.Index(ir::PackedShift(ints, at[1])), DType::kI32);
    const Scalar shifted = k.Op(kShr, k.Load(words, {word.begin(), word.end()}), shift);
    const Scalar number = k.Cast(k.Op(kAnd, shifted, 15), DType::kF32);
    const IntExpr of_group = ints.FloorDiv(at[1], group);
    const auto load = [&](int64_t which) {
      return k.Widen(k.Load(scales, {of_group, at[0], ints.Const(which)}));
    };
    const Scalar centred = k.Op(kSub, number, static_cast<double>(ir::kPackedMiddle));
    return k.Cast(k.Op(kAdd, k.Op(kMul, centred, load(0)), load(1)), a.dtype);
  });
  const View out = n.NewResult(0);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, a, Permute(ints, weights, {1, 0}), out));
  n.SetResult(0, out);
  return absl::OkStatus();
}

}  // namespace

namespace {

// Whether the second matrix is one that LoweringOptions::contracts_few_rows is about: of 16 bits,
// with lines along the depth that begin at multiples of 16 bytes.
bool IsForTensorCores(NodeContext& n, const View& b) {
  constexpr int64_t kUnit = 8;
  if (b.sizes.size() != 2 || (b.dtype != DType::kBF16 && b.dtype != DType::kF16)) return false;
  const IntExpr index = ir::LinearIndex(n.ints(), n.module().buffers[b.buffer], b.indices);
  const auto stride = [&](size_t dimension) -> int64_t {
    if (b.sizes[dimension].is_const(1)) return 0;
    const IntExpr found = n.ints().CoefficientOf(index, b.vars[dimension]);
    return found && found.is_const() ? found.value() : 0;
  };
  return stride(0) == 1 && stride(1) > 0 && stride(1) % kUnit == 0 && b.sizes[1].is_const() &&
         b.sizes[1].value() % kUnit == 0;
}

}  // namespace

absl::Status EmitMatmul(NodeContext& n, const View& a, const View& b, const View& out) {
  const size_t rank = out.sizes.size();
  const IntExpr rows = out.sizes[rank - 2];
  const IntExpr columns = out.sizes[rank - 1];
  const IntExpr depth = a.sizes[rank - 1];
  const DType compute = ComputeType(a.dtype);
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(out.sizes);
  const Ints inner = k.StartPhase({depth});
  Ints at_a = outer, at_b = outer;
  at_a[rank - 1] = inner[0];
  at_b[rank - 2] = inner[0];
  const Scalar x = k.Cast(k.Load(a, at_a), compute);
  const Scalar y = k.Cast(k.Load(b, at_b), compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, x, y));
  k.StartPhase();
  k.Store(out, outer, sum);
  const int64_t few_rows = n.contracts_few_rows() && IsForTensorCores(n, b) ? 0
                           : n.module().buffers[b.buffer].parameter         ? kFewRowsOfParameter
                                                                            : kFew;
  const bool is_blocked =
      IsFloat(compute) && !IsFew(rows, few_rows) && !IsFew(columns) && !IsFew(depth);
  k.Finish(is_blocked ? ir::Schedule::kContraction : ir::Schedule::kLoops);
  return absl::OkStatus();
}

void RegisterMatmul(Registry& registry) {
  registry["mm.default"] = [](NodeContext& n) { return LowerMatmul(n, 2); };
  // The third argument is the result's type, which the graph states, too.
  registry["mm.dtype"] = [](NodeContext& n) { return LowerMatmul(n, 2); };
  registry["bmm.default"] = [](NodeContext& n) { return LowerMatmul(n, 3); };
  registry["addmm.default"] = [](NodeContext& n) { return LowerAddMatmul(n, 2); };
  registry["baddbmm.default"] = [](NodeContext& n) { return LowerAddMatmul(n, 3); };
  registry["mv.default"] = LowerVectorProduct;
  registry["dot.default"] = LowerVectorProduct;
  registry["linear.default"] = LowerLinear;
  registry["_weight_int4pack_mm.default"] = LowerPackedMatmul;
}

}  // namespace kiln::lowering
