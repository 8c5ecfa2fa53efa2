// A lowered tensor: a window onto a buffer by index arithmetic. View operators make new windows and
// no kernel.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"
#include "proto/base/dtype.h"

namespace kiln::lowering {

using Ints = std::vector<ir::IntExpr>;

struct View {
  ir::BufferId buffer = -1;
  DType dtype = DType::kF32;
  Ints sizes;    // elements
  Ints vars;     // one placeholder a dimension; the constant 0 where the size is 1
  Ints indices;  // expressions over vars, one for each dimension of the buffer
};

// One loop variable for each size, and the constant 0 where the size is 1.
Ints NewVars(ir::IntContext& ints, const Ints& sizes);

// The whole of a buffer.
View WholeBuffer(ir::Module& module, ir::BufferId buffer);

// The index into view.buffer at `coordinates`, one for each dimension of the view.
Ints IndicesAt(ir::IntContext& ints, const View& view, const Ints& coordinates);

// A view of `sizes` whose element at v is base's element at coordinates(v).
View Remap(ir::IntContext& ints, const View& base, Ints sizes,
           const std::function<Ints(const Ints&)>& coordinates);

// The row-major reinterpretation. REQUIRES: as many elements; no empty dimension.
View Reshape(ir::IntContext& ints, const View& base, const Ints& sizes);

// Dimension i of the result is dimension order[i] of `base`.
View Permute(ir::IntContext& ints, const View& base, const std::vector<int>& order);

// Aligns the last dimensions; those of size 1 and those that `base` lacks are repeated.
View Expand(ir::IntContext& ints, const View& base, const Ints& sizes);

// `base` without its size-1 dimension `dim` / with a new one before `dim`.
View DropDimension(ir::IntContext& ints, const View& base, int dim, ir::IntExpr at);
View InsertDimension(ir::IntContext& ints, const View& base, int dim);

// Along `dim`: start, start + step, ...; `size` elements.
View Slice(ir::IntContext& ints, const View& base, int dim, ir::IntExpr start, ir::IntExpr step,
           ir::IntExpr size);

// The strided window that `view` is on its buffer's memory; nothing where it is no such window.
std::optional<ir::BufferWindow> AsWindow(ir::Module& module, const View& view);

// Whether strides `a` and `b` address `sizes` alike: dimensions of one element do not count.
bool SameStrides(const Ints& sizes, const Ints& a, const Ints& b);

// Whether the strides are some order of dimensions laid out without gaps.
bool IsDense(ir::IntContext& ints, const Ints& sizes, const Ints& strides);

// Dimensions from the greatest stride to the smallest, at the symbols' hints.
std::vector<int> MemoryOrder(const ir::IntContext& ints, const Ints& sizes, const Ints& strides);

// True where some size is the constant 0.
bool IsEmpty(const Ints& sizes);

}  // namespace kiln::lowering
