#include "compiler/schedule/verify.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/module_text.h"
#include "compiler/schedule/bounds.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/multiples.h"
#include "compiler/schedule/nest.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule {
namespace {

using absl::StrCat;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

constexpr int kMostLanes = 1024;

class Verifier {
 public:
  Verifier(const ir::Module& module, const Tree& tree)
      : module_(module), ints_(*module.ints), tree_(tree) {}

  absl::Status Run() {
    const IntExpr one = ints_.Const(1);
    if (tree_.threads) Declare(tree_.threads, {{}, one, tree_.threads.extent(), one, {}});
    if (tree_.team < 1 || tree_.team > kMostTeam || (tree_.team & (tree_.team - 1)) != 0) {
      return Error(StrCat("a team of ", tree_.team, " threads"));
    }
    for (const ir::BufferId zeroed : tree_.zeroed) {
      if (zeroed < 0 || static_cast<size_t>(zeroed) >= module_.buffers.size()) {
        return Error("there is no such buffer to be zero");
      }
    }
    return CheckBlock(tree_.body);
  }

 private:
  struct Loop {
    const For* loop;
    size_t opened;  // how much memory was open around it
  };

  absl::Status Error(absl::string_view what) const {
    return absl::InternalError(StrCat("schedule @", tree_.name, ": ", what));
  }
  absl::Status Error(const Compute& compute, absl::string_view what) const {
    return Error(StrCat("'", Text(compute), "': ", what));
  }
  std::string Text(const Compute& compute) const {
    ir::VarNames vars;
    for (size_t i = 0; i < scope_.entries.size(); ++i) {
      vars[scope_.entries[i].var] = StrCat("v", i);
    }
    return ir::InstText(module_, ir::NameModule(module_), vars, compute.inst,
                        compute.alloc >= 0 ? StrCat("#", compute.alloc) : "");
  }

  void Declare(IntExpr var, Scope::Entry entry) {
    entry.var = var;
    in_scope_.insert(var);
    scope_.entries.push_back(entry);
  }

  absl::Status CheckExpr(IntExpr e, bool may_be_indirect = false) {
    if (!e) return Error("an expression is missing");
    absl::string_view problem;
    if (!e.is_const()) {
      ForEachLeaf(e, [&](IntExpr leaf) {
        if (leaf.kind() == ir::IntKind::kVar && !in_scope_.contains(leaf)) {
          problem = "an expression uses a variable that is not in scope";
        } else if (leaf.kind() == ir::IntKind::kIndirect && !may_be_indirect) {
          problem = "an expression outside of an instruction has an operand";
        }
      });
    }
    return problem.empty() ? absl::OkStatus() : Error(problem);
  }

  absl::Status CheckBlock(const Block& block) {
    const size_t entries = scope_.entries.size(), values = defined_.size(), open = open_.size();
    const int64_t stack = stack_bytes_;
    for (const Node& node : block) {
      KILN_RETURN_IF_ERROR(std::visit([&](const auto& n) { return Check(n); }, node.value));
    }
    while (scope_.entries.size() > entries) {
      in_scope_.erase(scope_.entries.back().var);
      scope_.entries.pop_back();
    }
    while (defined_.size() > values) {
      types_.erase(defined_.back());
      defined_.pop_back();
    }
    open_.resize(open);
    stack_bytes_ = stack;
    return absl::OkStatus();
  }

  absl::Status Check(const For& loop) {
    for (IntExpr e : {loop.begin, loop.end, loop.step}) KILN_RETURN_IF_ERROR(CheckExpr(e));
    if (!loop.var || loop.var.kind() != ir::IntKind::kVar || in_scope_.contains(loop.var)) {
      return Error("a loop has no variable of its own");
    }
    if (loop.step.range().min < 1) return Error("a loop's step may be less than 1");
    if (HasLanes(loop.binding)) {
      if (lanes_ != nullptr) return Error("a vector loop stands in another");
      if (!loop.step.is_const(1)) return Error("a vector loop has steps");
      const int threads = group_ != nullptr ? group_->width : tree_.team;
      const int lanes = loop.width / threads;  // of a thread
      if (loop.width < 2 || loop.width % threads != 0 || lanes > kMostLanes) {
        return Error(StrCat("a vector loop has ", loop.width, " lanes"));
      }
    }
    if (HasTasks(loop.binding)) {
      if (lanes_ != nullptr || serial_ > 0) return Error("a loop of tasks stands in another loop");
      if (loop.binding == Binding::kTask && !loop.begin.is_const(0)) {
        return Error("a loop of tasks does not begin at 0");
      }
    }
    const bool groups = loop.binding == Binding::kGroup;
    if (groups) {
      if (lanes_ != nullptr || group_ != nullptr) {
        return Error("a loop of groups stands in one of lanes or of groups");
      }
      if (loop.width < 1 || tree_.team % loop.width != 0) {
        return Error(StrCat("a team of ", tree_.team, " has no groups of ", loop.width));
      }
    }
    // Within its variable's range: what was built on that range would be wrong otherwise.
    if (auto outside = FindOutside(ints_, scope_, loop.begin, ints_.Sub(loop.end, loop.begin),
                                   loop.var.extent())) {
      return Error(StrCat("a loop leaves its variable's range: ", *outside));
    }
    const For* const outer_lanes = lanes_;
    if (HasLanes(loop.binding)) lanes_ = &loop;
    serial_ += loop.binding == Binding::kSerial;
    if (groups) group_ = &loop;
    if (IsParallel(loop.binding)) parallel_.push_back({&loop, open_.size()});
    const size_t entries = scope_.entries.size();
    Declare(loop.var, {{}, loop.begin, loop.end, loop.step, {}});
    multiples_.Enter(loop);
    KILN_RETURN_IF_ERROR(CheckBlock(loop.body));
    in_scope_.erase(loop.var);
    scope_.entries.resize(entries);
    if (IsParallel(loop.binding)) parallel_.pop_back();
    serial_ -= loop.binding == Binding::kSerial;
    if (groups) group_ = nullptr;
    lanes_ = outer_lanes;
    return absl::OkStatus();
  }

  absl::Status Check(const If& branch) {
    KILN_RETURN_IF_ERROR(CheckExpr(branch.less));
    KILN_RETURN_IF_ERROR(CheckExpr(branch.than));
    if (lanes_ != nullptr &&
        (DependsOn(branch.less, lanes_->var) || DependsOn(branch.than, lanes_->var))) {
      return Error("lanes would branch apart");
    }
    scope_.less.emplace_back(branch.less, branch.than);
    KILN_RETURN_IF_ERROR(CheckBlock(branch.then));
    scope_.less.back() = {branch.than, ints_.Add(branch.less, 1)};
    KILN_RETURN_IF_ERROR(CheckBlock(branch.otherwise));
    scope_.less.pop_back();
    return absl::OkStatus();
  }

  absl::Status Check(const Let& let) {
    KILN_RETURN_IF_ERROR(CheckExpr(let.value));
    if (!let.var || let.var.kind() != ir::IntKind::kVar || in_scope_.contains(let.var)) {
      return Error("a let has no variable of its own");
    }
    if (auto outside = FindOutside(ints_, scope_, let.value, ints_.Const(1), let.var.extent())) {
      return Error(StrCat("a let leaves its variable's range: ", *outside));
    }
    Declare(let.var, {{}, {}, {}, {}, let.value});
    multiples_.Enter(let);
    return absl::OkStatus();
  }

  absl::Status Check(const Open& open) {
    if (open.alloc < 0 || static_cast<size_t>(open.alloc) >= tree_.allocs.size()) {
      return Error("there is no such memory");
    }
    const Alloc& alloc = tree_.allocs[open.alloc];
    KILN_RETURN_IF_ERROR(CheckExpr(alloc.size));
    if (IsOpen(open.alloc)) return Error("memory is opened where it is open");
    const bool on_stack = alloc.space == Space::kRegister || alloc.space == Space::kL1;
    if (on_stack) {
      if (!alloc.size.is_const() || alloc.size.value() < 1) {
        return Error("memory of a task has no constant size");
      }
      const int64_t lanes = lanes_ == nullptr ? 1 : lanes_->width;
      stack_bytes_ += alloc.size.value() * DTypeSize(alloc.dtype) * lanes;
      if (stack_bytes_ > kMostStackBytes) {
        return Error(StrCat("a task's memory exceeds ", kMostStackBytes, " bytes"));
      }
    } else if (lanes_ != nullptr || (alloc.space == Space::kL2 && serial_ > 0)) {
      return Error("scratch memory is opened in a loop");
    }
    if (alloc.space == Space::kGlobal && !parallel_.empty()) {
      return Error("memory of the launch is opened in a task");
    }
    if (alloc.reduce && alloc.space != Space::kRegister)
      return Error("an accumulator is no register");
    if (alloc.cascade && alloc.reduce != ir::ReduceKind::kSum) return Error("only sums cascade");
    open_.push_back(open.alloc);
    return absl::OkStatus();
  }

  bool IsOpen(AllocId id) const { return absl::c_linear_search(open_, id); }
  // Whether several tasks may add to one element of it.
  bool IsZeroed(ir::BufferId buffer) const {
    return buffer >= 0 && absl::c_linear_search(tree_.zeroed, buffer);
  }

  // The memory behind an access: its type and how many elements it has.
  struct Memory {
    DType dtype;
    IntExpr size;
    size_t opened;  // how much was open before it
  };
  absl::StatusOr<Memory> MemoryOf(AllocId alloc, ir::BufferId buffer) {
    if (alloc >= 0) {
      const auto at = std::find(open_.begin(), open_.end(), alloc);
      if (at == open_.end()) return Error(StrCat("memory #", alloc, " is not open"));
      const Alloc& a = tree_.allocs[alloc];
      if (a.reduce) return Error("an accumulator is accessed as memory");
      return Memory{a.dtype, a.size, static_cast<size_t>(at - open_.begin())};
    }
    if (buffer < 0 || static_cast<size_t>(buffer) >= module_.buffers.size()) {
      return Error("there is no such buffer");
    }
    const ir::Buffer& b = module_.buffers[buffer];
    const IntExpr bytes = SizeBytes(ints_, b);
    return Memory{b.dtype, ints_.FloorDiv(bytes, DTypeSize(b.dtype)), 0};
  }

  absl::Status CheckOperand(const Compute& compute, ValueId id) {
    if (!types_.contains(id)) return Error(compute, StrCat("%", id, " is not in scope"));
    return absl::OkStatus();
  }

  absl::Status Check(const Compute& compute) {
    const ir::Inst& inst = compute.inst;
    const int arity = Info(inst.op).arity;
    if (inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) {
      return Error(compute, "a tree has accumulators instead");
    }
    if (arity >= 0 && inst.operands.size() != static_cast<size_t>(arity)) {
      return Error(compute, StrCat("it takes ", arity, " operands"));
    }
    for (ValueId id : inst.operands) KILN_RETURN_IF_ERROR(CheckOperand(compute, id));
    for (IntExpr index : inst.indices) KILN_RETURN_IF_ERROR(CheckExpr(index, true));
    for (IntExpr check : inst.checks) KILN_RETURN_IF_ERROR(CheckExpr(check, true));
    const bool accesses = inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore;
    if (accesses || inst.op == ScalarOp::kIndex) {
      if (inst.indices.size() != 1) return Error(compute, "it takes one index");
    }
    if (accesses) KILN_RETURN_IF_ERROR(CheckAccess(compute));
    if (compute.stream && inst.op != ScalarOp::kStore) return Error(compute, "only stores stream");
    return inst.op == ScalarOp::kStore ? absl::OkStatus() : Define(inst.result, inst.dtype);
  }

  absl::Status CheckAccess(const Compute& compute) {
    const ir::Inst& inst = compute.inst;
    KILN_ASSIGN_OR_RETURN(const Memory memory, MemoryOf(compute.alloc, inst.buffer));
    if (compute.alloc < 0 && IsZeroed(inst.buffer)) {
      return Error(compute, "tasks add to that buffer");
    }
    if (memory.dtype != inst.dtype) return Error(compute, "its type is not the memory's");
    const bool stores = inst.op == ScalarOp::kStore;
    if (stores && (inst.operands.empty() || types_[inst.operands.back()] != inst.dtype)) {
      return Error(compute, "its type is not the value's");
    }
    const auto indirect = static_cast<size_t>(NumIndirect(inst));
    bool legal = true;
    const auto check = [&](IntExpr leaf) {
      legal &= leaf.kind() != ir::IntKind::kIndirect ||
               (static_cast<size_t>(leaf.id()) < indirect &&
                types_[inst.operands[leaf.id()]] == DType::kI64);
    };
    ForEachLeaf(inst.indices[0], check);
    for (const IntExpr leaf : inst.checks) check(leaf);
    if (!legal) return Error(compute, "an indirect index has no operand of i64");
    if (!inst.has_mask && indirect == 0) {
      if (auto outside = FindOutside(ints_, scope_, inst.indices[0], ints_.Const(1), memory.size)) {
        return Error(compute, *outside);
      }
    }
    if (stores) return CheckStore(compute, memory);
    return absl::OkStatus();
  }

  // An iteration must store to another place than the others, or to memory of its own.
  absl::Status CheckStore(const Compute& compute, const Memory& memory) {
    if (NumIndirect(compute.inst) > 0) return absl::OkStatus();
    for (const Loop& loop : parallel_) {
      const bool own = compute.alloc >= 0 && memory.opened >= loop.opened;
      if (own || DependsOn(compute.inst.indices[0], loop.loop->var)) continue;
      if (loop.loop->var.extent().range().max <= 1) continue;
      return Error(compute, "each iteration of a parallel loop stores there");
    }
    return absl::OkStatus();
  }

  // Through the values of lets and the ranges of loops.
  bool DependsOn(IntExpr e, IntExpr var) const {
    if (ContainsVar(e, var)) return true;
    for (size_t i = scope_.entries.size(); i-- > 0;) {
      const Scope::Entry& entry = scope_.entries[i];
      if (entry.var == var) return false;
      if (!ContainsVar(e, entry.var)) continue;
      if (entry.value ? DependsOn(entry.value, var)
                      : entry.begin && (DependsOn(entry.begin, var) || DependsOn(entry.end, var))) {
        return true;
      }
    }
    return false;
  }

  absl::Status Define(ValueId id, DType dtype) {
    if (id < 0 || id >= tree_.num_values) return Error("a result has no legal number");
    if (!types_.emplace(id, dtype).second) return Error(StrCat("%", id, " is defined twice"));
    defined_.push_back(id);
    return absl::OkStatus();
  }

  absl::StatusOr<const Alloc*> Accumulator(AllocId id) {
    if (!IsOpen(id)) return Error("an accumulator is not open");
    const Alloc& alloc = tree_.allocs[id];
    if (!alloc.reduce) return Error("memory is used as an accumulator");
    return &alloc;
  }

  absl::Status Check(const Update& update) {
    KILN_ASSIGN_OR_RETURN(const Alloc* alloc, Accumulator(update.alloc));
    KILN_RETURN_IF_ERROR(CheckExpr(update.index));
    const auto type = types_.find(update.value);
    if (type == types_.end()) return Error(StrCat("%", update.value, " is not in scope"));
    if (type->second != alloc->dtype)
      return Error("an accumulator has another type than its value");
    if (alloc->cascade) return Error("a cascade takes blocks only");
    const bool numbered = IsArg(*alloc->reduce);
    if (numbered != static_cast<bool>(update.number)) {
      return Error("places belong to argmax and argmin");
    }
    if (alloc->narrow && update.order == UpdateOrder::kAny) return Error("an update has no order");
    if (numbered) KILN_RETURN_IF_ERROR(CheckExpr(update.number));
    const auto opened = static_cast<size_t>(absl::c_find(open_, update.alloc) - open_.begin());
    IntExpr element = ints_.Const(0);
    int64_t elements = 1;
    for (const Loop& loop : parallel_) {
      if (opened >= loop.opened) continue;
      if (!HasLanes(loop.loop->binding) || HasTasks(loop.loop->binding)) {
        return Error("tasks or groups share an accumulator");
      }
      element = ints_.Mod(loop.loop->var, loop.loop->width);
      elements = loop.loop->width;
      if (!multiples_.Is(ints_, loop.loop->begin, elements)) {
        return Error("lanes with accumulators do not begin at a multiple of their number");
      }
    }
    if (update.index != element || !alloc->size.is_const(elements)) {
      return Error("an accumulator has not one element for each lane");
    }
    return absl::OkStatus();
  }

  absl::Status Check(const Fold& fold) {
    KILN_ASSIGN_OR_RETURN(const Alloc* into, Accumulator(fold.into));
    KILN_ASSIGN_OR_RETURN(const Alloc* from, Accumulator(fold.from));
    if (into->dtype != from->dtype || into->size != from->size || into->reduce != from->reduce) {
      return Error("accumulators that are folded differ");
    }
    return absl::OkStatus();
  }

  absl::Status Check(const Combine& combine) {
    KILN_ASSIGN_OR_RETURN(const Alloc* alloc, Accumulator(combine.from));
    if (combine.best && !IsArg(*alloc->reduce)) return Error("only places are of a best value");
    const bool numbered = IsArg(*alloc->reduce) && !combine.best;
    if (combine.dtype != (numbered ? DType::kI64 : alloc->dtype)) {
      return Error("an accumulator's value has another type");
    }
    return Define(combine.result, combine.dtype);
  }

  absl::Status Check(const Prefetch& prefetch) {
    if (prefetch.buffer < 0 || static_cast<size_t>(prefetch.buffer) >= module_.buffers.size()) {
      return Error("there is no such buffer");
    }
    return CheckExpr(prefetch.index);
  }

  absl::Status Check(const Micro& micro) {
    const MicroInfo& info = Info(micro.kind);
    if (micro.constants.size() != info.constants || micro.sizes.size() != info.sizes ||
        micro.windows.size() != NumWindows(micro.kind, micro.constants)) {
      return Error(StrCat("micro ", info.name, " has other arguments"));
    }
    if (lanes_ != nullptr) return Error(StrCat("micro ", info.name, " stands in a vector loop"));
    for (IntExpr size : micro.sizes) KILN_RETURN_IF_ERROR(CheckExpr(size));
    const bool is_packed =
        micro.kind == MicroKind::kMultiplyRows && micro.constants[kRowsInner] != 0;
    if (is_packed && micro.constants[kRowsGroup] < 1) {
      return Error(StrCat("micro ", info.name, " has groups of none"));
    }
    if (micro.kind == MicroKind::kWinogradImage && micro.sizes[8].range().max > kMostTileColumns) {
      return Error(StrCat("micro ", info.name, " has too many tiles side by side"));
    }
    const std::vector<IntExpr> reach = Reach(ints_, micro);
    std::optional<DType> dtype;
    for (size_t i = 0; i < micro.windows.size(); ++i) {
      const Window& window = micro.windows[i];
      KILN_RETURN_IF_ERROR(CheckExpr(window.index));
      KILN_ASSIGN_OR_RETURN(const Memory memory, MemoryOf(window.alloc, window.buffer));
      const bool is_zeroed = window.alloc < 0 && IsZeroed(window.buffer);
      if (is_zeroed != AddsTo(micro.kind, i)) {
        return Error(StrCat("micro ", info.name, ", window ", i, ": ",
                            is_zeroed ? "tasks add to that buffer" : "that buffer is not zeroed"));
      }
      if (micro.kind == MicroKind::kMultiplyPairs) {
        if (memory.dtype != (i == 0 ? DType::kF32 : DType::kBF16)) {
          return Error(StrCat("micro ", info.name, " takes bf16 and gives f32"));
        }
      } else if (IsOfManyQueries(micro.kind)) {
        const bool has_mask = micro.constants[kAttendMask] != 0;
        const bool is_mask = has_mask && i == info.windows;
        const bool is_sums = i == info.windows + (has_mask ? 1 : 0);
        if (is_sums ? memory.dtype != DType::kF32
                    : !is_mask && ((dtype && *dtype != memory.dtype) ||
                                   (memory.dtype != DType::kBF16 && memory.dtype != DType::kF16))) {
          return Error(StrCat("micro ", info.name, " takes bf16 or f16, and gives sums in f32"));
        }
        if (is_mask && (memory.dtype == DType::kBool) != (micro.constants[kAttendMask] == 1)) {
          return Error(StrCat("micro ", info.name, " takes a mask of another type"));
        }
      } else if (micro.kind == MicroKind::kAttendGradients) {
        using Of = OfGradients;
        const Window& first = micro.windows[Of::kKeys];
        KILN_ASSIGN_OR_RETURN(const Memory keys, MemoryOf(first.alloc, first.buffer));
        const bool is_wide = i == Of::kQueries || i == Of::kLogSums || i == Of::kDots;
        if (is_wide ? memory.dtype != DType::kF32
                    : !IsHalf(memory.dtype) || memory.dtype != keys.dtype) {
          return Error(StrCat("micro ", info.name, " takes bf16 or f16, and sums in f32"));
        }
      } else if (IsOfWinograd(micro.kind) && memory.dtype != DType::kF32) {
        return Error(StrCat("micro ", info.name, " takes f32"));
      } else if (IsOfTensorCores(micro.kind) && i < 2) {
        if (i == 0 ? memory.dtype != DType::kF32 : !IsHalf(memory.dtype)) {
          return Error(StrCat("micro ", info.name, " takes bf16 or f16 and gives f32"));
        }
      } else if (IsOfFewQueries(micro.kind) && i == 4) {
        if (memory.dtype != DType::kBool && memory.dtype != DType::kF32 && !IsHalf(memory.dtype)) {
          return Error(StrCat("micro ", info.name, " takes a mask of bool, f32 or 16 bits"));
        }
      } else if (IsOfFewQueries(micro.kind) && !IsHalf(memory.dtype)) {
        return Error(StrCat("micro ", info.name, " takes bf16 or f16"));
      } else if (micro.kind == MicroKind::kMultiplyRows && i == 2 &&
                 (is_packed || memory.dtype == DType::kI8)) {
        if (is_packed && memory.dtype != DType::kI32) {
          return Error(StrCat("micro ", info.name, " takes words of i32"));
        }
      } else if ((micro.kind == MicroKind::kSort || micro.kind == MicroKind::kSelect) &&
                 memory.dtype != DType::kI64) {
        return Error(StrCat("micro ", info.name, " takes i64"));
      } else if (micro.kind == MicroKind::kMultiply && i == 2 && dtype == DType::kF32 &&
                 IsHalf(memory.dtype)) {
        // Widened where it is multiplied.
      } else if (dtype && *dtype != memory.dtype) {
        return Error(StrCat("micro ", info.name, " takes one type"));
      }
      if (!is_packed || i != 2) dtype = memory.dtype;
      if (auto outside = FindOutside(ints_, scope_, window.index, reach[i], memory.size)) {
        return Error(StrCat("micro ", info.name, ", window ", i, ": ", *outside));
      }
    }
    return absl::OkStatus();
  }

  const ir::Module& module_;
  ir::IntContext& ints_;
  const Tree& tree_;
  Scope scope_;
  Multiples multiples_;
  absl::flat_hash_set<IntExpr> in_scope_;
  absl::flat_hash_map<ValueId, DType> types_;  // of values in scope
  std::vector<ValueId> defined_;               // the same, in order
  std::vector<AllocId> open_;
  std::vector<Loop> parallel_;  // around the node
  const For* lanes_ = nullptr;  // the vector loop around it
  int serial_ = 0;              // loops around it
  const For* group_ = nullptr;  // the loop of groups around it
  int64_t stack_bytes_ = 0;
};

}  // namespace

absl::Status Verify(const ir::Module& module, const Tree& tree) {
  return Verifier(module, tree).Run();
}

}  // namespace kiln::schedule
