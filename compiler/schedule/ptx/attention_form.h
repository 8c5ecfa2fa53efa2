// What the kernels of attention of many queries have in common, however they run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/ptx/attention_kernels.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// What of an attention a kernel is made for: constants of its micro-kernel, with CAUSAL to LOW the
// last ones (compiler/schedule/micro.h).
struct AttentionForm {
  int width = 0;  // elements of a head
  bool is_causal = false;
  int mask = 0;  // 1: bool; 2: added to scores
  bool has_log_sums = false;
  float scale = 1;

  // Adds the last constants.
  void AddConstants(std::vector<int>& constants) const;
  static AttentionForm FromConstants(const std::vector<int>& constants);
};
AttentionForm FormOf(const ir::Module& module, const Attention& attention);

// Whether rows of an operand of 16 bits, each 16 bytes after 16, are where they can be copied from.
// What there is one of has any stride.
bool HasLines(ir::IntContext& ints, const AttentionOperand& operand, ir::IntExpr batches,
              ir::IntExpr heads, ir::IntExpr rows);
// Whether coordinates of the tensor memory accelerator, and numbers of tiles, are int.
bool HasIntSizes(ir::IntContext& ints, const Attention& attention);
// Of the bits, the higher half first: constants that schedule::ScaleOf reads.
std::pair<int, int> HalvesOf(float x);

// Whether it is one for tensor cores: bfloat16 or float16, heads of 64, 96, 128 or 256 elements,
// contiguous, at multiples of 16 bytes.
bool IsOfHalves(const ir::Module& module, const Attention& attention);

// At the symbols' hints: keys that a row sees at most, and tiles of so many queries.
int64_t KeysOf(const ir::IntContext& ints, const Attention& attention);
int64_t TilesOf(const ir::IntContext& ints, const Attention& attention, int queries);

// Adds to the end of `at` a loop of tasks over `extent`, whose body `at` is then; returns its
// variable.
ir::IntExpr AddTasks(ir::IntContext& ints, ir::IntExpr extent, int64_t step, Block*& at);
// Of the operand from that element on.
Window WindowAt(ir::IntContext& ints, const AttentionOperand& operand, ir::IntExpr batch,
                ir::IntExpr head, ir::IntExpr row);

// A task is a tile of `queries` queries of one head, by a micro-kernel with these constants. The
// repeat's kernels are the attention's.
Tree MakeAttentionTree(ir::Module& module, const ir::Repeat& repeat, const Attention& attention,
                       MicroKind kind, std::vector<int> constants, int queries, int team);

}  // namespace kiln::schedule::ptx
