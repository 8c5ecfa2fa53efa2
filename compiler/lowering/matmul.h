// The matrix product as a building block.
#pragma once

#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// One kernel: out[batch.., i, j] = sum over k of a[batch.., i, k] * b[batch.., k, j]. The leading
// dimensions of all three are equal. A contraction where the shape is worth a blocked template, a
// plain reduction for a few rows or columns and for integers.
absl::Status EmitMatmul(NodeContext& n, const View& a, const View& b, const View& out);

}  // namespace kiln::lowering
