// wgmma, the instruction of sm_90a's tensor cores, as products and attention have it printed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kiln::codegen::ptx {

// Where the first operand of a wgmma is; kTurned: in shared memory, contiguous along its rows.
enum class FirstOperand : uint8_t { kRegisters, kShared, kTurned };

// Sums of 64 rows and `columns` columns over `depth` elements, 16 of them a wgmma.
struct SumsOfTile {
  absl::string_view type;  // of the operands, as PTX calls it
  int columns, depth;
  FirstOperand first;
  int rows = 64;          // of the tile that kShared's 64 are part of
  bool is_second_turned;  // contiguous along the columns
  bool has_wait = true;   // else the struct has none of its own
};
// A struct `name` with `tile`'s multiplication and the wait for it. All of its instructions are one
// statement: each sum is an operand of a statement, so that none moves, and what Clang takes for
// those is most of what it takes for a kernel of attention.
std::string InstructionText(absl::string_view name, const SumsOfTile& tile);
// A function `name` that waits for all that was begun, of sums in arrays of so many. Each wait
// costs ptxas as much as several multiplications.
std::string WaitText(absl::string_view name, absl::Span<const int> counts);

}  // namespace kiln::codegen::ptx
