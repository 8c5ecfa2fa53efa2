#include "compiler/schedule/tileable.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace kiln::schedule {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::ScalarOp;

namespace {

constexpr size_t kMostBetween = 64;  // operations from the first kernel to the last

template <typename Visit>  // void(const Inst&)
void ForEachAccess(const ir::Operation& operation, const Visit& visit) {
  ForEachInst(operation, [&](const Inst& inst) {
    if (inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore) visit(inst);
  });
}

const Kernel& KernelAt(const Module& module, size_t operation) {
  return std::get<Kernel>(module.operations[operation]);
}

// Whether it stores only what a tile of it may, temporary buffers and outputs, and reads nothing
// that was laid out for its own loops.
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

// Adds what stands between the kernels and loads what they store. Whether all may then run where
// the last one stands.
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

// Finds the loops of several kernels that stand for each other in what these hand on.
class LoopClasses {
 public:
  // `sums`: with those that kernels sum over.
  LoopClasses(const Module& module, const std::vector<size_t>& operations, bool sums = false)
      : module_(module), operations_(operations) {
    for (const size_t i : operations_) {
      for (IntExpr var : KernelAt(module_, i).outer) class_of_[var] = var;
      const IntExpr sum = sums ? SumLoop(KernelAt(module_, i)) : IntExpr();
      if (sum) class_of_[sum] = sum;
    }
    for (const BufferId buffer : HandedOn()) AddBuffer(buffer);
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
    const std::vector<BufferId> handed_on = HandedOn();
    bool may = true;
    for (size_t p = 1; p < kernel.phases.size(); ++p) {
      may &= kernel.phases[p].inner.empty();
      for (const Inst& inst : kernel.phases[p].body) {
        may &= inst.buffer < 0 || !absl::c_linear_search(handed_on, inst.buffer);
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
  absl::flat_hash_map<IntExpr, IntExpr> class_of_;  // of outer loops; a class by one of them
  std::vector<IntExpr> tainted_;  // part of an index that is more than they, somewhere
  absl::flat_hash_set<IntExpr> bad_;
};

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

BufferUses::BufferUses(const Module& module) : loaders_(module.buffers.size()) {
  std::vector<bool> seen_elsewhere(module.buffers.size(), false);
  for (size_t i = 0; i < module.operations.size(); ++i) {
    ForEachAccess(module.operations[i], [&](const Inst& inst) {
      std::vector<size_t>& loaders = loaders_[inst.buffer];
      const bool is_new = loaders.empty() || loaders.back() != i;
      if (inst.op == ScalarOp::kLoad && is_new) loaders.push_back(i);
    });
    if (const auto* library = std::get_if<ir::Library>(&module.operations[i])) {
      const auto visit = [&](const auto& self, const ir::LibraryArgs& args) -> void {
        for (const ir::LibraryArg& arg : args) {
          if (const auto* window = std::get_if<ir::BufferWindow>(&arg.value)) {
            seen_elsewhere[window->buffer] = true;
          } else if (const auto* list = std::get_if<ir::LibraryArgs>(&arg.value)) {
            self(self, *list);
          }
        }
      };
      visit(visit, library->args);
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
  absl::c_reverse(smaller);
  return smaller;
}

ir::Repeat MakeRepeat(const Module& module, const Tileable& tileable,
                      const std::vector<int64_t>& steps) {
  ir::Repeat repeat;
  repeat.steps = steps;
  for (size_t k = 0; k < tileable.operations.size(); ++k) {
    Kernel kernel = KernelAt(module, tileable.operations[k]);
    std::vector<IntExpr> outer;
    for (size_t i = 0; i < steps.size(); ++i) {
      const IntExpr loop = tileable.loops[i][k];
      if (absl::c_linear_search(kernel.outer, loop)) outer.push_back(loop);
    }
    for (IntExpr var : kernel.outer) {
      if (!absl::c_linear_search(outer, var)) outer.push_back(var);
    }
    kernel.outer = std::move(outer);
    repeat.kernels.push_back(std::move(kernel));
  }
  repeat.name = absl::StrCat(repeat.kernels.back().name, "_tiles");
  return repeat;
}

namespace {

// Copies of `loops`, and of `insts` for them.
class Copier {
 public:
  Copier(Module& module, const std::vector<IntExpr>& loops) : ints_(*module.ints) {
    for (IntExpr var : loops) {
      copies_.push_back(ints_.NewVar(var.extent()));
      map_[var] = copies_.back();
    }
  }

  const std::vector<IntExpr>& loops() const { return copies_; }
  Inst Copy(Inst inst) {
    for (IntExpr& index : inst.indices) index = ints_.Substitute(index, map_);
    for (IntExpr& check : inst.checks) check = ints_.Substitute(check, map_);
    return inst;
  }

 private:
  ir::IntContext& ints_;
  std::vector<IntExpr> copies_;
  ir::IntContext::VarMap map_;
};

// Makes `kernel` add its sums to a new buffer; appends what makes its zeros and what takes the
// sums.
void SplitSum(Module& module, Kernel& kernel, std::vector<Kernel>& before,
              std::vector<Kernel>& after) {
  const Inst& sum = kernel.phases[0].body.back();
  ir::Buffer buffer;
  buffer.name = absl::StrCat(kernel.name, "_sums");
  buffer.dtype = sum.dtype;
  buffer.kind = BufferKind::kTile;
  for (IntExpr var : kernel.outer) buffer.sizes.push_back(var.extent());
  buffer.strides = module.ContiguousStrides(buffer.sizes);
  const BufferId sums = module.AddBuffer(buffer);
  const auto access = [&](ScalarOp op, ir::ValueId value, const std::vector<IntExpr>& at) {
    Inst inst;
    inst.op = op;
    inst.dtype = sum.dtype;
    inst.buffer = sums;
    inst.indices = at;
    if (op == ScalarOp::kLoad) inst.result = value;
    if (op == ScalarOp::kStore) inst.operands = {value};
    return inst;
  };

  Copier zeros(module, kernel.outer);
  Inst zero;
  zero.dtype = sum.dtype;
  zero.result = 0;
  Kernel make{.name = absl::StrCat(kernel.name, "_zeros"),
              .outer = zeros.loops(),
              .phases = {{{}, {zero, access(ScalarOp::kStore, 0, zeros.loops())}}},
              .origins = kernel.origins,
              .num_values = 1};
  before.push_back(std::move(make));

  Copier results(module, kernel.outer);
  Kernel take{.name = absl::StrCat(kernel.name, "_result"),
              .outer = results.loops(),
              .phases = {{}},
              .origins = kernel.origins,
              .num_values = kernel.num_values};
  take.phases[0].body.push_back(access(ScalarOp::kLoad, sum.result, results.loops()));
  for (size_t p = 1; p < kernel.phases.size(); ++p) {
    for (const Inst& inst : kernel.phases[p].body) {
      take.phases[0].body.push_back(results.Copy(inst));
    }
  }
  after.push_back(std::move(take));

  const ir::ValueId so_far = kernel.num_values++, total = kernel.num_values++;
  Inst add;
  add.op = ScalarOp::kAdd;
  add.dtype = sum.dtype;
  add.operands = {so_far, sum.result};
  add.result = total;
  std::vector<Inst> body = {access(ScalarOp::kLoad, so_far, kernel.outer), std::move(add),
                            access(ScalarOp::kStore, total, kernel.outer)};
  kernel.phases.resize(1);
  kernel.phases.push_back({{}, std::move(body)});
}

}  // namespace

void Replace(Module& module, const Tileable& tileable, ir::Repeat repeat) {
  for (const BufferId buffer : tileable.buffers) module.buffers[buffer].kind = BufferKind::kTile;
  for (const size_t i : tileable.operations) module.operations[i] = ir::Repeat();
  std::vector<Kernel> before, after;
  for (size_t k = 0; k < repeat.kernels.size(); ++k) {
    Kernel& kernel = repeat.kernels[k];
    if (!tileable.sums || absl::c_linear_search(kernel.outer, tileable.loops.back()[k])) continue;
    SplitSum(module, kernel, before, after);
  }
  repeat.before = before.size();
  repeat.after = after.size();
  absl::c_move(repeat.kernels, std::back_inserter(before));
  absl::c_move(after, std::back_inserter(before));
  repeat.kernels = std::move(before);
  module.operations[tileable.operations.back()] = std::move(repeat);
}

}  // namespace kiln::schedule
