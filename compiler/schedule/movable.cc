#include "compiler/schedule/movable.h"

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"

namespace kiln::schedule {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::Kernel;
using ir::Module;
using ir::ScalarOp;

namespace {

constexpr size_t kMostBetween = 64;  // operations from the first kernel to the last

}  // namespace

bool MayBeTiled(const Module& module, size_t operation) {
  const auto* kernel = std::get_if<Kernel>(&module.operations[operation]);
  if (kernel == nullptr || kernel->schedule == ir::Schedule::kPacking ||
      kernel->schedule == ir::Schedule::kSorting || HasScatter(*kernel)) {
    return false;
  }
  bool may = true;
  ForEachAccess(module.operations[operation], [&](const Inst& inst) {
    const BufferKind kind = module.buffers[inst.buffer].kind;
    may &= kind != BufferKind::kPrepared;
    may &= inst.op == ScalarOp::kLoad || kind != BufferKind::kInput;
  });
  return may;
}

bool MayMove(const Module& module, std::vector<size_t>& operations) {
  absl::c_sort(operations);
  if (operations.back() - operations.front() > kMostBetween) return false;
  absl::flat_hash_set<BufferId> stored, loaded;
  for (size_t i = operations.front(); i < operations.back(); ++i) {
    if (std::holds_alternative<ir::Library>(module.operations[i])) return false;
    bool is_ours = absl::c_binary_search(operations, i), overwrites = false;
    ForEachAccess(module.operations[i], [&](const Inst& inst) {
      is_ours |= inst.op == ScalarOp::kLoad && stored.contains(inst.buffer);
      overwrites |= inst.op == ScalarOp::kStore && loaded.contains(inst.buffer);
    });
    if (overwrites) return false;
    if (!is_ours) continue;
    if (!MayBeTiled(module, i)) return false;
    if (!absl::c_binary_search(operations, i)) {
      operations.insert(absl::c_upper_bound(operations, i), i);
    }
    ForEachAccess(module.operations[i], [&](const Inst& inst) {
      (inst.op == ScalarOp::kStore ? stored : loaded).insert(inst.buffer);
    });
  }
  return true;
}

std::vector<BufferId> StoredFor(const Module& module, const BufferUses& uses, size_t i,
                                const std::vector<size_t>& users) {
  std::vector<BufferId> stored;
  ForEachAccess(module.operations[i], [&](const Inst& inst) {
    const std::vector<size_t>& loaders = uses.LoadersOf(inst.buffer);
    if (inst.op == ScalarOp::kStore && !absl::c_linear_search(stored, inst.buffer) &&
        module.buffers[inst.buffer].kind == BufferKind::kTemp && !loaders.empty() &&
        absl::c_all_of(loaders, [&](size_t user) { return absl::c_linear_search(users, user); })) {
      stored.push_back(inst.buffer);
    }
  });
  return stored;
}

}  // namespace kiln::schedule
