#include "compiler/schedule/tileable.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/schedule/movable.h"

namespace kiln::schedule {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::ScalarOp;

namespace {

const Kernel& KernelAt(const Module& module, size_t operation) {
  return std::get<Kernel>(module.operations[operation]);
}

// Finds the loops of several kernels that stand for each other in what these hand on.
class LoopClasses {
 public:
  // `sums`: with those that kernels sum over.
  LoopClasses(const Module& module, const std::vector<size_t>& operations, bool sums = false)
      : module_(module), operations_(operations), handed_on_(HandedOn()) {
    for (const size_t i : operations_) {
      for (IntExpr var : KernelAt(module_, i).outer) class_of_[var] = var;
      const IntExpr sum = sums ? SumLoop(KernelAt(module_, i)) : IntExpr();
      if (sum) class_of_[sum] = sum;
    }
    for (const BufferId buffer : handed_on_) AddBuffer(buffer);
  }

  // As Tileable::loops, in the order of the first kernel's.
  std::vector<std::vector<IntExpr>> Find() {
    std::vector<std::vector<IntExpr>> found;
    for (IntExpr first : KernelAt(module_, operations_[0]).outer) {
      std::vector<IntExpr> loops;
      for (const size_t i : operations_) {
        for (IntExpr var : KernelAt(module_, i).outer) {
          const bool same = ClassOf(var) == ClassOf(first);
          if (same && var.extent() == first.extent()) loops.push_back(var);
          if (same && var.extent() != first.extent()) bad_.insert(ClassOf(var));
        }
      }
      if (loops.size() == operations_.size() && !bad_.contains(ClassOf(first)) && OneEach(loops)) {
        found.push_back(std::move(loops));
      }
    }
    return found;
  }

  // A loop of the first kernel that all others have, too, or sum over, as few of them as may be;
  // nothing where there is none.
  std::vector<IntExpr> FindSummed() {
    std::vector<IntExpr> best;
    size_t fewest = operations_.size();
    for (IntExpr first : KernelAt(module_, operations_[0]).outer) {
      if (bad_.contains(ClassOf(first))) continue;
      std::vector<IntExpr> loops;
      size_t sums = 0;
      for (const size_t i : operations_) {
        const Kernel& kernel = KernelAt(module_, i);
        std::vector<IntExpr> all = kernel.outer;
        if (const IntExpr sum = SumLoop(kernel)) all.push_back(sum);
        std::erase_if(all, [&](IntExpr var) {
          return !class_of_.contains(var) || ClassOf(var) != ClassOf(first);
        });
        if (all.size() != 1 || all[0].extent() != first.extent()) break;
        sums += absl::c_linear_search(kernel.outer, all[0]) ? 0 : 1;
        loops.push_back(all[0]);
      }
      if (loops.size() != operations_.size() || sums == 0 || sums >= fewest) continue;
      fewest = sums;
      best = std::move(loops);
    }
    return best;
  }

 private:
  // The loop of a contraction whose sums nobody in the group loads; null where there is none.
  IntExpr SumLoop(const Kernel& kernel) const {
    if (kernel.schedule != ir::Schedule::kContraction || kernel.phases[0].inner.size() != 1) {
      return {};
    }
    bool may = true;
    for (size_t p = 1; p < kernel.phases.size(); ++p) {
      may &= kernel.phases[p].inner.empty();
      for (const Inst& inst : kernel.phases[p].body) {
        may &= inst.buffer < 0 || !absl::c_linear_search(handed_on_, inst.buffer);
      }
    }
    return may ? kernel.phases[0].inner[0] : IntExpr();
  }

  bool OneEach(const std::vector<IntExpr>& loops) const {
    for (size_t i = 0; i < loops.size(); ++i) {
      if (!absl::c_linear_search(KernelAt(module_, operations_[i]).outer, loops[i])) return false;
    }
    return true;
  }

  IntExpr ClassOf(IntExpr var) {
    while (class_of_.at(var) != var) var = class_of_.at(var);
    return var;
  }

  // What one of the kernels stores and another one loads.
  std::vector<BufferId> HandedOn() const {
    std::vector<BufferId> handed_on;
    absl::flat_hash_set<BufferId> stored;
    for (const size_t i : operations_) {
      std::vector<BufferId> own;
      ForEachAccess(module_.operations[i], [&](const Inst& inst) {
        if (inst.op == ScalarOp::kStore) own.push_back(inst.buffer);
        if (inst.op == ScalarOp::kLoad && stored.contains(inst.buffer) &&
            !absl::c_linear_search(handed_on, inst.buffer)) {
          handed_on.push_back(inst.buffer);
        }
      });
      stored.insert(own.begin(), own.end());
    }
    return handed_on;
  }

  void AddBuffer(BufferId buffer) {
    for (size_t d = 0; d < module_.buffers[buffer].sizes.size(); ++d) {
      std::vector<IntExpr> indices;
      for (const size_t i : operations_) {
        ForEachAccess(module_.operations[i], [&](const Inst& inst) {
          if (inst.buffer == buffer) indices.push_back(inst.indices[d]);
        });
      }
      const bool pure =
          absl::c_all_of(indices, [&](IntExpr index) { return class_of_.contains(index); });
      for (IntExpr index : indices) {
        if (pure) {
          class_of_[ClassOf(index)] = ClassOf(indices[0]);
        } else if (!index.is_const()) {
          ForEachLeaf(index, [&](IntExpr leaf) {
            if (class_of_.contains(leaf)) tainted_.push_back(leaf);
          });
        }
      }
    }
    for (IntExpr var : tainted_) bad_.insert(ClassOf(var));
  }

  const Module& module_;
  const std::vector<size_t>& operations_;
  const std::vector<BufferId> handed_on_;
  absl::flat_hash_map<IntExpr, IntExpr> class_of_;  // of outer loops; a class by one of them
  std::vector<IntExpr> tainted_;  // part of an index that is more than they, somewhere
  absl::flat_hash_set<IntExpr> bad_;
};

// Adds a kernel that computes element by element what only those of `found` load, where they keep
// their loops. Whether there was one.
bool AddProducer(const Module& module, const BufferUses& uses, Tileable& found) {
  absl::flat_hash_set<size_t> producers;
  for (const size_t i : found.operations) {
    ForEachAccess(module.operations[i], [&](const Inst& inst) {
      const std::optional<size_t> storer = uses.StorerOf(inst.buffer);
      if (inst.op == ScalarOp::kLoad && storer && *storer < found.operations.back() &&
          !absl::c_linear_search(found.operations, *storer)) {
        producers.insert(*storer);
      }
    });
  }
  std::vector<size_t> sorted(producers.begin(), producers.end());
  absl::c_sort(sorted);
  for (const size_t i : sorted) {
    if (!MayBeTiled(module, i)) continue;
    const Kernel& kernel = KernelAt(module, i);
    if (kernel.phases.size() != 1 || !kernel.phases[0].inner.empty()) continue;
    const std::vector<BufferId> made = StoredFor(module, uses, i, found.operations);
    size_t stores = 0;
    ForEachInst(kernel, [&](const Inst& inst) { stores += inst.op == ScalarOp::kStore ? 1 : 0; });
    std::vector<size_t> operations = found.operations;
    operations.push_back(i);
    if (made.size() != stores || !MayMove(module, operations)) continue;
    if (operations.size() != found.operations.size() + 1) continue;
    const auto at = absl::c_find(operations, i) - operations.begin();
    std::vector<std::vector<IntExpr>> loops = LoopClasses(module, operations).Find();
    std::vector<std::vector<IntExpr>> kept;
    for (const std::vector<IntExpr>& known : found.loops) {
      for (const std::vector<IntExpr>& loop : loops) {
        std::vector<IntExpr> others = loop;
        others.erase(others.begin() + at);
        if (others == known) kept.push_back(loop);
      }
    }
    if (kept.size() != found.loops.size()) continue;
    found.operations = std::move(operations);
    found.loops = std::move(kept);
    absl::c_move(made, std::back_inserter(found.buffers));
    return true;
  }
  return false;
}

// Adds temporary buffers that one of the kernels stores for itself alone, each tiled loop's
// variable an index in every access.
void AddOwnBuffers(const Module& module, const BufferUses& uses, Tileable& found) {
  for (size_t k = 0; k < found.operations.size(); ++k) {
    const size_t i = found.operations[k];
    for (const BufferId buffer : StoredFor(module, uses, i, {i})) {
      std::vector<std::vector<IntExpr>> accesses;
      ForEachAccess(module.operations[i], [&](const Inst& inst) {
        if (inst.buffer == buffer) accesses.push_back(inst.indices);
      });
      const bool pure = absl::c_all_of(found.loops, [&](const std::vector<IntExpr>& loop) {
        const auto place = [&](const std::vector<IntExpr>& indices) {
          return absl::c_find(indices, loop[k]) - indices.begin();
        };
        return absl::c_all_of(accesses, [&](const std::vector<IntExpr>& indices) {
          return place(indices) == place(accesses[0]) && absl::c_linear_search(indices, loop[k]);
        });
      });
      if (pure) found.buffers.push_back(buffer);
    }
  }
}

// Whether `loops` has all of `known`, which are of some of its kernels, but perhaps for the last.
bool IsMostOf(const std::vector<std::vector<IntExpr>>& loops,
              const std::vector<std::vector<IntExpr>>& known) {
  if (loops.size() + 1 < known.size()) return false;
  for (size_t i = 0; i < std::min(loops.size(), known.size()); ++i) {
    if (loops[i][0] != known[i][0]) return false;
  }
  return true;
}

}  // namespace

BufferUses::BufferUses(const Module& module)
    : loaders_(module.buffers.size()), storers_(module.buffers.size()) {
  std::vector<bool> seen_elsewhere(module.buffers.size(), false);
  for (size_t i = 0; i < module.operations.size(); ++i) {
    ForEachAccess(module.operations[i], [&](const Inst& inst) {
      std::vector<size_t>& loaders = loaders_[inst.buffer];
      const bool is_new = loaders.empty() || loaders.back() != i;
      if (inst.op == ScalarOp::kLoad && is_new) loaders.push_back(i);
      if (inst.op == ScalarOp::kStore) storers_[inst.buffer] = i;
    });
    if (const auto* library = std::get_if<ir::Library>(&module.operations[i])) {
      ir::ForEachWindow(library->args, [&](const ir::BufferWindow& window) {
        seen_elsewhere[window.buffer] = true;
      });
    }
  }
  for (const ir::ModuleOutput& output : module.outputs) {
    const auto* window = std::get_if<ir::BufferWindow>(&output.value);
    if (window != nullptr) seen_elsewhere[window->buffer] = true;
  }
  for (size_t b = 0; b < loaders_.size(); ++b) {
    if (seen_elsewhere[b]) loaders_[b].clear();
  }
}

std::vector<Tileable> FindTileable(const Module& module, const BufferUses& uses, size_t first) {
  if (!MayBeTiled(module, first)) return {};
  std::vector<Tileable> smaller;
  Tileable found{{first}, {}, {}};
  absl::flat_hash_set<BufferId> looked_at;
  for (size_t next = 0; next < found.operations.size(); ++next) {
    std::vector<BufferId> made;
    ForEachAccess(module.operations[found.operations[next]], [&](const Inst& inst) {
      const bool is_temp = module.buffers[inst.buffer].kind == BufferKind::kTemp;
      if (inst.op == ScalarOp::kStore && is_temp && looked_at.insert(inst.buffer).second) {
        made.push_back(inst.buffer);
      }
    });
    for (const BufferId buffer : made) {
      const std::vector<size_t>& loaders = uses.LoadersOf(buffer);
      if (loaders.empty() || !absl::c_all_of(loaders, [&](size_t i) {
            return i > found.operations[next] && MayBeTiled(module, i);
          })) {
        continue;
      }
      std::vector<size_t> operations = found.operations;
      for (const size_t i : loaders) {
        if (!absl::c_linear_search(operations, i)) operations.push_back(i);
      }
      if (!MayMove(module, operations)) continue;
      auto loops = LoopClasses(module, operations).Find();
      if (loops.empty() || !IsMostOf(loops, found.loops)) continue;
      if (loops.size() < found.loops.size()) smaller.push_back(found);
      found.operations = std::move(operations);
      found.loops = std::move(loops);
      found.buffers.push_back(buffer);
    }
  }
  if (found.buffers.empty()) return {};
  while (AddProducer(module, uses, found)) continue;
  std::optional<Tileable> summed;
  if (auto loop = LoopClasses(module, found.operations, /*sums=*/true).FindSummed();
      !loop.empty()) {
    summed = found;
    std::erase_if(summed->loops, [&](const auto& known) { return known[0] == loop[0]; });
    summed->loops.push_back(std::move(loop));
    summed->sums = true;
  }
  smaller.push_back(std::move(found));
  if (summed) smaller.push_back(*std::move(summed));
  for (Tileable& choice : smaller) AddOwnBuffers(module, uses, choice);
  absl::c_reverse(smaller);
  return smaller;
}

}  // namespace kiln::schedule
