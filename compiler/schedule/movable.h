// Which kernels may be put side by side, to run tile by tile.
#pragma once

#include <cstddef>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule {

template <typename Visit>  // void(const Inst&)
void ForEachAccess(const ir::Operation& operation, const Visit& visit) {
  ForEachInst(operation, [&](const ir::Inst& inst) {
    if (inst.op == ir::ScalarOp::kLoad || inst.op == ir::ScalarOp::kStore) visit(inst);
  });
}

// Whether the operation is a kernel that stores only what a tile of it may, temporary buffers and
// outputs, and reads nothing that was laid out for its own loops.
bool MayBeTiled(const ir::Module& module, size_t operation);

// Sorts `operations`, kernels that MayBeTiled, and adds what stands between them and loads what
// they store. Whether all may then run where the last one stands.
bool MayMove(const ir::Module& module, std::vector<size_t>& operations);

// Temporary buffers that operation `i` stores and only those of `users` load.
std::vector<ir::BufferId> StoredFor(const ir::Module& module, const BufferUses& uses, size_t i,
                                    const std::vector<size_t>& users);

}  // namespace kiln::schedule
