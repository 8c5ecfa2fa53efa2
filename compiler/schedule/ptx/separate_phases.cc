#include "compiler/schedule/ptx/separate_phases.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/ptx/late_sums.h"
#include "compiler/schedule/ptx/split_reductions.h"
#include "compiler/schedule/ptx/team_plan.h"

namespace kiln::schedule::ptx {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

// Of columns, which a thread takes row by row: rows that take longer than a few launches do, and by
// how much the device must lack threads.
constexpr int64_t kLeastRows = 256, kLeastMissing = 8;
// Of rows, which teams of threads share.
constexpr int64_t kLeastElements = int64_t{1} << 22, kLeastOfThread = 32;

bool HasLoops(const Phase& phase) {
  return !phase.inner.empty();
}

bool Reduces(const Phase& phase) {
  return absl::c_any_of(phase.body, [](const Inst& i) { return i.op == ScalarOp::kReduce; });
}

// Phases [begin, end) that become a kernel.
struct Group {
  size_t begin = 0, end = 0;
};

// Each phase with loops begins one, but for sums that need no other pass than those before; one
// that reduces nothing is alone.
std::vector<Group> GroupsOf(const Kernel& kernel) {
  std::vector<Group> groups;
  bool is_done = true;
  const auto goes_on = [&](size_t p) {
    return !groups.empty() && OnlyReduces(kernel.phases[groups.back().begin]) &&
           FindLateSums(kernel, groups.back().begin, p);
  };
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    const Phase& phase = kernel.phases[p];
    if (is_done || (HasLoops(phase) && !goes_on(p))) groups.push_back({p, p});
    ++groups.back().end;
    is_done = HasLoops(phase) && !Reduces(phase);
  }
  return groups;
}

bool Stores(const Kernel& kernel) {
  bool stores = false;
  ir::ForEachInst(kernel, [&](const Inst& inst) { stores |= inst.op == ScalarOp::kStore; });
  return stores;
}

class Separator {
 public:
  Separator(ir::Module& module, const DeviceInfo& device)
      : module_(module), ints_(*module.ints), device_(device) {}

  // The kernels that do what `kernel` does; none where it stays as it is.
  std::vector<Kernel> Run(const Kernel& kernel) {
    if (!MaySeparate(kernel) || !LacksThreads(kernel)) return {};
    kernel_ = &kernel;
    std::vector<Kernel> kernels;
    const std::vector<Group> groups = GroupsOf(kernel);
    if (groups.size() == 1) return {};
    Define(groups);
    for (const Group& group : groups) {
      Kernel part = MakeKernel(group);
      if (Stores(part)) kernels.push_back(std::move(part));  // else others make its values again
    }
    for (size_t i = 0; i < kernels.size(); ++i) {
      kernels[i].name =
          absl::StrCat(kernel.name, i + 1 < kernels.size() ? absl::StrCat("_", i) : "");
      kernels[i].origins = kernel.origins;
    }
    return kernels;
  }

 private:
  // Where a value comes from, and what holds it for other kernels.
  struct Definition {
    size_t phase = 0;
    const Inst* inst = nullptr;
    const Inst* store = nullptr;  // of the value itself, at the outer point, by the same group
  };

  static bool MaySeparate(const Kernel& kernel) {
    if (kernel.schedule != ir::Schedule::kLoops) return false;
    const auto is_plain = [](const Inst& inst) {
      return !inst.accumulates && inst.op != ScalarOp::kSort;
    };
    int loops = 0;
    for (const Phase& phase : kernel.phases) {
      if (ir::IsOrdered(phase) || !absl::c_all_of(phase.body, is_plain)) return false;
      loops += HasLoops(phase) ? 1 : 0;
    }
    return loops > 1;
  }

  bool LacksThreads(const Kernel& kernel) {
    // What is made once for many calls needs no haste.
    if (ir::StoresPrepared(module_, {&kernel, 1})) return false;
    absl::StatusOr<Nest> nest = BuildNest(module_, kernel, /*collapse=*/true);
    if (!nest.ok()) return false;
    const TeamPlan plan = PlanTeam(ints_, *nest, device_);
    const int64_t points = PointsHint(ints_, kernel.outer), units = ComputeUnits(device_);
    int64_t length = 0;
    for (const Phase& phase : kernel.phases) {
      length = std::max(length, PointsHint(ints_, phase.inner));
    }
    if (plan.outer) {
      const int64_t threads = std::max<int64_t>(1, points / plan.most_lanes);
      return length >= kLeastRows && units * kThreadsOfColumns / threads >= kLeastMissing;
    }
    const int64_t threads = std::max<int64_t>(1, points) * plan.team;
    return length >= kLeastOfThread * plan.team && units * kThreadsOfRows / threads >= 2 &&
           length >= kLeastElements / std::max<int64_t>(1, points);
  }

  void Define(const std::vector<Group>& groups) {
    definitions_.assign(kernel_->num_values, {});
    stored_.clear();
    held_.clear();
    for (size_t p = 0; p < kernel_->phases.size(); ++p) {
      for (const Inst& inst : kernel_->phases[p].body) {
        if (inst.result != ir::kNoValue) definitions_[inst.result] = {p, &inst, nullptr};
        if (inst.op == ScalarOp::kStore) ++stored_[inst.buffer];
      }
    }
    for (const Group& group : groups) {
      for (size_t p = group.begin; p < group.end; ++p) {
        const Phase& phase = kernel_->phases[p];
        if (HasLoops(phase)) continue;
        for (const Inst& inst : phase.body) {
          const bool is_alone = inst.op == ScalarOp::kStore && stored_[inst.buffer] == 1;
          if (!is_alone || NumIndirect(inst) > 0) continue;
          Definition& definition = definitions_[inst.operands.back()];
          if (definition.phase >= group.begin) definition.store = &inst;
        }
      }
    }
  }

  // Whether a later kernel makes the value again: of no loop, and worth no buffer.
  bool IsMadeAgain(ValueId value, bool with_loads = true) const {
    const Inst& inst = *definitions_[value].inst;
    if (HasLoops(kernel_->phases[definitions_[value].phase])) return false;
    if (inst.op == ScalarOp::kLoad) {
      return with_loads && inst.operands.empty() && !stored_.contains(inst.buffer);
    }
    if (inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) return false;
    return absl::c_all_of(inst.operands,
                          [&](ValueId operand) { return IsMadeAgain(operand, false); });
  }

  // Copies phases into a kernel with loops of its own.
  class Copier {
   public:
    Copier(Separator& all, const Group& group) : all_(all), group_(group) {
      kernel_.num_values = all.kernel_->num_values;
      for (IntExpr var : all.kernel_->outer) {
        kernel_.outer.push_back(all.ints_.NewVar(var.extent()));
        vars_[var] = kernel_.outer.back();
      }
    }

    void Add(const Phase& from) {
      Phase& to = kernel_.phases.emplace_back();
      to.inner = from.inner;
      again_.clear();
      for (const Inst& inst : from.body) to.body.push_back(Copy(inst, to.body));
    }

    Kernel& kernel() { return kernel_; }
    IntExpr Here(IntExpr e) const { return all_.ints_.Substitute(e, vars_); }

   private:
    Inst Copy(Inst inst, std::vector<Inst>& body) {
      for (IntExpr& e : inst.indices) e = Here(e);
      for (IntExpr& e : inst.checks) e = Here(e);
      for (ValueId& operand : inst.operands) operand = Taken(operand, body);
      return inst;
    }

    // The value where a phase of this kernel takes it: what an earlier one made is loaded.
    ValueId Taken(ValueId value, std::vector<Inst>& body) {
      const Definition& definition = all_.definitions_[value];
      if (definition.phase >= group_.begin) return value;
      if (const auto found = again_.find(value); found != again_.end()) return found->second;
      Inst made;
      if (all_.IsMadeAgain(value)) {
        made = Copy(*definition.inst, body);
      } else {
        const auto [buffer, indices] = all_.HeldBy(value);
        made.op = ScalarOp::kLoad;
        made.dtype = definition.inst->dtype;
        made.buffer = buffer;
        for (IntExpr index : indices) made.indices.push_back(Here(index));
      }
      made.result = again_[value] = kernel_.num_values++;
      body.push_back(std::move(made));
      return again_[value];
    }

    Separator& all_;
    const Group group_;
    Kernel kernel_;
    IntContext::VarMap vars_;
    absl::flat_hash_map<ValueId, ValueId> again_;  // in the phase that is being copied
  };

  // Where the value of an outer point lies in memory.
  std::pair<ir::BufferId, std::vector<IntExpr>> HeldBy(ValueId value) {
    if (const Inst* store = definitions_[value].store; store != nullptr) {
      return {store->buffer, store->indices};
    }
    const auto [held, is_new] = held_.try_emplace(value, -1);
    if (is_new) {
      ir::Buffer buffer;
      buffer.name = absl::StrCat(kernel_->name, "_value", value);
      buffer.dtype = definitions_[value].inst->dtype;
      for (IntExpr var : kernel_->outer) buffer.sizes.push_back(var.extent());
      buffer.strides = module_.ContiguousStrides(buffer.sizes);
      held->second = module_.AddBuffer(std::move(buffer));
    }
    return {held->second, kernel_->outer};
  }

  Kernel MakeKernel(const Group& group) {
    Copier copier(*this, group);
    const Phase& first = kernel_->phases[group.begin];
    for (size_t p = group.begin; p < group.end; ++p) copier.Add(kernel_->phases[p]);
    Kernel& kernel = copier.kernel();
    if (group.end == group.begin + 1 && HasLoops(first) && !Reduces(first)) TakeLoopsOut(kernel);
    // What later kernels take of this one's values.
    Phase hand_over;
    for (const ValueId value : TakenLater(group)) {
      const auto [buffer, indices] = HeldBy(value);
      if (definitions_[value].store != nullptr) continue;
      Inst store;
      store.op = ScalarOp::kStore;
      store.dtype = definitions_[value].inst->dtype;
      store.operands = {value};
      store.buffer = buffer;
      for (IntExpr index : indices) store.indices.push_back(copier.Here(index));
      hand_over.body.push_back(std::move(store));
    }
    if (!hand_over.body.empty()) kernel.phases.push_back(std::move(hand_over));
    return std::move(kernel);
  }

  // Values of the group's phases that phases after it take from memory, in order.
  std::vector<ValueId> TakenLater(const Group& group) const {
    std::vector<ValueId> taken;
    const auto take = [&](const auto& self, ValueId value) -> void {
      if (definitions_[value].phase >= group.end) return;
      if (IsMadeAgain(value)) {
        for (const ValueId operand : definitions_[value].inst->operands) self(self, operand);
      } else if (definitions_[value].phase >= group.begin) {
        taken.push_back(value);
      }
    };
    for (size_t p = group.end; p < kernel_->phases.size(); ++p) {
      for (const Inst& inst : kernel_->phases[p].body) {
        for (const ValueId operand : inst.operands) {
          if (definitions_[operand].phase < p) take(take, operand);
        }
      }
    }
    absl::c_sort(taken);
    taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
    return taken;
  }

  // All loops of a kernel of one phase become outer ones, in the order of what it stores.
  void TakeLoopsOut(Kernel& kernel) {
    Phase& phase = kernel.phases[0];
    std::vector<IntExpr> loops = std::exchange(phase.inner, {});
    loops.insert(loops.end(), kernel.outer.begin(), kernel.outer.end());
    const auto store =
        absl::c_find_if(phase.body, [](const Inst& i) { return i.op == ScalarOp::kStore; });
    if (store != phase.body.end()) {
      const IntExpr place = ir::LinearIndex(ints_, module_.buffers[store->buffer], store->indices);
      const auto step = [&](IntExpr var) -> int64_t {
        const IntExpr along = ints_.CoefficientOf(place, var);
        return along && along.is_const() ? along.value() : 0;
      };
      std::stable_sort(loops.begin(), loops.end(),
                       [&](IntExpr a, IntExpr b) { return step(a) > step(b); });
    }
    kernel.outer = std::move(loops);
  }

  ir::Module& module_;
  IntContext& ints_;
  const DeviceInfo& device_;
  const Kernel* kernel_ = nullptr;
  std::vector<Definition> definitions_;              // by value
  absl::flat_hash_map<ir::BufferId, int> stored_;    // how often, by the kernel
  absl::flat_hash_map<ValueId, ir::BufferId> held_;  // by value: what was made to hold it
};

}  // namespace

void SeparatePhases(ir::Module& module, const DeviceInfo& device) {
  Separator separator(module, device);
  std::vector<ir::Operation> operations;
  for (ir::Operation& operation : module.operations) {
    std::vector<Kernel> kernels;
    if (const auto* kernel = std::get_if<Kernel>(&operation)) kernels = separator.Run(*kernel);
    for (Kernel& kernel : kernels) operations.emplace_back(std::move(kernel));
    if (kernels.empty()) operations.push_back(std::move(operation));
  }
  module.operations = std::move(operations);
}

}  // namespace kiln::schedule::ptx
