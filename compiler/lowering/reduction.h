// Pieces of reductions that several families of operators share.
#pragma once

#include <functional>
#include <vector>

#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// The dimensions of a tensor, parted.
struct ReductionShape {
  std::vector<bool> is_reduced;  // by dimension
  Ints kept;
  Ints reduced;
};

ReductionShape SplitDimensions(const View& self, const std::vector<int>& dims);

// Coordinates in the whole tensor.
Ints JoinCoordinates(const ReductionShape& shape, const Ints& outer, const Ints& inner);

// `out` without the dimensions of one element that `keepdim` leaves in it.
View KeptView(NodeContext& n, const View& out, const ReductionShape& shape);

// INVALID_ARGUMENT unless the result has the kept sizes, with or without reduced ones as 1.
absl::Status CheckReduced(NodeContext& n, size_t result, const ReductionShape& shape);

using ElementBody = std::function<Scalar(KernelBuilder&, Scalar)>;

// One kernel: result = after(reduce over `dims` of before(element)).
absl::Status ReduceInto(NodeContext& n, size_t result, const View& self,
                        const std::vector<int>& dims, ir::ReduceKind kind,
                        const ElementBody& before, const ElementBody& after);

Scalar Unchanged(KernelBuilder& b, Scalar value);

}  // namespace kiln::lowering
