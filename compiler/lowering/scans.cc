// Running sums, products and extremes.
#include <functional>
#include <vector>

#include "compiler/lowering/reduction.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::ReduceKind;

// One kernel over the elements of `self`, along `dim` one after another.
void EmitScan(NodeContext& n, const View& self, int dim, const View& out,
              const std::function<void(KernelBuilder&, const Ints&)>& body) {
  const ReductionShape shape = SplitDimensions(self, {dim});
  std::vector<int> order;
  for (const int d : n.LoopOrder(out)) {
    if (d != dim) order.push_back(d < dim ? d : d - 1);
  }
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(shape.kept, order);
  const Ints inner = b.StartPhase(shape.reduced);
  body(b, JoinCoordinates(shape, outer, inner));
  b.Finish();
}

// What ATen's CPU kernels accumulate a result in.
DType ScanType(DType result) {
  return result == DType::kF32 ? DType::kF64 : ComputeType(result);
}

// cumsum, cumprod, logcumsumexp: (self, dim, dtype)
absl::Status LowerFoldingScan(NodeContext& n, ReduceKind kind) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, self.sizes, "the result"));
  const DType type = n.Result(0).dtype;
  const bool needs_float = kind == ReduceKind::kLogAddExp;
  if (type == DType::kBool || (needs_float && !IsFloat(type))) return n.Decline("of such numbers");
  const auto element = [&](KernelBuilder& b, const Ints& at) {
    return b.Cast(b.Cast(b.Load(self, at), type), ScanType(type));
  };
  if (self.sizes.empty()) {
    n.PointwiseResult(0, element);
    return absl::OkStatus();
  }
  const View out = n.NewResult(0);
  EmitScan(n, self, dim, out, [&](KernelBuilder& b, const Ints& at) {
    b.Store(out, at, b.Scan(kind, element(b, at)));
  });
  n.SetResult(0, out);
  return absl::OkStatus();
}

// cummax, cummin: (self, dim) -> values and the places of the last elements that equal them.
absl::Status LowerExtremeScan(NodeContext& n, ReduceKind kind) {
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, self.sizes, "the values"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(1).sizes, self.sizes, "the indices"));
  if (self.sizes.empty() || self.dtype == DType::kBool) return n.Decline("of a scalar or of bools");
  const View values = n.NewResult(0), places = n.NewResult(1);
  EmitScan(n, self, dim, values, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = b.Widen(b.Load(self, at));
    const Scalar best = b.Scan(kind, x);
    b.Store(values, at, best);
    Scalar is_best = b.Op(kEq, x, best);
    if (IsFloat(x.dtype)) is_best = b.Op(kOr, is_best, b.Op(kIsNan, x));
    const Scalar place = b.Select(is_best, b.Index(at[dim]), b.ConstInt(DType::kI64, -1));
    b.Store(places, at, b.Scan(ReduceKind::kMax, place));
  });
  n.SetResult(0, values);
  n.SetResult(1, places);
  return absl::OkStatus();
}

// masked_scatter(self, mask, source): the mask's true elements, in row-major order, take the
// source's elements.
absl::Status LowerMaskedScatter(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View mask, n.Tensor(1, "mask"));
  KILN_ASSIGN_OR_RETURN(const View source, n.Tensor(2, "source"));
  const Ints& sizes = n.Result(0).sizes;
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, sizes));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(mask.sizes, sizes));
  if (mask.dtype != DType::kBool) return n.Decline("with a mask that is no bool");
  if (IsEmpty(source.sizes)) return n.Decline("of no values");
  if (source.dtype != self.dtype) return n.BadGraph("the source's type", "the argument's");
  const View places = n.NewTemp(sizes, DType::kI64);
  KernelBuilder b = n.NewKernel();
  const Ints at = b.StartPhase(sizes);
  const Scalar counted = b.Cast(b.LoadBroadcast(mask, at), DType::kI64);
  const Scalar count = b.Scan(ReduceKind::kSum, counted);
  b.Store(places, at, b.Op(kSub, count, counted));
  b.Finish();
  const View values = Reshape(n.ints(), source, {n.ints().Product(source.sizes)});
  n.PointwiseResult(0, [&](KernelBuilder& k, const Ints& to) {
    const Scalar is_taken = k.LoadBroadcast(mask, to);
    const Scalar place = k.Select(is_taken, k.Load(places, to), k.ConstInt(DType::kI64, 0));
    return k.Select(is_taken, k.LoadAt(values, {place}), k.LoadBroadcast(self, to));
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterScans(Registry& registry) {
  const auto folding = [](ReduceKind kind) {
    return [kind](NodeContext& n) { return LowerFoldingScan(n, kind); };
  };
  registry["cumsum.default"] = folding(ReduceKind::kSum);
  registry["cumprod.default"] = folding(ReduceKind::kProd);
  registry["logcumsumexp.default"] = folding(ReduceKind::kLogAddExp);
  registry["cummax.default"] = [](NodeContext& n) { return LowerExtremeScan(n, ReduceKind::kMax); };
  registry["cummin.default"] = [](NodeContext& n) { return LowerExtremeScan(n, ReduceKind::kMin); };
  registry["masked_scatter.default"] = LowerMaskedScatter;
}

}  // namespace kiln::lowering
