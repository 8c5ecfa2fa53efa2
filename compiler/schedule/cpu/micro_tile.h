// In which tiles of sums, kept in registers, a contraction is computed.
#pragma once

#include "compiler/schedule/cpu/contraction_plan.h"
#include "compiler/schedule/cpu/vector_plan.h"

namespace kiln::schedule::cpu {

inline constexpr int kMostVectors = 4;  // of a tile

// Sets the tile in which `rows` x `lanes` sums take the fewest steps, with so many `vectors`; 0: as
// many as serve best. REQUIRES: the plan's types are set.
void ChooseMicroTile(double rows, double lanes, VectorIsa isa, int vectors, ContractionPlan& plan);

// Of tiles as wide as the plan's, so that panels stay as they are: the one of that rank, the plan's
// own being the first. Where there are no so many the plan keeps it.
void TakeMicroTileOfRank(int rank, VectorIsa isa, ContractionPlan& plan);

// What one k of `rows` x `lanes` sums takes in the plan's tile, padding included: in multiply-adds
// of a vector.
double StepsOf(double rows, double lanes, const ContractionPlan& plan);

}  // namespace kiln::schedule::cpu
