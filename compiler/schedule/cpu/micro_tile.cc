#include "compiler/schedule/cpu/micro_tile.h"

#include <algorithm>
#include <cmath>

#include "absl/types/span.h"
#include "compiler/schedule/micro.h"

namespace kiln::schedule::cpu {
namespace {

struct Tile {
  int rows, vectors;
};

double StepsIn(const Tile& tile, double rows, double lanes, const ContractionPlan& plan) {
  const double width = tile.vectors * plan.vector_lanes;
  const double tiles = std::ceil(rows / tile.rows) * std::ceil(lanes / width);
  const double sums = tile.rows * tile.vectors;  // vectors of them
  if (!plan.pairs()) return tiles * sums;
  if (!plan.matrix_tiles) return tiles * sums / 2;
  // Cycles for steps of 32 (Sapphire Rapids): 16 x 16 sums take 16, a tile of the rows, which are
  // in the first-level cache or near it, some 12, one of a panel, from the second, some 21.
  constexpr double kStep = 32;
  const double blocks = static_cast<double>(tile.rows) / kMatrixRows, vectors = tile.vectors;
  return tiles * std::max(16 * blocks * vectors, 12 * blocks + 21 * vectors) / kStep;
}

}  // namespace

double StepsOf(double rows, double lanes, const ContractionPlan& plan) {
  return StepsIn({plan.tile_rows, plan.tile_vectors}, rows, lanes, plan);
}

void ChooseMicroTile(double rows, double lanes, VectorIsa isa, int vectors, ContractionPlan& plan) {
  static constexpr Tile kWide[] = {{12, 2}, {14, 2}, {13, 2}, {11, 2}, {10, 2}, {8, 3}, {6, 4}};
  static constexpr Tile kNarrow[] = {{6, 2}, {4, 3}};
  static constexpr Tile kMatrix[] = {{32, 2}, {16, 4}, {16, 3}, {16, 2}, {32, 1}, {16, 1}};
  const auto tiles = plan.matrix_tiles           ? absl::MakeConstSpan(kMatrix)
                     : isa == VectorIsa::kAvx512 ? absl::MakeConstSpan(kWide)
                                                 : absl::MakeConstSpan(kNarrow);
  double best = 0;
  for (const Tile& tile : tiles) {
    if (vectors != 0 && tile.vectors != vectors) continue;
    const double steps = StepsIn(tile, rows, lanes, plan);
    if (best > 0 && steps >= best * 0.995) continue;
    best = steps;
    plan.tile_rows = tile.rows;
    plan.tile_vectors = tile.vectors;
  }
  if (best == 0) ChooseMicroTile(rows, lanes, isa, 0, plan);  // no tile is that wide
}

void TakeMicroTileOfRank(int rank, VectorIsa isa, ContractionPlan& plan) {
  static constexpr int kOfVectors[] = {12, 8, 14, 10, 9, 7, 6, 5, 4, 3, 2};
  static constexpr int kOfMatrices[] = {2 * kMatrixRows, kMatrixRows};
  const auto all =
      plan.matrix_tiles ? absl::MakeConstSpan(kOfMatrices) : absl::MakeConstSpan(kOfVectors);
  // Sums stay in registers.
  const int registers = plan.matrix_tiles ? 4 * kMatrixRows : isa == VectorIsa::kAvx512 ? 28 : 12;
  const int most = registers / plan.tile_vectors;
  for (const int rows : all) {
    if (rows == plan.tile_rows || rows > most) continue;
    if (--rank > 0) continue;
    plan.tile_rows = rows;
    return;
  }
}

}  // namespace kiln::schedule::cpu
