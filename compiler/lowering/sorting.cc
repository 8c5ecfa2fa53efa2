// Sorting of short rows: an element's place is the number of elements that come before it. For each
// row that is n^2 comparisons, which run in lanes, and beat n log n steps that depend on each other
// up to some hundred elements (Knuth, "The Art of Computer Programming" 5.2, comparison counting).
#include <string>
#include <vector>

#include "compiler/lowering/reduction.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

constexpr int64_t kMostCounted = 512;  // elements of a row

// An integer that orders as the element does: 0 and -0 are equal, and so are all NaN, which come
// last.
Scalar SortKey(KernelBuilder& b, Scalar x) {
  if (!IsFloat(x.dtype)) return x.dtype == DType::kBool ? b.Cast(x, DType::kI32) : x;
  x = b.Widen(x);
  const bool is_double = x.dtype == DType::kF64;
  const DType type = is_double ? DType::kI64 : DType::kI32;
  const Scalar unsigned_zero = b.Op(kAdd, x, 0.0);
  Scalar bits = b.Bitcast(unsigned_zero, type);
  // Of a negative number a greater magnitude is less.
  const Scalar sign = b.Op(kShr, bits, b.ConstInt(type, is_double ? 63 : 31));
  bits = b.Op(kXor, bits, b.Op(kAnd, sign, b.ConstInt(type, is_double ? INT64_MAX : INT32_MAX)));
  const Scalar last = b.ConstInt(type, is_double ? INT64_MAX : INT32_MAX);
  return b.Select(b.Op(kIsNan, x), last, bits);
}

// sort(self, dim, descending) -> values, indices; equal elements stay in order. Without that
// promise eager leaves them in an order of its own, which the indices show.
absl::Status SortBy(NodeContext& n, bool stable, size_t dim_position, size_t descending_position) {
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  if (!stable && n.ResultUsed(1)) return n.Decline("with indices whose order is the client's own");
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(dim_position, "dim", self.sizes.size(), -1));
  KILN_ASSIGN_OR_RETURN(const bool descending, n.Bool(descending_position, "descending", false));
  for (size_t i = 0; i < 2; ++i) {
    KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(i).sizes, self.sizes, "a result"));
  }
  if (n.Result(1).dtype != DType::kI64) return n.BadGraph("the indices' type", "i64");
  if (self.sizes.empty()) return n.Decline("of a scalar");
  const IntExpr length = self.sizes[dim];
  if (!length.is_const() || length.value() > kMostCounted) {
    return n.Decline("of rows that are long");
  }
  DType key_type = DType::kI32;
  if (self.dtype == DType::kF64) key_type = DType::kI64;
  if (IsInteger(self.dtype)) key_type = self.dtype;
  const View keys = n.NewTemp(self.sizes, key_type), places = n.NewTemp(self.sizes, DType::kI32);
  n.Pointwise(keys, [&](KernelBuilder& b, const Ints& at) { return SortKey(b, b.Load(self, at)); });

  KernelBuilder count = n.NewKernel();
  const Ints at = count.Outer(self.sizes);
  Ints other = at;
  const Ints inner = count.StartPhase({length});
  other[dim] = inner[0];
  const Scalar own = count.Load(keys, at), its = count.Load(keys, other);
  const Scalar is_earlier = count.Op(kLt, count.Index(inner[0]), count.Index(at[dim]));
  const Scalar comes_first = count.Op(kOr, count.Op(descending ? kGt : kLt, its, own),
                                      count.And(count.Op(kEq, its, own), is_earlier));
  const Scalar before = count.Reduce(ir::ReduceKind::kSum, count.Cast(comes_first, DType::kI32));
  count.StartPhase();
  count.Store(places, at, before);
  count.Finish();

  const View values = n.NewResult(0), indices = n.NewResult(1);
  const ReductionShape shape = SplitDimensions(self, {dim});
  KernelBuilder move = n.NewKernel();
  const Ints outer = move.Outer(shape.kept);
  const Ints from = JoinCoordinates(shape, outer, move.StartPhase(shape.reduced));
  std::vector<Coordinate> to(from.begin(), from.end());
  to[dim] = move.Load(places, from);
  move.StoreAt(values, to, move.Load(self, from));
  move.StoreAt(indices, to, move.Index(from[dim]));
  move.Finish();
  n.SetResult(0, values);
  n.SetResult(1, indices);
  return absl::OkStatus();
}

}  // namespace

void RegisterSorting(Registry& registry) {
  registry["sort.default"] = [](NodeContext& n) { return SortBy(n, false, 1, 2); };
  registry["sort.stable"] = [](NodeContext& n) -> absl::Status {
    KILN_ASSIGN_OR_RETURN(const bool stable, n.Bool(SIZE_MAX, "stable", false));
    return SortBy(n, stable, SIZE_MAX, SIZE_MAX);
  };
}

}  // namespace kiln::lowering
