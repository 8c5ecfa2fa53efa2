// Sorting. In short rows an element's place is the number of elements that come before it: n^2
// comparisons, which run in lanes, and beat sorting up to some tens of elements (Knuth, "The Art of
// Computer Programming" 5.2, comparison counting). In long rows the elements and their numbers are
// sorted as one integer each.
#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "compiler/lowering/promotion.h"
#include "compiler/lowering/reduction.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

constexpr int64_t kMostCounted = 64;  // elements of a row

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

// What is sorted along a dimension.
struct Rows {
  View self;
  int dim = 0;
  bool descending = false;
  int64_t first = 0;  // how many of the order are needed; 0: all

  IntExpr length() const { return self.sizes[dim]; }
};

// By dimension of `at`, with `place` along the rows' one.
std::vector<Coordinate> Along(const Ints& at, int dim, Scalar place) {
  std::vector<Coordinate> to(at.begin(), at.end());
  to[dim] = place;
  return to;
}

// Calls `body` in a kernel over the rows, with coordinates of their elements.
void EmitRows(NodeContext& n, const Rows& rows, ir::Schedule schedule,
              const std::function<void(KernelBuilder&, const Ints&)>& body) {
  const ReductionShape shape = SplitDimensions(rows.self, {rows.dim});
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(shape.kept);
  body(b, JoinCoordinates(shape, outer, b.StartPhase(shape.reduced)));
  b.Finish(schedule);
}

// order[.., r, ..] = the number of the element that comes r-th; equal ones stay in order.
void CountPlaces(NodeContext& n, const Rows& rows, const View& order) {
  const View& self = rows.self;
  DType key_type = DType::kI32;
  if (self.dtype == DType::kF64) key_type = DType::kI64;
  if (IsInteger(self.dtype)) key_type = self.dtype;
  const View keys = n.NewTemp(self.sizes, key_type), places = n.NewTemp(self.sizes, DType::kI32);
  n.Pointwise(keys, [&](KernelBuilder& b, const Ints& at) { return SortKey(b, b.Load(self, at)); });

  KernelBuilder count = n.NewKernel();
  const Ints at = count.Outer(self.sizes);
  Ints other = at;
  const Ints inner = count.StartPhase({rows.length()});
  other[rows.dim] = inner[0];
  const Scalar own = count.Load(keys, at), its = count.Load(keys, other);
  const Scalar is_earlier = count.Op(kLt, count.Index(inner[0]), count.Index(at[rows.dim]));
  const Scalar comes_first = count.Op(kOr, count.Op(rows.descending ? kGt : kLt, its, own),
                                      count.And(count.Op(kEq, its, own), is_earlier));
  const Scalar before = count.Reduce(ir::ReduceKind::kSum, count.Cast(comes_first, DType::kI32));
  count.StartPhase();
  count.Store(places, at, before);
  count.Finish();

  EmitRows(n, rows, ir::Schedule::kLoops, [&](KernelBuilder& b, const Ints& from) {
    b.StoreAt(order, Along(from, rows.dim, b.Load(places, from)), b.Index(from[rows.dim]));
  });
}

constexpr int64_t kLowHalf = 0xffffffff;

// One i64 that orders as `high`, 32 bits, and then as the element's number.
Scalar Numbered(KernelBuilder& b, Scalar high, Scalar number) {
  const Scalar wide = b.Cast(high, DType::kI64);
  return b.Op(kOr, b.Op(kShl, wide, b.ConstInt(DType::kI64, 32)), number);
}

// The same of long rows. Of 64-bit keys the lower halves are sorted first.
void SortNumbered(NodeContext& n, const Rows& rows, const View& order) {
  const auto key = [&](KernelBuilder& b, Scalar x) {
    const Scalar k = SortKey(b, x);
    return rows.descending ? b.Op(kNot, k) : k;
  };
  const auto number = [](KernelBuilder& b, Scalar sorted) {
    return b.And(sorted, b.ConstInt(DType::kI64, kLowHalf));
  };
  if (DTypeSize(rows.self.dtype) < 8) {
    return EmitRows(n, rows, ir::Schedule::kSorting, [&](KernelBuilder& b, const Ints& at) {
      const Scalar k = key(b, b.Load(rows.self, at));
      const Scalar numbered = Numbered(b, k, b.Index(at[rows.dim]));
      b.Store(order, at, number(b, b.Sort(numbered, rows.first)));
    });
  }
  const View by_low = n.NewTemp(rows.self.sizes, DType::kI64);
  EmitRows(n, rows, ir::Schedule::kSorting, [&](KernelBuilder& b, const Ints& at) {
    const Scalar low = b.Op(kXor, key(b, b.Load(rows.self, at)),
                            b.ConstInt(DType::kI64, int64_t{1} << 31));  // as if it had a sign
    b.Store(by_low, at, number(b, b.Sort(Numbered(b, low, b.Index(at[rows.dim])))));
  });
  EmitRows(n, rows, ir::Schedule::kSorting, [&](KernelBuilder& b, const Ints& at) {
    const std::vector<Coordinate> from = Along(at, rows.dim, b.Load(by_low, at));
    const Scalar k = key(b, b.LoadAt(rows.self, from));
    const Scalar high = b.Op(kShr, k, b.ConstInt(DType::kI64, 32));
    const Scalar place = number(b, b.Sort(Numbered(b, high, b.Index(at[rows.dim])), rows.first));
    b.Store(order, at, b.LoadAt(by_low, Along(at, rows.dim, place)));
  });
}

absl::StatusOr<Rows> ReadRows(NodeContext& n, size_t dim_position, bool descending) {
  Rows rows;
  KILN_ASSIGN_OR_RETURN(rows.self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(rows.dim, n.Dimension(dim_position, "dim", rows.self.sizes.size(), -1));
  rows.descending = descending;
  if (rows.self.sizes.empty()) return n.Decline("of a scalar");
  if (IsEmpty(rows.self.sizes)) return n.Decline("of no elements");
  const IntExpr length = rows.length();
  if (length.is_const() && length.value() > kLowHalf) return n.Decline("of rows that are too long");
  return rows;
}

// `order` has the sizes of what is sorted, in i64.
void EmitOrder(NodeContext& n, const Rows& rows, const View& order) {
  const bool is_short = rows.length().is_const() && rows.length().value() <= kMostCounted;
  if (is_short) return CountPlaces(n, rows, order);
  SortNumbered(n, rows, order);
}

// sort(self, dim, descending) -> values, indices; equal elements stay in order, whether that is
// asked for or not: without it eager leaves them in an order of its own.
absl::Status LowerSort(NodeContext& n, size_t dim_position, size_t descending_position) {
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  KILN_ASSIGN_OR_RETURN(const bool descending, n.Bool(descending_position, "descending", false));
  KILN_ASSIGN_OR_RETURN(const Rows rows, ReadRows(n, dim_position, descending));
  for (size_t i = 0; i < 2; ++i) {
    KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(i).sizes, rows.self.sizes, "a result"));
  }
  if (n.Result(1).dtype != DType::kI64) return n.BadGraph("the indices' type", "i64");
  const View order = n.NewResult(1);
  EmitOrder(n, rows, order);
  n.SetResult(1, order);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return b.LoadAt(rows.self, Along(at, rows.dim, b.Load(order, at)));
  });
  return absl::OkStatus();
}

// topk(self, k, dim, largest, sorted) -> values, indices: in order, and of equal elements the
// first.
absl::Status LowerTopK(NodeContext& n) {
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  KILN_ASSIGN_OR_RETURN(const IntExpr k, n.Int(1, "k"));
  KILN_ASSIGN_OR_RETURN(const bool largest, n.Bool(3, "largest", true));
  KILN_ASSIGN_OR_RETURN(Rows rows, ReadRows(n, 2, largest));
  if (k.is_const()) rows.first = k.value();
  if (k.is_const() && rows.length().is_const() && k.value() > rows.length().value()) {
    return n.BadGraph("'k' is greater than the dimension", "at most its size");
  }
  Ints sizes = rows.self.sizes;
  sizes[rows.dim] = k;
  for (size_t i = 0; i < 2; ++i) {
    KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(i).sizes, sizes, "a result"));
  }
  if (n.Result(1).dtype != DType::kI64) return n.BadGraph("the indices' type", "i64");
  const View order = n.NewTemp(rows.self.sizes, DType::kI64);
  EmitOrder(n, rows, order);
  const View first = Slice(n.ints(), order, rows.dim, n.ints().Const(0), n.ints().Const(1), k);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return b.LoadAt(rows.self, Along(at, rows.dim, b.Load(first, at)));
  });
  n.PointwiseResult(1, [&](KernelBuilder& b, const Ints& at) { return b.Load(first, at); });
  return absl::OkStatus();
}

// The k-th least element of each row, counted from 1, and its number; where k is 0 the middle one,
// the lower of two, or the first NaN.
absl::Status LowerOrderStatistic(NodeContext& n, size_t dim_position, int64_t k) {
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  KILN_ASSIGN_OR_RETURN(Rows rows, ReadRows(n, dim_position, false));
  rows.first = k;
  const ReductionShape shape = SplitDimensions(rows.self, {rows.dim});
  for (size_t i = 0; i < 2; ++i) KILN_RETURN_IF_ERROR(CheckReduced(n, i, shape));
  if (n.Result(1).dtype != DType::kI64) return n.BadGraph("the indices' type", "i64");
  const View order = n.NewTemp(rows.self.sizes, DType::kI64);
  EmitOrder(n, rows, order);
  const View& self = rows.self;
  const View values = n.NewResult(0), numbers = n.NewResult(1);
  const View kept_values = KeptView(n, values, shape), kept_numbers = KeptView(n, numbers, shape);
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(shape.kept);
  Scalar first_nan;
  if (k == 0 && IsFloat(self.dtype)) {
    const Ints at = JoinCoordinates(shape, outer, b.StartPhase(shape.reduced));
    first_nan = b.Reduce(ir::ReduceKind::kArgMax, b.Widen(b.Load(self, at)));
  }
  b.StartPhase();
  ir::IntContext& ints = n.ints();
  const IntExpr one = ints.Const(1);
  const IntExpr place =
      k > 0 ? ints.Const(k - 1) : ints.FloorDiv(ints.Sub(rows.length(), one), ints.Const(2));
  const Ints corner = JoinCoordinates(shape, outer, {ints.Const(0)});
  const auto element = [&](Scalar number) {
    return b.LoadAt(self, Along(corner, rows.dim, number));
  };
  Scalar number = b.Load(order, JoinCoordinates(shape, outer, {place}));
  if (first_nan.id != ir::kNoValue) {
    const Scalar is_nan = b.Op(kIsNan, b.Widen(element(first_nan)));
    number = b.Select(is_nan, first_nan, number);
  }
  b.Store(kept_values, outer, element(number));
  b.Store(kept_numbers, outer, number);
  b.Finish();
  n.SetResult(0, values);
  n.SetResult(1, numbers);
  return absl::OkStatus();
}

// kthvalue(self, k, dim, keepdim)
absl::Status LowerKthValue(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const int64_t k, n.ConstInt(1, "k", 1));
  if (k < 1) return n.BadGraph("'k' is less than 1", "1 or more");
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(2, "dim", self.sizes.size(), -1));
  const bool fits = !self.sizes.empty() && self.sizes[dim].is_const();
  if (!fits || k > self.sizes[dim].value()) return n.Decline("of a row that may be too short");
  return LowerOrderStatistic(n, 2, k);
}

// searchsorted(sorted_sequence, self, ...), bucketize(self, boundaries, ...): by halves, as many
// steps for every element.
absl::Status LowerSearch(NodeContext& n, const View& sequence, const Operand& values, bool right) {
  const auto* view = std::get_if<View>(&values);
  const Ints& sizes = n.Result(0).sizes;
  if (sequence.sizes.empty()) return n.Decline("in a scalar");
  if (view != nullptr && view->dtype != sequence.dtype) return n.Decline("of another type");
  if (view == nullptr && !IsFloat(sequence.dtype)) return n.Decline("of a number among integers");
  if (view != nullptr) KILN_RETURN_IF_ERROR(n.CheckSizes(sizes, view->sizes, "the result"));
  const IntExpr length = sequence.sizes.back();
  if (!length.is_const() || length.value() == 0) return n.Decline("in a row of unknown length");
  const bool is_shared = sequence.sizes.size() == 1;
  if (!is_shared && (view == nullptr || sequence.sizes.size() != view->sizes.size())) {
    return n.BadGraph("the sequence's rank", "1, or that of the values");
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const DType type = ComputeType(sequence.dtype);
    const Scalar value = LoadOperand(b, values, at, type);
    std::vector<Coordinate> from;
    if (!is_shared) from.assign(at.begin(), at.end() - 1);
    from.emplace_back();
    const auto number = [&](int64_t i) { return b.ConstInt(DType::kI64, i); };
    const Scalar last = number(length.value() - 1), one = number(1);
    Scalar begin = number(0), end = number(length.value());
    // The elements that ATen looks at: of NaN among them the answer depends on which those are.
    for (int step = std::bit_width(static_cast<uint64_t>(length.value())); step > 0; --step) {
      const Scalar middle = b.Op(kShr, b.Op(kAdd, begin, end), one);
      from.back() = b.Op(kMin, middle, last);
      const Scalar element = b.Cast(b.LoadAt(sequence, from), type);
      const Scalar is_before = b.Op(kNot, b.Op(right ? kGt : kGe, element, value));
      const Scalar goes_on = b.Op(kLt, begin, end);
      const Scalar next = b.Select(is_before, b.Op(kAdd, middle, one), begin);
      end = b.Select(b.And(goes_on, b.Op(kNot, is_before)), middle, end);
      begin = b.Select(goes_on, next, begin);
    }
    return b.Cast(begin, n.Result(0).dtype);
  });
  return absl::OkStatus();
}

absl::Status LowerSearchSorted(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View sequence, n.Tensor(0, "sorted_sequence"));
  KILN_ASSIGN_OR_RETURN(const Operand values, n.TensorOrNumber(1, "self"));
  KILN_ASSIGN_OR_RETURN(bool right, n.Bool(SIZE_MAX, "right", false));
  KILN_ASSIGN_OR_RETURN(const std::string side, n.String(SIZE_MAX, "side", ""));
  if (n.Find(SIZE_MAX, "sorter") != nullptr) return n.Decline("by another order");
  right |= side == "right";
  return LowerSearch(n, sequence, values, right);
}

absl::Status LowerBucketize(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const Operand values, n.TensorOrNumber(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View boundaries, n.Tensor(1, "boundaries"));
  KILN_ASSIGN_OR_RETURN(const bool right, n.Bool(SIZE_MAX, "right", false));
  if (boundaries.sizes.size() != 1) return n.BadGraph("the boundaries' rank", "1");
  return LowerSearch(n, boundaries, values, right);
}

}  // namespace

void RegisterSorting(Registry& registry) {
  registry["sort.default"] = [](NodeContext& n) { return LowerSort(n, 1, 2); };
  registry["sort.stable"] = [](NodeContext& n) { return LowerSort(n, SIZE_MAX, SIZE_MAX); };
  registry["topk.default"] = LowerTopK;
  registry["searchsorted.Tensor"] = registry["searchsorted.Scalar"] = LowerSearchSorted;
  registry["bucketize.Tensor"] = registry["bucketize.Scalar"] = LowerBucketize;
  registry["kthvalue.default"] = LowerKthValue;
  registry["median.dim"] = [](NodeContext& n) { return LowerOrderStatistic(n, 1, 0); };
}

}  // namespace kiln::lowering
