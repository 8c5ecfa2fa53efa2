// Operators that only rearrange, repeat or drop elements: index arithmetic, no kernels.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using ir::IntContext;
using ir::IntExpr;

// view, reshape, flatten, squeeze, unsqueeze, ...: the recorded sizes say it all.
absl::Status LowerReshape(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  const Ints& sizes = n.Result(0).sizes;
  const IntExpr from = n.ints().Product(self.sizes);
  const IntExpr to = n.ints().Product(sizes);
  if (from != to && from.is_const() && to.is_const()) {
    return n.BadGraph(absl::StrCat("a result of ", to.value(), " elements"),
                      absl::StrCat(from.value(), " elements, as in its argument"));
  }
  if (self.dtype != n.Result(0).dtype) return n.Decline("view as another element type");
  return n.SetView(0, Reshape(n.ints(), self, sizes));
}

// clone, detach, alias, contiguous, lift_fresh_copy: values, not memory, are what counts here.
absl::Status LowerSame(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(View self, n.Tensor(0, "self"));
  return n.SetView(0, std::move(self));
}

absl::Status LowerToCopy(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(View self, n.Tensor(0, "self"));
  if (self.dtype == n.Result(0).dtype) return n.SetView(0, std::move(self));
  KILN_RETURN_IF_ERROR(n.CheckSizes(self.sizes, n.Result(0).sizes, "the argument"));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) { return b.Load(self, at); });
  return absl::OkStatus();
}

absl::Status CheckPermutation(NodeContext& n, const std::vector<int>& order) {
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<int>(i)) {
      return n.BadGraph("'dims' is no permutation", "each dimension once");
    }
  }
  return absl::OkStatus();
}

absl::Status LowerPermute(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, n.ConstIntList(1, "dims"));
  if (dims.size() != self.sizes.size()) {
    return n.BadGraph(absl::StrCat("'dims' has ", dims.size(), " items"),
                      absl::StrCat(self.sizes.size()));
  }
  std::vector<int> order;
  for (const int64_t dim : dims) {
    KILN_ASSIGN_OR_RETURN(order.emplace_back(), n.WrapDimension(dim, self.sizes.size()));
  }
  KILN_RETURN_IF_ERROR(CheckPermutation(n, order));
  return n.SetView(0, Permute(n.ints(), self, order));
}

absl::Status LowerTranspose(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  const size_t rank = self.sizes.size();
  KILN_ASSIGN_OR_RETURN(const int a, n.Dimension(1, "dim0", rank, 0));
  KILN_ASSIGN_OR_RETURN(const int b, n.Dimension(2, "dim1", rank, 1));
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (rank > 0) std::swap(order[a], order[b]);
  return n.SetView(0, Permute(n.ints(), self, order));
}

absl::Status LowerT(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  std::vector<int> order(self.sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return n.SetView(0, Permute(n.ints(), self, order));
}

absl::Status LowerExpand(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  return n.SetView(0, Expand(n.ints(), self, n.Result(0).sizes));
}

// An index as Python counts it: from the end where negative.
IntExpr FromStart(IntContext& ints, IntExpr index, IntExpr size) {
  if (index.range().max < 0) return ints.Max(ints.Add(index, size), ints.Const(0));
  return index;
}

absl::Status CheckInside(NodeContext& n, IntExpr last, IntExpr size) {
  if (last.is_const() && size.is_const() && (last.value() < 0 || last.value() >= size.value())) {
    return n.BadGraph(absl::StrCat("it reads index ", last.value()),
                      absl::StrCat("0 to ", size.value() - 1));
  }
  return absl::OkStatus();
}

absl::Status LowerSlice(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  if (self.sizes.empty()) return n.BadGraph("a slice of a scalar", "a tensor of 1 dimension");
  IntExpr start = n.ints().Const(0);
  if (n.Find(2, "start") != nullptr) {
    KILN_ASSIGN_OR_RETURN(start, n.Int(2, "start"));
  }
  KILN_ASSIGN_OR_RETURN(const int64_t step, n.ConstInt(4, "step", 1));
  if (step < 1) return n.BadGraph(absl::StrCat("step ", step), "1 or more");
  const graph::TensorType& result = n.Result(0);
  if (result.sizes.size() != self.sizes.size()) {
    return n.CheckSizes(self.sizes, result.sizes, "the slice");
  }
  start = FromStart(n.ints(), start, self.sizes[dim]);
  const IntExpr size = result.sizes[dim];
  const IntExpr stride = n.ints().Const(step);
  KILN_RETURN_IF_ERROR(CheckInside(
      n, n.ints().Add(start, n.ints().Mul(n.ints().Add(size, -1), stride)), self.sizes[dim]));
  return n.SetView(0, Slice(n.ints(), self, dim, start, stride, size));
}

absl::Status LowerSelect(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  if (self.sizes.empty()) return n.BadGraph("a selection from a scalar", "a dimension");
  KILN_ASSIGN_OR_RETURN(IntExpr index, n.Int(2, "index"));
  index = FromStart(n.ints(), index, self.sizes[dim]);
  KILN_RETURN_IF_ERROR(CheckInside(n, index, self.sizes[dim]));
  return n.SetView(0, DropDimension(n.ints(), self, dim, index));
}

// Every result is the next part along `dim`; recorded sizes give the parts' lengths.
absl::Status SetParts(NodeContext& n, const View& self, int dim) {
  IntExpr start = n.ints().Const(0);
  for (size_t i = 0; i < n.num_results(); ++i) {
    const Ints& sizes = n.Result(i).sizes;
    if (sizes.size() != self.sizes.size()) return n.CheckSizes(self.sizes, sizes, "a part");
    const IntExpr size = sizes[dim];
    const IntExpr end = n.ints().Add(start, size);
    if (!size.is_const(0)) {
      KILN_RETURN_IF_ERROR(CheckInside(n, n.ints().Add(end, -1), n.ints().Add(self.sizes[dim], 1)));
      KILN_RETURN_IF_ERROR(
          n.SetView(i, Slice(n.ints(), self, dim, start, n.ints().Const(1), size)));
    }
    start = end;
  }
  return n.CheckSizes({start}, {self.sizes[dim]}, "the sum of the parts");
}

absl::Status LowerSplit(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  if (self.sizes.empty()) return n.BadGraph("a split of a scalar", "a dimension");
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(2, "dim", self.sizes.size(), 0));
  return SetParts(n, self, dim);
}

absl::Status LowerUnbind(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  if (self.sizes.empty()) return n.BadGraph("an unbind of a scalar", "a dimension");
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  for (size_t i = 0; i < n.num_results(); ++i) {
    const IntExpr at = n.ints().Const(static_cast<int64_t>(i));
    KILN_RETURN_IF_ERROR(CheckInside(n, at, self.sizes[dim]));
    KILN_RETURN_IF_ERROR(n.SetView(i, DropDimension(n.ints(), self, dim, at)));
  }
  return absl::OkStatus();
}

absl::Status LowerDiagonal(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  const size_t rank = self.sizes.size();
  KILN_ASSIGN_OR_RETURN(const int64_t offset, n.ConstInt(1, "offset", 0));
  KILN_ASSIGN_OR_RETURN(const int row, n.Dimension(2, "dim1", rank, 0));
  KILN_ASSIGN_OR_RETURN(const int column, n.Dimension(3, "dim2", rank, 1));
  if (rank < 2 || row == column || offset <= INT32_MIN || offset >= INT32_MAX) {
    return n.BadGraph("a diagonal over one dimension", "two different dimensions");
  }
  const Ints& sizes = n.Result(0).sizes;
  if (sizes.size() + 1 != rank) return n.BadGraph("the result's rank", "one less");
  Ints expected;
  for (int d = 0; d < static_cast<int>(rank); ++d) {
    if (d != row && d != column) expected.push_back(self.sizes[d]);
  }
  expected.push_back(sizes.back());
  KILN_RETURN_IF_ERROR(n.CheckSizes(sizes, expected, "the result"));
  const IntExpr last = n.ints().Add(sizes.back(), -1);
  KILN_RETURN_IF_ERROR(
      CheckInside(n, n.ints().Add(last, std::max<int64_t>(-offset, 0)), self.sizes[row]));
  KILN_RETURN_IF_ERROR(
      CheckInside(n, n.ints().Add(last, std::max<int64_t>(offset, 0)), self.sizes[column]));
  return n.SetView(0, Remap(n.ints(), self, sizes, [&](const Ints& vars) {
                     Ints at(rank);
                     size_t next = 0;
                     for (int d = 0; d < static_cast<int>(rank); ++d) {
                       if (d != row && d != column) at[d] = vars[next++];
                     }
                     at[row] = n.ints().Add(vars.back(), std::max<int64_t>(-offset, 0));
                     at[column] = n.ints().Add(vars.back(), std::max<int64_t>(offset, 0));
                     return at;
                   }));
}

// Windows of `size` elements, `step` apart: the window's elements are a dimension of their own.
absl::Status LowerUnfold(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  const size_t rank = self.sizes.size();
  if (rank == 0) return n.Decline("of a single element");
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dimension", rank, 0));
  KILN_ASSIGN_OR_RETURN(const int64_t size, n.ConstInt(2, "size", 0));
  KILN_ASSIGN_OR_RETURN(const int64_t step, n.ConstInt(3, "step", 1));
  if (size < 0 || step < 1) return n.BadGraph("windows of that size and step", "step above 0");
  const Ints& sizes = n.Result(0).sizes;
  if (sizes.size() != rank + 1) return n.BadGraph("the result's rank", "one more");
  Ints expected = self.sizes;
  expected[dim] = sizes[dim];
  expected.push_back(n.ints().Const(size));
  KILN_RETURN_IF_ERROR(n.CheckSizes(sizes, expected, "the result"));
  const IntExpr last_window = n.ints().Mul(n.ints().Add(sizes[dim], -1), step);
  if (size > 0) {
    KILN_RETURN_IF_ERROR(CheckInside(n, n.ints().Add(last_window, size - 1), self.sizes[dim]));
  }
  return n.SetView(0, Remap(n.ints(), self, sizes, [&](const Ints& vars) {
                     Ints at(vars.begin(), vars.end() - 1);
                     at[dim] = n.ints().Add(n.ints().Mul(vars[dim], step), vars.back());
                     return at;
                   }));
}

absl::Status LowerFlip(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, n.ConstIntList(1, "dims"));
  std::vector<bool> flipped(self.sizes.size() + 1, false);
  for (const int64_t item : dims) {
    KILN_ASSIGN_OR_RETURN(const int dim, n.WrapDimension(item, self.sizes.size()));
    flipped[dim] = true;
  }
  return n.SetView(0, Remap(n.ints(), self, self.sizes, [&](const Ints& vars) {
                     Ints at = vars;
                     for (size_t d = 0; d < at.size(); ++d) {
                       if (flipped[d]) {
                         at[d] = n.ints().Sub(n.ints().Add(self.sizes[d], -1), vars[d]);
                       }
                     }
                     return at;
                   }));
}

absl::Status LowerRepeat(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  const Ints& sizes = n.Result(0).sizes;
  if (sizes.size() < self.sizes.size()) {
    return n.BadGraph("fewer dimensions than the argument has", "as many or more");
  }
  return n.SetView(0, Remap(n.ints(), self, sizes, [&](const Ints& vars) {
                     Ints at(vars.end() - self.sizes.size(), vars.end());
                     for (size_t d = 0; d < at.size(); ++d) {
                       at[d] = n.ints().Mod(at[d], self.sizes[d]);
                     }
                     return at;
                   }));
}

// Rolls element i of each dimension to (i + shift) mod size.
absl::Status LowerRoll(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const Ints shifts, n.IntList(1, "shifts"));
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, n.ConstIntList(2, "dims"));
  if (dims.size() != shifts.size() || dims.empty()) return n.Decline("roll of the flat tensor");
  Ints by(self.sizes.size(), n.ints().Const(0));
  for (size_t i = 0; i < dims.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(const int dim, n.WrapDimension(dims[i], self.sizes.size()));
    if (!self.sizes.empty()) by[dim] = n.ints().Add(by[dim], shifts[i]);
  }
  return n.SetView(0, Remap(n.ints(), self, self.sizes, [&](const Ints& vars) {
                     Ints at = vars;
                     for (size_t d = 0; d < at.size(); ++d) {
                       if (!by[d].is_const(0)) {
                         at[d] = n.ints().Mod(n.ints().Sub(vars[d], by[d]), self.sizes[d]);
                       }
                     }
                     return at;
                   }));
}

bool IsContiguous(NodeContext& n, const graph::TensorType& type) {
  return SameStrides(type.sizes, type.strides, n.module().ContiguousStrides(type.sizes));
}

// Positions in the memory of a contiguous argument are row-major positions of its value.
absl::Status LowerAsStrided(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const Ints strides, n.IntList(2, "stride"));
  const graph::Arg* arg = n.Find(0, "self");
  const graph::TensorType& type = n.TypeOf(std::get<graph::ValueRef>(arg->value));
  if (!type.offset.is_const(0) || !IsContiguous(n, type)) {
    return n.Decline("the argument's memory is not its value in order");
  }
  IntExpr offset = n.ints().Const(0);
  if (n.Find(3, "storage_offset") != nullptr) {
    KILN_ASSIGN_OR_RETURN(offset, n.Int(3, "storage_offset"));
  }
  const Ints& sizes = n.Result(0).sizes;
  if (strides.size() != sizes.size()) return n.BadGraph("the strides' count", "one a dimension");
  IntExpr last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) {
    last = n.ints().Add(last, n.ints().Mul(n.ints().Add(sizes[d], -1), strides[d]));
  }
  const IntExpr elements = n.ints().Product(self.sizes);
  if (!offset.is_const() || !last.is_const() || !elements.is_const() || offset.value() < 0 ||
      last.value() < 0 || last.value() >= elements.value()) {
    return n.Decline("memory beyond the argument's value");
  }
  const View flat = Reshape(n.ints(), self, {elements});
  return n.SetView(0, Remap(n.ints(), flat, sizes, [&](const Ints& vars) {
                     IntExpr at = offset;
                     for (size_t d = 0; d < sizes.size(); ++d) {
                       at = n.ints().Add(at, n.ints().Mul(vars[d], strides[d]));
                     }
                     return Ints{at};
                   }));
}

}  // namespace

void RegisterViews(Registry& registry) {
  for (const char* op :
       {"view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default",
        "view_copy.default", "flatten.using_ints", "squeeze.default", "squeeze.dim", "squeeze.dims",
        "unsqueeze.default", "squeeze_copy.dim", "unsqueeze_copy.default"}) {
    registry[op] = LowerReshape;
  }
  for (const char* op : {"clone.default", "contiguous.default", "alias.default", "detach.default",
                         "lift_fresh_copy.default", "lift.default"}) {
    registry[op] = LowerSame;
  }
  registry["_to_copy.default"] = LowerToCopy;
  registry["prims.convert_element_type.default"] = LowerToCopy;
  registry["permute.default"] = registry["permute_copy.default"] = LowerPermute;
  registry["transpose.int"] = LowerTranspose;
  registry["t.default"] = LowerT;
  registry["numpy_T.default"] = LowerT;
  registry["expand.default"] = registry["expand_copy.default"] = LowerExpand;
  registry["expand_as.default"] = LowerExpand;
  registry["slice.Tensor"] = registry["slice_copy.Tensor"] = LowerSlice;
  registry["select.int"] = registry["select_copy.int"] = LowerSelect;
  registry["split.Tensor"] = LowerSplit;
  registry["split_with_sizes.default"] = LowerSplit;
  registry["unbind.int"] = registry["unbind_copy.int"] = LowerUnbind;
  registry["diagonal.default"] = registry["diagonal_copy.default"] = LowerDiagonal;
  registry["unfold.default"] = registry["unfold_copy.default"] = LowerUnfold;
  registry["flip.default"] = LowerFlip;
  registry["repeat.default"] = LowerRepeat;
  registry["roll.default"] = LowerRoll;
  registry["as_strided.default"] = LowerAsStrided;
}

}  // namespace kiln::lowering
