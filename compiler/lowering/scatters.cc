#include "compiler/lowering/scatters.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/lowering/indexing.h"
#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;
using ir::ReduceKind;

// What a result is accumulated in: 16-bit floats as f32, so that it is rounded once.
View NewAccumulator(NodeContext& n) {
  return n.NewTempLike(0, ComputeType(n.Result(0).dtype));
}

// Nothing can be stored in a dimension without elements, and eager says so where one tries.
absl::Status CheckNotEmpty(NodeContext& n, IntExpr size) {
  return size.is_const(0) ? n.Decline("into a dimension without elements") : absl::OkStatus();
}

// ---- By an index of the values' own shape: scatter -----------------------------------------

// The arguments of scatter(self, dim, index, ...): self's element [.., index[at], ..] takes the
// value of `at`.
struct ScatterArgs {
  View self, index;
  int dim = 0;
  std::vector<bool> is_free;
  Ints inner;
  std::vector<int> inner_dims;

  // Coordinates of the value in the index's shape.
  Ints At(const Ints& free, const Ints& inner_at) const {
    Ints at = free;
    for (size_t i = 0; i < inner_dims.size(); ++i) at[inner_dims[i]] = inner_at[i];
    return at;
  }
  std::vector<Coordinate> Place(KernelBuilder& b, const Ints& at) const {
    std::vector<Coordinate> place(at.begin(), at.end());
    place[dim] = b.Load(index, at);
    return place;
  }
};

absl::StatusOr<ScatterArgs> ReadScatter(NodeContext& n) {
  ScatterArgs a;
  KILN_ASSIGN_OR_RETURN(a.self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(a.index, n.Tensor(2, "index"));
  KILN_ASSIGN_OR_RETURN(a.dim, n.Dimension(1, "dim", a.self.sizes.size(), 0));
  KILN_RETURN_IF_ERROR(CheckIndex(n, a.index));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, a.self.sizes, "the result"));
  if (a.self.sizes.empty() || a.index.sizes.empty()) return n.Decline("of a scalar");
  if (a.self.sizes.size() != a.index.sizes.size()) {
    return n.BadGraph("the index's rank", "the argument's");
  }
  KILN_RETURN_IF_ERROR(CheckNotEmpty(n, a.self.sizes[a.dim]));
  if (IsEmpty(a.index.sizes)) return n.Decline("of no values");
  for (size_t d = 0; d < a.self.sizes.size(); ++d) {
    const IntExpr own = a.self.sizes[d], given = a.index.sizes[d];
    const bool is_dim = static_cast<int>(d) == a.dim;
    if (!is_dim && own.is_const() && given.is_const() && given.value() > own.value()) {
      return n.BadGraph("the index is larger than the argument", "at most its size");
    }
    a.is_free.push_back(!is_dim && own == given);
    if (a.is_free.back()) continue;
    a.inner.push_back(given);
    a.inner_dims.push_back(static_cast<int>(d));
  }
  return a;
}

// The values: a tensor at least as large as the index, or a number.
absl::StatusOr<Operand> ReadScattered(NodeContext& n, const ScatterArgs& a, const char* name) {
  KILN_ASSIGN_OR_RETURN(Operand source, n.TensorOrNumber(3, name));
  const auto* view = std::get_if<View>(&source);
  if (view == nullptr) return source;
  if (view->sizes.size() != a.index.sizes.size()) {
    return n.BadGraph("the source's rank", "the index's");
  }
  for (size_t d = 0; d < view->sizes.size(); ++d) {
    const IntExpr size = view->sizes[d], needed = a.index.sizes[d];
    if (size.is_const() && needed.is_const() && size.value() < needed.value()) {
      return n.BadGraph("the source is smaller than the index", "at least its size");
    }
  }
  return source;
}

Scalar LoadScattered(KernelBuilder& b, const Operand& source, const Ints& at, DType dtype) {
  if (const auto* view = std::get_if<View>(&source)) return b.Cast(b.Load(*view, at), dtype);
  return b.Const(dtype, std::get<Number>(source));
}

// How values of one place meet.
struct Meeting {
  std::optional<ReduceKind> kind;  // none: the last one counts
  bool is_mean = false;
  bool with_self = true;  // what stood there before takes part
};

Scalar Identity(KernelBuilder& b, ReduceKind kind, DType dtype) {
  ir::Inst identity{.op = ir::ScalarOp::kConst, .dtype = dtype};
  ir::SetIdentity(kind, identity);
  return IsFloat(dtype) ? b.Const(dtype, identity.immediate_float)
                        : b.ConstInt(dtype, identity.immediate_int);
}

absl::Status ScatterValues(NodeContext& n, const Meeting& meeting, const char* source_name) {
  KILN_ASSIGN_OR_RETURN(const ScatterArgs a, ReadScatter(n));
  KILN_ASSIGN_OR_RETURN(const Operand source, ReadScattered(n, a, source_name));
  const bool folds = meeting.kind.has_value();
  if (folds && a.self.dtype == DType::kBool) return n.Decline("that accumulates bools");
  const View out = folds ? NewAccumulator(n) : n.NewResult(0);
  const auto scatter = [&](const View& into, const NodeContext::Body& begin, bool resets,
                           const std::function<Scalar(KernelBuilder&, const Ints&)>& value) {
    std::vector<ScatterBody> bodies;
    if (resets) {
      bodies.push_back([&](KernelBuilder& b, const Ints& free, const Ints& inner) {
        const Ints at = a.At(free, inner);
        b.StoreAt(into, a.Place(b, at), Identity(b, *meeting.kind, into.dtype));
      });
    }
    bodies.push_back([&](KernelBuilder& b, const Ints& free, const Ints& inner) {
      const Ints at = a.At(free, inner);
      const std::vector<Coordinate> place = a.Place(b, at);
      b.StoreAt(into, place, value(b, at), meeting.kind);
    });
    EmitScatter(n, {into, a.is_free, a.inner}, begin, bodies);
  };
  scatter(
      out, [&](KernelBuilder& b, const Ints& at) { return b.Load(a.self, at); },
      folds && !meeting.with_self,
      [&](KernelBuilder& b, const Ints& at) { return LoadScattered(b, source, at, out.dtype); });
  if (!meeting.is_mean) {
    SetFrom(n, out);
    return absl::OkStatus();
  }
  const View count = NewAccumulator(n);
  const auto number = [&](int64_t value) {
    return
        [&count, value](KernelBuilder& b, const Ints&) { return b.ConstInt(count.dtype, value); };
  };
  scatter(count, number(meeting.with_self), false, number(1));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar terms = b.Op(kMax, b.Load(count, at), b.ConstInt(count.dtype, 1));
    return b.Op(IsFloat(out.dtype) ? kDiv : kFloorDiv, b.Load(out, at), terms);
  });
  return absl::OkStatus();
}

// `reduce` as scatter.reduce and scatter_reduce spell it.
absl::StatusOr<Meeting> ReadMeeting(NodeContext& n, const std::string& reduce) {
  if (reduce == "sum" || reduce == "add" || reduce == "mean") {
    return Meeting{ReduceKind::kSum, reduce == "mean"};
  }
  if (reduce == "prod" || reduce == "multiply") return Meeting{ReduceKind::kProd};
  if (reduce == "amax") return Meeting{ReduceKind::kMax};
  if (reduce == "amin") return Meeting{ReduceKind::kMin};
  return n.BadGraph("'reduce' is '" + reduce + "'", "sum, prod, mean, amax or amin");
}

absl::Status LowerScatterReduce(NodeContext& n, const char* source_name) {
  KILN_ASSIGN_OR_RETURN(const std::string reduce, n.String(4, "reduce", ""));
  KILN_ASSIGN_OR_RETURN(Meeting meeting, ReadMeeting(n, reduce));
  KILN_ASSIGN_OR_RETURN(meeting.with_self, n.Bool(5, "include_self", true));
  return ScatterValues(n, meeting, source_name);
}

// ---- By an index along one dimension: index_add, index_copy, index_fill --------------------

// The number at `at` of `index`, into a dimension of `size` elements.
using LoadIndex = Scalar (*)(KernelBuilder& b, const View& index, const Ints& at, IntExpr size);

// As index_add and index_copy have it: a negative index is an error.
Scalar LoadPlain(KernelBuilder& b, const View& index, const Ints& at, IntExpr) {
  return b.Load(index, at);
}

// `value` gives what goes to the place of index[i], at coordinates with i along the dimension.
absl::Status ScatterSlices(NodeContext& n, std::optional<ReduceKind> kind, LoadIndex load_index,
                           const std::optional<View>& source, const NodeContext::Body& value) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View index, n.Tensor(2, "index"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  KILN_RETURN_IF_ERROR(CheckIndex(n, index));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, self.sizes, "the result"));
  if (self.sizes.empty() || index.sizes.size() != 1) return n.Decline("of a scalar");
  KILN_RETURN_IF_ERROR(CheckNotEmpty(n, self.sizes[dim]));
  if (IsEmpty(index.sizes)) return n.Decline("of no values");
  if (kind && self.dtype == DType::kBool) return n.Decline("that accumulates bools");
  if (source) {
    Ints sizes = self.sizes;
    sizes[dim] = index.sizes[0];
    KILN_RETURN_IF_ERROR(n.CheckSizes(source->sizes, sizes, "the source"));
  }
  Scatter s{kind ? NewAccumulator(n) : n.NewResult(0), {}, {index.sizes[0]}};
  s.is_free.assign(self.sizes.size(), true);
  s.is_free[dim] = false;
  EmitScatter(n, s, [&](KernelBuilder& b, const Ints& at) { return b.Load(self, at); },
              {[&](KernelBuilder& b, const Ints& free, const Ints& inner) {
                std::vector<Coordinate> place(free.begin(), free.end());
                place[dim] = load_index(b, index, inner, self.sizes[dim]);
                Ints at = free;
                at[dim] = inner[0];
                b.StoreAt(s.out, place, value(b, at), kind);
              }});
  SetFrom(n, s.out);
  return absl::OkStatus();
}

absl::Status LowerIndexAdd(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View source, n.Tensor(3, "source"));
  KILN_ASSIGN_OR_RETURN(const Number alpha, n.ScalarArg(4, "alpha", Number(int64_t{1})));
  return ScatterSlices(n, ReduceKind::kSum, LoadPlain, source,
                       [&](KernelBuilder& b, const Ints& at) {
                         const Scalar value = b.Widen(b.Load(source, at));
                         return b.Op(kMul, value, b.Const(value.dtype, alpha));
                       });
}

absl::Status LowerIndexCopy(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View source, n.Tensor(3, "source"));
  return ScatterSlices(n, std::nullopt, LoadPlain, source,
                       [&](KernelBuilder& b, const Ints& at) { return b.Load(source, at); });
}

absl::Status LowerIndexFill(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const Operand value, n.TensorOrNumber(3, "value"));
  const auto* view = std::get_if<View>(&value);
  if (view != nullptr && !view->sizes.empty()) return n.BadGraph("the value's rank", "0");
  return ScatterSlices(
      n, std::nullopt, LoadWrapped, std::nullopt,
      [&](KernelBuilder& b, const Ints&) { return LoadOperand(b, value, {}, n.Result(0).dtype); });
}

// ---- By advanced indexing: index_put -------------------------------------------------------

// Where one mask says so; the values do not depend on how often it does.
absl::Status PutWhere(NodeContext& n, const View& self, const View& mask, size_t first,
                      const View& values, bool accumulates) {
  const size_t after = first + mask.sizes.size();
  if (after > self.sizes.size()) return n.BadGraph("a mask's rank", "at most the argument's");
  const Ints masked(self.sizes.begin() + first, self.sizes.begin() + after);
  KILN_RETURN_IF_ERROR(n.CheckSizes(mask.sizes, masked, "the mask"));
  // Of the selected elements there is one dimension, before those that follow the mask's.
  const size_t rest = self.sizes.size() - after;
  const size_t rank = values.sizes.size();
  if (rank > rest && (first > 0 || rank > rest + 1 || !values.sizes[0].is_const(1))) {
    return n.Decline("of values that a mask deals out");
  }
  if (accumulates && self.dtype == DType::kBool) return n.Decline("that accumulates bools");
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    Ints value_at(at.end() - std::min(rank, rest), at.end());
    if (rank > rest) value_at.insert(value_at.begin(), n.ints().Const(0));
    const Scalar old = b.Load(self, at);
    Scalar value = b.Load(values, value_at);
    if (accumulates) value = b.Cast(b.Op(kAdd, b.Widen(old), b.Widen(value)), old.dtype);
    return b.Select(b.Load(mask, Ints(at.begin() + first, at.begin() + after)), value, old);
  });
  return absl::OkStatus();
}

// index_put(self, indices, values, accumulate)
absl::Status LowerIndexPut(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View values, n.Tensor(2, "values"));
  KILN_ASSIGN_OR_RETURN(const bool accumulates, n.Bool(3, "accumulate", false));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, self.sizes, "the result"));
  if (values.dtype != self.dtype) return n.BadGraph("the values' type", "the argument's");
  KILN_ASSIGN_OR_RETURN(const auto given, n.TensorList(1, "indices"));
  const auto is_given = [](const std::optional<View>& index) { return index.has_value(); };
  const auto one = std::find_if(given.begin(), given.end(), is_given);
  if (std::count_if(given.begin(), given.end(), is_given) == 1 && (*one)->dtype == DType::kBool) {
    return PutWhere(n, self, **one, static_cast<size_t>(one - given.begin()), values, accumulates);
  }
  KILN_ASSIGN_OR_RETURN(const AdvancedIndex a, ReadAdvancedIndex(n, self));
  if (accumulates && self.dtype == DType::kBool) return n.Decline("that accumulates bools");
  Scatter s;
  s.inner.assign(a.rank, n.ints().Const(1));
  Ints sizes;  // of what index.Tensor would give
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    s.is_free.push_back(!a.indices[d]);
    if (!a.indices[d]) {
      sizes.push_back(self.sizes[d]);
      continue;
    }
    KILN_RETURN_IF_ERROR(CheckNotEmpty(n, self.sizes[d]));
    const Ints& index = a.indices[d]->sizes;
    for (size_t i = 0; i < index.size(); ++i) {
      if (!index[i].is_const(1)) s.inner[a.rank - index.size() + i] = index[i];
    }
  }
  if (IsEmpty(s.inner)) return n.Decline("of no values");
  for (const std::optional<View>& index : a.indices) {
    if (index) KILN_RETURN_IF_ERROR(n.CheckBroadcast(index->sizes, s.inner));
  }
  sizes.insert(sizes.begin() + a.first, s.inner.begin(), s.inner.end());
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(values.sizes, sizes));
  const std::optional<ReduceKind> kind =
      accumulates ? std::optional(ReduceKind::kSum) : std::nullopt;
  s.out = accumulates ? NewAccumulator(n) : n.NewResult(0);
  EmitScatter(n, s, [&](KernelBuilder& b, const Ints& at) { return b.Load(self, at); },
              {[&](KernelBuilder& b, const Ints& free, const Ints& inner) {
                std::vector<Coordinate> place;
                Ints at;
                for (size_t d = 0; d < self.sizes.size(); ++d) {
                  if (!a.indices[d]) {
                    at.push_back(free[d]);
                    place.push_back(free[d]);
                  } else {
                    place.push_back(LoadWrapped(b, *a.indices[d], inner, self.sizes[d]));
                  }
                }
                at.insert(at.begin() + a.first, inner.begin(), inner.end());
                b.StoreAt(s.out, place, b.LoadBroadcast(values, at), kind);
              }});
  SetFrom(n, s.out);
  return absl::OkStatus();
}

// embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq): the
// gradient of a row of the table is the sum of those of its uses.
absl::Status LowerEmbeddingBackward(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View grad, n.Tensor(0, "grad_output"));
  KILN_ASSIGN_OR_RETURN(const View indices, n.Tensor(1, "indices"));
  KILN_ASSIGN_OR_RETURN(const int64_t padding, n.ConstInt(3, "padding_idx", -1));
  KILN_ASSIGN_OR_RETURN(const bool by_frequency, n.Bool(4, "scale_grad_by_freq", false));
  KILN_RETURN_IF_ERROR(CheckIndex(n, indices));
  if (by_frequency) return n.Decline("scaled by how often a row is used");
  const Ints& table = n.Result(0).sizes;
  if (table.size() != 2) return n.BadGraph("the result's rank", "2");
  KILN_RETURN_IF_ERROR(CheckNotEmpty(n, table[0]));
  if (IsEmpty(indices.sizes)) return n.Decline("of no indices");
  Ints sizes = indices.sizes;
  sizes.push_back(table[1]);
  KILN_RETURN_IF_ERROR(n.CheckSizes(grad.sizes, sizes, "the gradient"));
  const Scatter s{NewAccumulator(n), {false, true}, indices.sizes};
  EmitScatter(n, s, [&](KernelBuilder& b, const Ints&) { return b.ConstInt(s.out.dtype, 0); },
              {[&](KernelBuilder& b, const Ints& free, const Ints& inner) {
                const Scalar row = b.Cast(b.Load(indices, inner), DType::kI64);
                Ints at = inner;
                at.push_back(free[1]);
                Scalar value = b.Widen(b.Load(grad, at));
                if (padding >= 0) {
                  const Scalar is_padding = b.Op(kEq, row, b.ConstInt(DType::kI64, padding));
                  value = b.Select(is_padding, b.ConstInt(value.dtype, 0), value);
                }
                b.StoreAt(s.out, {row, free[1]}, value, ReduceKind::kSum);
              }});
  SetFrom(n, s.out);
  return absl::OkStatus();
}

}  // namespace

void EmitScatter(NodeContext& n, const Scatter& s, const NodeContext::Body& begin,
                 const std::vector<ScatterBody>& bodies) {
  KernelBuilder b = n.NewKernel();
  Ints outer_sizes, inner_sizes;
  std::vector<int> place(s.out.sizes.size()), order;  // of a dimension among its kind
  for (size_t d = 0; d < s.out.sizes.size(); ++d) {
    Ints& sizes = s.is_free[d] ? outer_sizes : inner_sizes;
    place[d] = static_cast<int>(sizes.size());
    sizes.push_back(s.out.sizes[d]);
  }
  for (const int d : n.LoopOrder(s.out)) {
    if (s.is_free[d]) order.push_back(place[d]);
  }
  const Ints outer = b.Outer(outer_sizes, order);
  const Ints inner = b.StartPhase(inner_sizes);
  Ints all, free;
  for (size_t d = 0; d < s.out.sizes.size(); ++d) {
    all.push_back(s.is_free[d] ? outer[place[d]] : inner[place[d]]);
    free.push_back(s.is_free[d] ? outer[place[d]] : IntExpr());
  }
  b.Store(s.out, all, begin(b, all));
  for (const ScatterBody& body : bodies) body(b, free, b.StartPhase(s.inner));
  b.Finish();
}

void SetFrom(NodeContext& n, const View& out) {
  if (out.dtype == n.Result(0).dtype) return n.SetResult(0, out);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) { return b.Load(out, at); });
}

void RegisterScatters(Registry& registry) {
  registry["scatter.src"] = [](NodeContext& n) { return ScatterValues(n, {}, "src"); };
  registry["scatter.value"] = [](NodeContext& n) { return ScatterValues(n, {}, "value"); };
  registry["scatter_add.default"] = [](NodeContext& n) {
    return ScatterValues(n, {ReduceKind::kSum}, "src");
  };
  registry["scatter.reduce"] = [](NodeContext& n) { return LowerScatterReduce(n, "src"); };
  registry["scatter.value_reduce"] = [](NodeContext& n) { return LowerScatterReduce(n, "value"); };
  registry["scatter_reduce.two"] = [](NodeContext& n) { return LowerScatterReduce(n, "src"); };
  registry["index_add.default"] = LowerIndexAdd;
  registry["index_copy.default"] = LowerIndexCopy;
  registry["index_fill.int_Scalar"] = registry["index_fill.int_Tensor"] = LowerIndexFill;
  registry["index_put.default"] = LowerIndexPut;
  registry["embedding_dense_backward.default"] = LowerEmbeddingBackward;
}

}  // namespace kiln::lowering
