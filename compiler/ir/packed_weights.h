// Weights of 4 bits as aten._convert_weight_to_int4pack lays them out on a GPU: in the order in
// which the tensor cores' instructions for 8 columns take them.
//
// The words, of i32, are [columns / 8, depth / (16 * inner), 32, inner / 2]; each holds eight
// numbers 0 to 15 of one column from two neighbouring tiles, 16 deep each. The scales, of 16 bits,
// are [depth / group, columns, 2], a scale and a zero for each group of a column. Element (column,
// k) is (number - 8) * scale + zero.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::ir {

inline constexpr int64_t kPackedColumns = 8;  // that lie together
inline constexpr int64_t kPackedDepth = 16;   // of a tile
inline constexpr int64_t kPackedLanes = 32;   // that share a tile
inline constexpr int64_t kPackedMiddle = 8;   // the number that stands for 0

// The word of an element, by the dimensions of the words, and how far to the right its number is
// to be shifted there. `inner`: tiles of a lane, 2, 4 or 8.
std::array<IntExpr, 4> PackedWord(IntContext& ints, int64_t inner, IntExpr column, IntExpr k);
IntExpr PackedShift(IntContext& ints, IntExpr k);

struct PackedWeights {
  BufferId words = -1, scales = -1;
  int64_t inner = 0, group = 0;
};

// What the instructions compute as `value`, if it is element (column, k) of such weights, widened
// or rounded where they like: `column` and `k` run over all of them.
std::optional<PackedWeights> FindPackedWeights(IntContext& ints, const Module& module,
                                               const std::vector<Inst>& body, ValueId value,
                                               IntExpr column, IntExpr k);

// Whether all that the kernel does is to unpack such weights into a matrix [columns, depth].
bool UnpacksWeights(const Module& module, const Kernel& kernel);

}  // namespace kiln::ir
