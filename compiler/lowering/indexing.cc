// Reads at positions that other tensors give.
#include "compiler/lowering/indexing.h"

#include <algorithm>
#include <string>
#include <vector>

#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

// embedding(weight, indices): weight[indices[..], d]; a negative index is an error, as in eager.
absl::Status LowerEmbedding(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View weight, n.Tensor(0, "weight"));
  KILN_ASSIGN_OR_RETURN(const View indices, n.Tensor(1, "indices"));
  KILN_RETURN_IF_ERROR(CheckIndex(n, indices));
  if (weight.sizes.size() != 2) return n.BadGraph("a weight that is no matrix", "2 dimensions");
  Ints sizes = indices.sizes;
  sizes.push_back(weight.sizes[1]);
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, sizes, "the result"));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar row = b.Load(indices, Ints(at.begin(), at.end() - 1));
    return b.LoadAt(weight, {row, at.back()});
  });
  return absl::OkStatus();
}

// gather(self, dim, index): self[.., index[at], ..]
absl::Status LowerGather(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View index, n.Tensor(2, "index"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  KILN_RETURN_IF_ERROR(CheckIndex(n, index));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, index.sizes, "the result"));
  if (self.sizes.size() != index.sizes.size()) {
    return n.BadGraph("the index's rank", "the argument's");
  }
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    const bool is_known = self.sizes[d].is_const() && index.sizes[d].is_const();
    if (static_cast<int>(d) != dim && is_known && index.sizes[d].value() > self.sizes[d].value()) {
      return n.BadGraph("the index is larger than the argument", "at most its size");
    }
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    std::vector<Coordinate> source(at.begin(), at.end());
    if (!source.empty()) source[dim] = b.Load(index, at);
    return b.LoadAt(self, source);
  });
  return absl::OkStatus();
}

// index_select(self, dim, index)
absl::Status LowerIndexSelect(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View index, n.Tensor(2, "index"));
  KILN_ASSIGN_OR_RETURN(const int dim, n.Dimension(1, "dim", self.sizes.size(), 0));
  KILN_RETURN_IF_ERROR(CheckIndex(n, index));
  if (self.sizes.empty() || index.sizes.size() > 1) return n.Decline("of a scalar");
  Ints sizes = self.sizes;
  sizes[dim] = n.ints().Product(index.sizes);
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, sizes, "the result"));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    std::vector<Coordinate> source(at.begin(), at.end());
    source[dim] = b.Load(index, index.sizes.empty() ? Ints{} : Ints{at[dim]});
    return b.LoadAt(self, source);
  });
  return absl::OkStatus();
}

// index.Tensor(self, indices) with integer indices; negative ones count from the end.
absl::Status LowerIndex(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const AdvancedIndex a, ReadAdvancedIndex(n, self));
  const Ints& sizes = n.Result(0).sizes;
  const size_t rank = self.sizes.size() - a.count + a.rank;
  if (sizes.size() != rank) return n.BadGraph("the result's rank", std::to_string(rank));
  const Ints joint(sizes.begin() + a.first, sizes.begin() + a.first + a.rank);
  for (const std::optional<View>& index : a.indices) {
    if (index) KILN_RETURN_IF_ERROR(n.CheckBroadcast(index->sizes, joint));
  }
  size_t next = 0;
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    if (next == a.first) next += a.rank;
    if (a.indices[d]) continue;
    KILN_RETURN_IF_ERROR(n.CheckSizes({sizes[next++]}, {self.sizes[d]}, "a dimension"));
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Ints joint_at(at.begin() + a.first, at.begin() + a.first + a.rank);
    std::vector<Coordinate> source;
    size_t plain = 0;
    for (size_t d = 0; d < self.sizes.size(); ++d) {
      if (plain == a.first) plain += a.rank;
      if (!a.indices[d]) {
        source.push_back(at[plain++]);
        continue;
      }
      source.push_back(LoadWrapped(b, *a.indices[d], joint_at, self.sizes[d]));
    }
    return b.LoadAt(self, source);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckIndex(NodeContext& n, const View& index) {
  if (index.dtype == DType::kI64 || index.dtype == DType::kI32) return absl::OkStatus();
  return n.Decline("with an index that is no i32 or i64");
}

absl::StatusOr<AdvancedIndex> ReadAdvancedIndex(NodeContext& n, const View& self) {
  AdvancedIndex a;
  KILN_ASSIGN_OR_RETURN(a.indices, n.TensorList(1, "indices"));
  if (a.indices.size() > self.sizes.size()) {
    return n.BadGraph("more indices than dimensions", "as many or fewer");
  }
  a.indices.resize(self.sizes.size());
  std::vector<size_t> indexed;
  for (size_t d = 0; d < a.indices.size(); ++d) {
    if (!a.indices[d]) continue;
    KILN_RETURN_IF_ERROR(CheckIndex(n, *a.indices[d]));
    indexed.push_back(d);
    a.rank = std::max(a.rank, a.indices[d]->sizes.size());
  }
  if (indexed.empty()) return n.Decline("without an index");
  a.count = indexed.size();
  // Adjacent indices put their dimensions in place, parted ones in front.
  const bool is_adjacent = indexed.back() - indexed.front() + 1 == indexed.size();
  a.first = is_adjacent ? indexed.front() : 0;
  return a;
}

Scalar LoadWrapped(KernelBuilder& b, const View& index, const Ints& at, IntExpr size) {
  const Scalar raw = b.Cast(b.LoadBroadcast(index, at), DType::kI64);
  const Scalar is_negative = b.Op(kLt, raw, b.ConstInt(DType::kI64, 0));
  return b.Select(is_negative, b.Op(kAdd, raw, b.Index(size)), raw);
}

void RegisterIndexing(Registry& registry) {
  registry["embedding.default"] = LowerEmbedding;
  registry["gather.default"] = LowerGather;
  registry["index_select.default"] = LowerIndexSelect;
  registry["index.Tensor"] = LowerIndex;
}

}  // namespace kiln::lowering
