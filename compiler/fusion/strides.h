// How far apart in memory the iterations of a loop access a buffer. Private to compiler/fusion.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "compiler/fusion/fusion_graph.h"
#include "compiler/ir/module.h"

namespace kiln::fusion {

// By dimension of the load's or store's buffer, how far the access goes from iteration 0 of `loop`
// to iteration 1, with all other loops and run-time indices at 0 and symbols at their hints.
std::vector<int64_t> StepsAlong(ir::IntContext& ints, const ir::Inst& inst, ir::IntExpr loop);

// The same in elements of the buffer's memory, without sign.
int64_t StrideAlong(ir::Module& module, const ir::Inst& inst, ir::IntExpr loop);

// Whether a reduction of `joined`, made of `parts`, would walk along the memory of one large buffer
// and across another's, whose neighbours other outer points load, as no part does: each pass over a
// row would take a piece of memory for each element. A kernel of its own can transpose that buffer.
// Of buffers whose memory is given: the order of others is chosen last (layouts.cc).
bool WouldCrossRows(FusionGraph& graph, const ir::Kernel& joined,
                    std::initializer_list<const ir::Kernel*> parts);
inline constexpr char kCrossedRows[] = "the reduction's rows lie across what would be loaded";

}  // namespace kiln::fusion
