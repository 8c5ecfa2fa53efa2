// How a contraction is blocked: which operand becomes panels, which loops are rows, lanes, batches.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

// out[batch][row][lane] = sum over k of rows[batch][row][k] * panels[batch][k][lane].
// Where rows are packed and the panels are there already, tasks take a part of the panels each.
inline constexpr int kGroupsOfPrepared = 2;

// What may be made before all runs, and is taken to cost nothing then.
enum class Preparing : uint8_t {
  kNothing,
  kPanels,  // of an operand that does not change
  kPlanes,  // the same with planes, where those pay (winograd_plan.h)
};

struct ContractionPlan {
  DType type = DType::kF32;                // of the products and sums: kF32 or kF64
  DType operand_type = DType::kF32;        // of rows: `type`, or kBF16 in pairs along k
  DType panel_type = DType::kF32;          // `operand_type`, or a narrower one that is widened
  ir::ValueId row_value = ir::kNoValue;    // the operand read row by row
  ir::ValueId panel_value = ir::kNoValue;  // the operand packed into panels
  ir::ValueId sum = ir::kNoValue;
  std::vector<ir::IntExpr> batch, rows, lanes;  // outer loops, outermost first
  std::vector<ir::IntExpr> k;                   // inner loops
  ir::IntExpr num_batches, num_rows, num_lanes, num_k;
  ir::IntExpr depth;  // of packed rows and panels: num_k, in whole pairs

  // Where the row operand is a plain load: what one row and one k add to its index. Null otherwise.
  const Step* row_load = nullptr;
  ir::IntExpr row_stride, k_stride;
  // Rows that are packed and that lie in memory side by side, not one after another, are packed so:
  // scratch memory is [k][row] then. Of pairs, which must be along k, they are turned on the way,
  // where they are a plain load.
  bool rows_beside = false;
  const Step* turned_load = nullptr;

  // Where the panel operand is a plain load that is contiguous along k: what one lane adds to its
  // index. Null otherwise.
  const Step* panel_load = nullptr;
  ir::IntExpr lane_stride;
  // The same where it is contiguous along the lanes, and what one k adds; for pairs only.
  const Step* panel_rows_load = nullptr;
  ir::IntExpr panel_k_stride;

  // Where the panel operand lies in panels already: its load. Null otherwise.
  const Step* packed_load = nullptr;
  // Whether behind each panel's rows lie those of its planes (winograd_plan.h), or shall.
  bool has_planes = false;
  // Whether the panels would be the same in every run, so that they can be made before.
  bool may_prepare = false;

  bool matrix_tiles = false;  // pairs are multiplied by matrix instructions, 16 x 16 sums each
  int vector_lanes = 16;      // VL
  int tile_rows = 8;          // MR
  int tile_vectors = 3;       // NV
  int row_groups = 1;         // micro kernels stacked to one tile of the epilogue
  bool store_along_rows = false;
  // Where a tile does not have all of them.
  std::optional<TilePart> row_part, lane_part, k_part;
  // Tasks take some rows each, and panels that are packed are so once for all tasks; else a task
  // takes a panel each.
  bool split_rows = false;
  std::string reason;  // for people

  bool pairs() const { return operand_type != type; }
  int panel_width() const { return vector_lanes * tile_vectors; }
  int block_rows() const { return tile_rows * row_groups; }
  // From one panel to the next: `depth`, and those of planes.
  ir::IntExpr panel_rows(ir::IntContext& ints) const;
};

// Whether it multiplies tiles of 16 x 16 sums of bf16 by an instruction.
bool HasMatrixTiles(const DeviceInfo& device);

// Nothing where plain loops serve better: integers, very few rows or lanes. Operands that are
// widened from bf16 stay that where the device has dot products of pairs (avx512bf16), by tiles
// where it has those (amx-bf16). Else panels of f16 (with f16c) or bf16 are widened by whoever
// multiplies with them, which costs nothing beside the products and reads half the bytes; rows are
// widened when they are packed. That is so with avx512fp16, too: its products would be rounded to
// f16.
std::optional<ContractionPlan> PlanContraction(ir::Module& module, const Nest& nest,
                                               const DeviceInfo& device,
                                               Preparing prepare = Preparing::kNothing);

// The layout of all panels, contiguous: [batch][panel][k][lane], and of pairs
// [batch][panel][k / 2][lane][k % 2]. Planes are a panel's last rows, [plane][channel][lane].
// REQUIRES: depth == num_k where an element is asked for.
std::vector<ir::IntExpr> PanelSizes(ir::IntContext& ints, const ContractionPlan& plan);
std::vector<ir::IntExpr> PanelIndices(ir::IntContext& ints, const ContractionPlan& plan,
                                      ir::IntExpr batch, ir::IntExpr lane, ir::IntExpr k);

// The steps of phase 0 that `value` needs, in order.
std::vector<const Step*> Closure(const NestPhase& phase, ir::ValueId value);

// The load that is all of `steps`, where neither a mask nor an index tensor takes part; else null.
const Step* PlainLoad(const std::vector<const Step*>& steps);

// What `index` gains from one step of `vars` taken as one loop; null if it is not that regular.
ir::IntExpr FlatStride(ir::IntContext& ints, ir::IntExpr index,
                       const std::vector<ir::IntExpr>& vars);

// How many iterations of loops that are `all` together run in a tile, at most.
double MostOf(double all, const std::optional<TilePart>& part);

}  // namespace kiln::schedule::cpu
