// The passes of fusion, in the order in which Fuse runs them. Each takes a graph of verified
// kernels and leaves an equivalent one, valid after every single step, so that any pass can be
// left out. Private to compiler/fusion.
#pragma once

#include "compiler/fusion/fusion_graph.h"

namespace kiln::fusion {

// Removes kernels whose buffers nobody reads.
void RemoveDeadKernels(FusionGraph& graph);

// Replaces reductions over no elements by what they give.
void FoldEmptyReductions(FusionGraph& graph);

// Replaces loops of one iteration by their only index, 0.
void RemoveUnitLoops(FusionGraph& graph);

// Substitutes pointwise producers into the loads of their consumers.
void InlineProducers(FusionGraph& graph);

// Of operations that do the same with the same operands keeps the first, before kernels are joined
// with what reads them: where that is costly to compute or small, and so better kept in memory.
void ShareResults(FusionGraph& graph);

// Makes pointwise consumers of a contraction part of it.
void FuseEpilogues(FusionGraph& graph);

// Joins producers with consumers, and readers of the same buffer where one of them reduces, most
// memory traffic saved first.
void MergeKernels(FusionGraph& graph);

// As ShareResults, whatever they compute: after it no two kernels do the same, unless the graph's
// outputs are apart, or one of them would be in memory for too long.
void ShareRepeats(FusionGraph& graph);

// Joins independent pointwise kernels that read the same memory.
void MergeHorizontally(FusionGraph& graph);

// Joins small kernels of equal outer loops that have nothing to do with each other, as the updates
// of an optimizer: for targets where a launch costs as much as they.
void MergeLaunches(FusionGraph& graph);

// Cuts long reductions that have few outer points into partial results and the rest.
void SplitReductions(FusionGraph& graph);

// Orders the dimensions of temporary buffers in memory as the kernels that use them go through it.
void ChooseLayouts(FusionGraph& graph);

}  // namespace kiln::fusion
