// Padding by what lies inside (reflected, or the edge repeated), and its gradients: index
// arithmetic, and sums of an element and its copies, one dimension at a time.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

// By dimension of the tensor, in elements.
struct Padding {
  Ints before, after;
};

// The argument holds (before, after) from the last dimension backwards.
absl::StatusOr<Padding> ReadPadding(NodeContext& n, size_t position, const Ints& inside,
                                    const Ints& padded) {
  KILN_ASSIGN_OR_RETURN(const Ints given, n.IntList(position, "padding"));
  const size_t rank = inside.size();
  if (given.size() % 2 != 0 || given.size() > 2 * rank || padded.size() != rank) {
    return n.BadGraph(std::to_string(given.size()) + " items of 'padding'", "two a dimension");
  }
  Padding padding{Ints(rank, n.ints().Const(0)), Ints(rank, n.ints().Const(0))};
  Ints expected = inside;
  for (size_t i = 0; i < given.size() / 2; ++i) {
    const size_t d = rank - 1 - i;
    padding.before[d] = given[2 * i];
    padding.after[d] = given[2 * i + 1];
    expected[d] = n.ints().Add(expected[d], n.ints().Add(given[2 * i], given[2 * i + 1]));
  }
  KILN_RETURN_IF_ERROR(n.CheckSizes(padded, expected, "the padded tensor"));
  return padding;
}

IntExpr AbsoluteValue(ir::IntContext& ints, IntExpr x) {
  return ints.Max(x, ints.Mul(x, -1));
}

// Where the padded position `i`, counted from the first element inside, is taken from.
IntExpr Source(ir::IntContext& ints, IntExpr i, IntExpr size, IntExpr before, IntExpr after,
               bool reflects) {
  const IntExpr last = ints.Add(size, -1);
  if (!reflects) return ints.Min(ints.Max(i, ints.Const(0)), last);
  if (before.range().max > 0) i = AbsoluteValue(ints, i);
  if (after.range().max > 0) i = ints.Sub(last, AbsoluteValue(ints, ints.Sub(last, i)));
  return i;
}

// The element at `at`, padded along `d`: three loads, each where the others are not, so that a loop
// along `d` falls into pieces of even steps (schedule/cpu/segments.h).
Scalar LoadPadded(KernelBuilder& b, const View& inside, const Ints& at, size_t d, IntExpr before,
                  IntExpr after, bool reflects) {
  ir::IntContext& ints = b.ints();
  const IntExpr size = inside.sizes[d], last = ints.Add(size, -1), place = ints.Sub(at[d], before);
  const auto load = [&](IntExpr index) {
    Ints source = at;
    source[d] = index;
    Scalar mask;
    b.AddBounds(index, ints.Const(0), size, mask);
    return b.LoadMasked(inside, source, mask, 0);
  };
  Scalar value = load(place);
  if (after.range().max > 0) {
    const Scalar beyond = load(reflects ? ints.Sub(ints.Mul(last, 2), place) : last);
    const Scalar is_inside = b.Op(kLt, b.Index(at[d]), b.Index(ints.Add(before, size)));
    value = b.Select(is_inside, value, beyond);
  }
  if (before.range().max > 0) {
    const Scalar ahead = load(reflects ? ints.Mul(place, -1) : ints.Const(0));
    value = b.Select(b.Op(kLt, b.Index(at[d]), b.Index(before)), ahead, value);
  }
  return value;
}

// reflection_padNd(self, padding), replication_padNd(self, padding)
absl::Status LowerPad(NodeContext& n, bool reflects) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  const Ints& sizes = n.Result(0).sizes;
  KILN_ASSIGN_OR_RETURN(const Padding padding, ReadPadding(n, 1, self.sizes, sizes));
  const auto innermost =
      static_cast<size_t>(MemoryOrder(n.ints(), sizes, n.Result(0).strides).back());
  Ints padded = sizes;
  padded[innermost] = self.sizes[innermost];
  const View rows = Remap(n.ints(), self, padded, [&](const Ints& vars) {
    Ints at = vars;
    for (size_t d = 0; d < at.size(); ++d) {
      const IntExpr before = padding.before[d], after = padding.after[d];
      if (d == innermost || (before.is_const(0) && after.is_const(0))) continue;
      at[d] =
          Source(n.ints(), n.ints().Sub(vars[d], before), self.sizes[d], before, after, reflects);
    }
    return at;
  });
  const IntExpr before = padding.before[innermost], after = padding.after[innermost];
  if (before.is_const(0) && after.is_const(0)) return n.SetView(0, rows);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return LoadPadded(b, rows, at, innermost, before, after, reflects);
  });
  return absl::OkStatus();
}

// A sum of loads.
struct Sum {
  KernelBuilder& b;
  Scalar value;

  void Add(const View& view, const Ints& at, Scalar mask) {
    const Scalar term = b.Widen(b.LoadMasked(view, at, mask, 0));
    value = value.id == ir::kNoValue ? term : b.Op(kAdd, value, term);
  }
};

// What lies inside, and the copies of each element beyond the edges that mirror it.
void ReflectedPass(NodeContext& n, const View& from, const View& out, size_t d, IntExpr before,
                   IntExpr after) {
  ir::IntContext& ints = n.ints();
  const IntExpr last = ints.Add(out.sizes[d], -1);
  n.Pointwise(out, [&](KernelBuilder& b, const Ints& at) {
    Sum sum{b, {}};
    const auto add = [&](IntExpr place, Scalar mask) {
      Ints source = at;
      source[d] = ints.Add(place, before);
      b.AddBounds(source[d], ints.Const(0), from.sizes[d], mask);
      sum.Add(from, source, mask);
    };
    add(at[d], {});
    if (before.range().max > 0) {
      Scalar mask;
      b.AddBounds(at[d], ints.Const(1), ints.Add(before, 1), mask);
      add(ints.Mul(at[d], -1), mask);
    }
    if (after.range().max > 0) {
      Scalar mask;
      b.AddBounds(at[d], ints.Sub(last, after), last, mask);
      add(ints.Sub(ints.Mul(last, 2), at[d]), mask);
    }
    return sum.value;
  });
}

// reflection_padNd_backward(grad_output, self, padding)
absl::Status LowerReflectionBackward(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View grad, n.Tensor(0, "grad_output"));
  const Ints& sizes = n.Result(0).sizes;
  KILN_ASSIGN_OR_RETURN(const Padding padding, ReadPadding(n, 2, sizes, grad.sizes));
  if (!IsFloat(grad.dtype)) return n.Decline("of integers");
  std::vector<size_t> dims;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const IntExpr before = padding.before[d], after = padding.after[d];
    if (!before.is_const() || !after.is_const()) return n.Decline("by symbolic sizes");
    if (!before.is_const(0) || !after.is_const(0)) dims.push_back(d);
  }
  if (dims.empty()) return n.SetView(0, grad);
  View current = grad;
  for (const size_t d : dims) {
    Ints next = current.sizes;
    next[d] = sizes[d];
    const View out = d == dims.back() ? n.NewResult(0) : n.NewTemp(next, ComputeType(grad.dtype));
    ReflectedPass(n, current, out, d, padding.before[d], padding.after[d]);
    current = out;
  }
  n.SetResult(0, current);
  return absl::OkStatus();
}

}  // namespace

void RegisterPadding(Registry& registry) {
  for (const char* d : {"1d", "2d", "3d"}) {
    const std::string reflection = std::string("reflection_pad") + d;
    registry[reflection + ".default"] = [](NodeContext& n) { return LowerPad(n, true); };
    registry[reflection + "_backward.default"] = LowerReflectionBackward;
    registry[std::string("replication_pad") + d + ".default"] = [](NodeContext& n) {
      return LowerPad(n, false);
    };
  }
}

}  // namespace kiln::lowering
