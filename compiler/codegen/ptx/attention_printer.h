// The tree of attention on tensor cores (schedule/ptx/attention.h, attention_warps.h) as C++: a
// call of the prelude's KAttention or KAttentionByWarps.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

bool IsAttention(const schedule::Tree& tree);

// As PrintKernel, for sm_90a for blocks of which each of `compute_units` runs one; there four
// tensor maps, of queries, keys, values and the result, follow the other parameters. REQUIRES:
// IsAttention(tree).
absl::StatusOr<EmittedKernel> PrintAttention(ir::Module& module, const schedule::Tree& tree,
                                             int compute_units, bool waits);

// The tree's micro-kernel of that kind; null where there is none.
const schedule::Micro* FindMicro(const schedule::Tree& tree, schedule::MicroKind kind);

// Where the first operand of a wgmma is; kTurned: in shared memory, contiguous along its rows.
enum class FirstOperand : uint8_t { kRegisters, kShared, kTurned };

// Sums of 64 rows and `columns` columns over `depth` elements, 16 of them a wgmma.
struct SumsOfTile {
  absl::string_view type;  // of the operands, as PTX calls it
  int columns, depth;
  FirstOperand first;
  int rows = 64;          // of the tile that kShared's 64 are part of
  bool is_second_turned;  // contiguous along the columns
};
// A struct `name` with `tile`'s multiplication and the wait for it. All of its instructions are one
// statement: each sum is an operand of a statement, so that none moves, and what Clang takes for
// those is most of what it takes for a kernel of attention.
std::string InstructionText(absl::string_view name, const SumsOfTile& tile);

// Gives what there is one of, which has any stride, one that the driver takes.
void AllowStrides(EmittedTensorMap& map);

}  // namespace kiln::codegen::ptx
