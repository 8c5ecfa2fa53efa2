// Tensors put together from parts: cat, padding, scatter of a slice or a diagonal, triangles.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "compiler/lowering/window.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

// A kernel reads one of its parts at each element; more parts than this take several kernels.
constexpr size_t kMaxParts = 16;

// One kernel: out = the parts one after another along `dim`, chosen by a chain of selects.
void EmitCat(NodeContext& n, const View& out, const std::vector<View>& parts, int dim) {
  n.Pointwise(out, [&](KernelBuilder& b, const Ints& at) {
    ir::IntContext& ints = b.ints();
    std::vector<IntExpr> ends;
    IntExpr end = ints.Const(0);
    for (const View& part : parts) ends.push_back(end = ints.Add(end, part.sizes[dim]));
    Scalar result;
    for (size_t i = parts.size(); i-- > 0;) {
      const IntExpr start = i == 0 ? ints.Const(0) : ends[i - 1];
      Ints source = at;
      source[dim] = ints.Sub(at[dim], start);
      Scalar mask;
      b.AddBounds(source[dim], ints.Const(0), parts[i].sizes[dim], mask);
      const Scalar value = b.Cast(b.LoadMasked(parts[i], source, mask, 0), out.dtype);
      if (i + 1 == parts.size()) {
        result = value;
      } else {
        result = b.Select(b.Op(kLt, b.Index(at[dim]), b.Index(ends[i])), value, result);
      }
    }
    return result;
  });
}

// cat(tensors, dim)
absl::Status LowerCat(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const auto tensors, n.TensorList(0, "tensors"));
  const Ints& sizes = n.Result(0).sizes;
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", sizes.size(), 0));
  std::vector<View> parts;
  IntExpr total = n.ints().Const(0);
  for (const std::optional<View>& tensor : tensors) {
    if (!tensor) return n.BadGraph("None among the tensors", "tensors only");
    // Empty parts add nothing; ATen even lets a 1-dimensional one differ in rank.
    if (IsEmpty(tensor->sizes)) continue;
    Ints expected = sizes;
    if (tensor->sizes.size() == sizes.size() && !sizes.empty()) expected[dim] = tensor->sizes[dim];
    KILN_RETURN_IF_ERROR(n.CheckSizes(tensor->sizes, expected, "a part"));
    if (sizes.empty()) return n.BadGraph("a cat of scalars", "1 or more dimensions");
    total = n.ints().Add(total, tensor->sizes[dim]);
    parts.push_back(*tensor);
  }
  if (parts.empty()) return n.BadGraph("no tensors", "one or more");
  KILN_RETURN_IF_ERROR(n.CheckSizes({sizes[dim]}, {total}, "the result along the dimension"));
  while (parts.size() > kMaxParts) {
    std::vector<View> joined;
    for (size_t i = 0; i < parts.size(); i += kMaxParts) {
      const std::vector<View> group(parts.begin() + i,
                                    parts.begin() + std::min(i + kMaxParts, parts.size()));
      Ints group_sizes = sizes;
      group_sizes[dim] = n.ints().Const(0);
      for (const View& part : group) {
        group_sizes[dim] = n.ints().Add(group_sizes[dim], part.sizes[dim]);
      }
      joined.push_back(n.NewTemp(group_sizes, n.Result(0).dtype));
      EmitCat(n, joined.back(), group, dim);
    }
    parts = std::move(joined);
  }
  const View out = n.NewResult(0);
  EmitCat(n, out, parts, dim);
  n.SetResult(0, out);
  return absl::OkStatus();
}

// constant_pad_nd(self, pad, value): pad holds (before, after) from the last dimension backwards.
absl::Status LowerConstantPad(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const Ints pad, n.IntList(1, "pad"));
  KILN_ASSIGN_OR_RETURN(const double value, n.Float(2, "value", 0));
  const size_t rank = self.sizes.size();
  if (pad.size() % 2 != 0 || pad.size() > 2 * rank) {
    return n.BadGraph(absl::StrCat("'pad' has ", pad.size(), " items"), "two a dimension");
  }
  Ints before(rank, n.ints().Const(0));
  Ints expected = self.sizes;
  bool only_crops = true;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t d = rank - 1 - i;
    before[d] = pad[2 * i];
    only_crops &= pad[2 * i].range().max <= 0 && pad[2 * i + 1].range().max <= 0;
    expected[d] = n.ints().Add(expected[d], n.ints().Add(pad[2 * i], pad[2 * i + 1]));
  }
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, expected, "the result"));
  const auto source_of = [&](const Ints& at) {
    Ints source = at;
    for (size_t d = 0; d < rank; ++d) source[d] = n.ints().Sub(at[d], before[d]);
    return source;
  };
  if (only_crops && !IsEmpty(expected)) {
    return n.SetView(0, Remap(n.ints(), self, n.Result(0).sizes, source_of));
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Ints source = source_of(at);
    return b.LoadMasked(self, source, InsideMask(b, self.sizes, source), value);
  });
  return absl::OkStatus();
}

// self with src in place of the elements start, start + step, ... along dim.
absl::Status LowerSliceScatter(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View src, n.Tensor(1, "src"));
  if (self.sizes.empty()) return n.BadGraph("a slice of a scalar", "1 or more dimensions");
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(2, "dim", self.sizes.size(), 0));
  KILN_ASSIGN_OR_RETURN(const int64_t step, n.ConstInt(5, "step", 1));
  if (step < 1) return n.BadGraph(absl::StrCat("step ", step), "1 or more");
  IntExpr start = n.ints().Const(0);
  if (n.Find(3, "start") != nullptr) {
    KILN_ASSIGN_OR_RETURN(start, n.Int(3, "start"));
  }
  if (start.range().max < 0) {
    start = n.ints().Max(n.ints().Add(start, self.sizes[dim]), n.ints().Const(0));
  }
  KILN_RETURN_IF_ERROR(n.CheckSizes(self.sizes, n.Result(0).sizes, "the argument"));
  Ints expected = self.sizes;
  if (src.sizes.size() == self.sizes.size()) expected[dim] = src.sizes[dim];
  KILN_RETURN_IF_ERROR(n.CheckSizes(src.sizes, expected, "'src'"));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar old = b.Load(self, at);
    if (IsEmpty(src.sizes)) return old;
    const IntExpr offset = b.ints().Sub(at[dim], start);
    Ints source = at;
    source[dim] = b.ints().FloorDiv(offset, step);
    Scalar mask;
    b.AddBounds(source[dim], b.ints().Const(0), src.sizes[dim], mask);
    if (step > 1) {
      const Scalar rest = b.Index(b.ints().Mod(offset, step));
      const Scalar hit = b.Op(kEq, rest, b.ConstInt(DType::kI64, 0));
      mask = mask.id == ir::kNoValue ? hit : b.And(mask, hit);
    }
    const Scalar value = b.Cast(b.LoadMasked(src, source, mask, 0), self.dtype);
    return mask.id == ir::kNoValue ? value : b.Select(mask, value, old);
  });
  return absl::OkStatus();
}

// self with src in place of the elements at `index` along dim.
absl::Status LowerSelectScatter(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View src, n.Tensor(1, "src"));
  if (self.sizes.empty()) return n.BadGraph("a selection from a scalar", "a dimension");
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(2, "dim", self.sizes.size(), 0));
  KILN_ASSIGN_OR_RETURN(IntExpr index, n.Int(3, "index"));
  if (index.range().max < 0) index = n.ints().Add(index, self.sizes[dim]);
  KILN_RETURN_IF_ERROR(n.CheckSizes(self.sizes, n.Result(0).sizes, "the argument"));
  Ints expected = self.sizes;
  expected.erase(expected.begin() + dim);
  KILN_RETURN_IF_ERROR(n.CheckSizes(src.sizes, expected, "'src'"));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    Ints source = at;
    source.erase(source.begin() + dim);
    const Scalar hit = b.Op(kEq, b.Index(at[dim]), b.Index(index));
    const Scalar value = b.Cast(b.LoadMasked(src, source, hit, 0), self.dtype);
    return b.Select(hit, value, b.Load(self, at));
  });
  return absl::OkStatus();
}

// self with src in place of the elements of a diagonal over two dimensions.
absl::Status LowerDiagonalScatter(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View src, n.Tensor(1, "src"));
  const size_t rank = self.sizes.size();
  KILN_ASSIGN_OR_RETURN(const int64_t offset, n.ConstInt(2, "offset", 0));
  KILN_ASSIGN_OR_RETURN(const int row, n.Dimension(3, "dim1", rank, 0));
  KILN_ASSIGN_OR_RETURN(const int column, n.Dimension(4, "dim2", rank, 1));
  if (rank < 2 || row == column || offset <= INT32_MIN || offset >= INT32_MAX) {
    return n.BadGraph("a diagonal over one dimension", "two different dimensions");
  }
  KILN_RETURN_IF_ERROR(n.CheckSizes(self.sizes, n.Result(0).sizes, "the argument"));
  if (src.sizes.size() + 1 != rank) return n.BadGraph("the rank of 'src'", "one less");
  // Where src has the element at `at` of self, which lies on the diagonal.
  const auto source_of = [&](const Ints& at, IntExpr on_diagonal) {
    Ints source;
    for (int d = 0; d < static_cast<int>(rank); ++d) {
      if (d != row && d != column) source.push_back(at[d]);
    }
    source.push_back(on_diagonal);
    return source;
  };
  const IntExpr length = src.sizes.back();
  KILN_RETURN_IF_ERROR(n.CheckSizes(src.sizes, source_of(self.sizes, length), "'src'"));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar old = b.Load(self, at);
    if (IsEmpty(src.sizes)) return old;
    const IntExpr on_row = b.ints().Add(at[row], std::min<int64_t>(offset, 0));
    const IntExpr on_column = b.ints().Add(at[column], -std::max<int64_t>(offset, 0));
    Scalar mask = b.Op(kEq, b.Index(on_row), b.Index(on_column));
    b.AddBounds(on_row, b.ints().Const(0), length, mask);
    const Scalar value = b.Cast(b.LoadMasked(src, source_of(at, on_row), mask, 0), self.dtype);
    return b.Select(mask, value, old);
  });
  return absl::OkStatus();
}

// tril, triu: zero above, or below, diagonal number `diagonal`.
absl::Status LowerTriangle(NodeContext& n, bool lower) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const int64_t diagonal, n.ConstInt(1, "diagonal", 0));
  if (self.sizes.size() < 2) return n.BadGraph("a triangle of a vector", "2 or more dimensions");
  KILN_RETURN_IF_ERROR(n.CheckSizes(self.sizes, n.Result(0).sizes, "the argument"));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar column = b.Index(at[at.size() - 1]);
    const Scalar row = b.Index(b.ints().Add(at[at.size() - 2], diagonal));
    const Scalar keep = b.Op(lower ? kLe : kGe, column, row);
    return b.Select(keep, b.Load(self, at), b.ConstInt(self.dtype, 0));
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterJoining(Registry& registry) {
  registry["cat.default"] = LowerCat;
  registry["constant_pad_nd.default"] = LowerConstantPad;
  registry["slice_scatter.default"] = LowerSliceScatter;
  registry["select_scatter.default"] = LowerSelectScatter;
  registry["diagonal_scatter.default"] = LowerDiagonalScatter;
  registry["tril.default"] = [](NodeContext& n) { return LowerTriangle(n, true); };
  registry["triu.default"] = [](NodeContext& n) { return LowerTriangle(n, false); };
}

}  // namespace kiln::lowering
