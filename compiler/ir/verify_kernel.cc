// Kernels: loops, phases, instructions.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

constexpr int kMaxValues = 1 << 24;  // bounds what a broken kernel makes us allocate

}  // namespace

KernelVerifier::KernelVerifier(const Module& module)
    : module_(module), writer_(module.buffers.size(), -1) {}

absl::Status KernelVerifier::Error(absl::string_view what) const {
  return absl::InternalError(absl::StrCat("kernel @", kernel_->name, ": ", what));
}

absl::Status KernelVerifier::Error(const Inst& inst, absl::string_view what) const {
  return Error(absl::StrCat("'", Print(module_, *kernel_, inst), "': ", what));
}

bool KernelVerifier::IsWritten(BufferId buffer) const {
  const Buffer& b = module_.buffers[buffer];
  if (b.kind == BufferKind::kInput || b.kind == BufferKind::kConstant) return true;
  if (writer_[buffer] >= 0) return true;
  // Nothing has to be stored where there is nothing.
  return std::any_of(b.sizes.begin(), b.sizes.end(), [](IntExpr s) { return s.is_const(0); });
}

absl::Status KernelVerifier::Check(const Kernel& kernel, int operation) {
  kernel_ = &kernel;
  operation_ = operation;
  stores_.clear();
  loop_depth_.clear();
  has_empty_loop_ = false;
  if (kernel.num_values < 0 || kernel.num_values > kMaxValues) {
    return Error("has an impossible number of values");
  }
  if (values_.size() < static_cast<size_t>(kernel.num_values)) values_.resize(kernel.num_values);
  KILN_RETURN_IF_ERROR(CheckLoops(kernel.outer, "outer"));
  for (size_t i = 0; i < kernel.phases.size(); ++i) {
    KILN_RETURN_IF_ERROR(CheckPhase(static_cast<int>(i)));
  }
  KILN_RETURN_IF_ERROR(CheckPrepared());
  return kernel.schedule == Schedule::kContraction ? CheckContraction() : absl::OkStatus();
}

absl::Status KernelVerifier::CheckPrepared() {
  const auto is_prepared = [&](const auto& stored) {
    return module_.buffers[stored.first].kind == BufferKind::kPrepared;
  };
  const size_t prepared = std::count_if(stores_.begin(), stores_.end(), is_prepared);
  if (prepared == 0) return absl::OkStatus();
  if (operation_ != prepared_++) {
    return Error("it makes a prepared buffer after an operation that runs in every call");
  }
  if (prepared != stores_.size()) return Error("it stores prepared buffers and others");
  if (!IsFixed(*kernel_, [this](BufferId b) { return IsFixed(module_.buffers[b]); })) {
    return Error("it makes a prepared buffer of what changes from call to call");
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckLoops(const std::vector<IntExpr>& loops, absl::string_view what) {
  for (IntExpr var : loops) {
    if (!var || var.kind() != IntKind::kVar) {
      return Error(absl::StrCat("an ", what, " loop has no loop variable"));
    }
    if (!loop_depth_.try_emplace(var, 0).second) {
      return Error("two loops share a variable");
    }
    if (!IsSizeExpr(var.extent())) {
      return Error(absl::StrCat("the extent of an ", what, " loop is no size"));
    }
    if (var.extent().range().max <= 0) has_empty_loop_ = true;
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckPhase(int number) {
  phase_ = number;
  const Phase& phase = kernel_->phases[number];
  const bool outer_is_empty = has_empty_loop_;
  KILN_RETURN_IF_ERROR(CheckLoops(phase.inner, "inner"));
  for (const Inst& inst : phase.body) KILN_RETURN_IF_ERROR(CheckInst(inst));
  for (IntExpr var : phase.inner) loop_depth_.erase(var);
  has_empty_loop_ = outer_is_empty;
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckInst(const Inst& inst) {
  if (IsOpaque(inst.dtype)) {
    return Error(inst, absl::StrCat(DTypeName(inst.dtype), " is for library steps only"));
  }
  KILN_RETURN_IF_ERROR(CheckOperands(inst));
  switch (inst.op) {
    case ScalarOp::kConst:
      break;
    case ScalarOp::kIndex:
      if (inst.dtype != DType::kI64) return Error(inst, "an index is i64");
      if (inst.indices.size() != 1) return Error(inst, "it takes one index expression");
      KILN_RETURN_IF_ERROR(CheckLeaves(inst, inst.indices[0], 0));
      break;
    case ScalarOp::kLoad:
      KILN_RETURN_IF_ERROR(CheckLoad(inst));
      break;
    case ScalarOp::kStore:
      return CheckStore(inst);
    case ScalarOp::kReduce:
      KILN_RETURN_IF_ERROR(CheckReduce(inst));
      break;
    case ScalarOp::kScan:
      KILN_RETURN_IF_ERROR(CheckScan(inst));
      break;
    case ScalarOp::kSort:
      KILN_RETURN_IF_ERROR(CheckSort(inst));
      break;
    default:
      KILN_RETURN_IF_ERROR(CheckTypes(inst));
  }
  return Define(inst);
}

absl::Status KernelVerifier::CheckOperands(const Inst& inst) {
  const int arity = Info(inst.op).arity;
  if (arity >= 0 && inst.operands.size() != static_cast<size_t>(arity)) {
    return Error(inst, absl::StrCat("it takes ", arity, " operands, not ", inst.operands.size()));
  }
  for (ValueId id : inst.operands) KILN_RETURN_IF_ERROR(CheckOperandVisible(inst, id));
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckOperandVisible(const Inst& inst, ValueId id) {
  if (id < 0 || id >= kernel_->num_values || values_[id].kernel != operation_) {
    return Error(inst, absl::StrCat("%", id, " is not defined before it"));
  }
  const Value& value = values_[id];
  if (value.phase == phase_) {
    if (!value.is_reduction) return absl::OkStatus();
    return Error(inst, absl::StrCat("the reduction %", id, " has its value in later phases only"));
  }
  if (value.is_reduction || !value.from_loop) return absl::OkStatus();
  return Error(inst, absl::StrCat("%", id, " belongs to the inner loops of another phase"));
}

absl::Status KernelVerifier::CheckTypes(const Inst& inst) {
  const ScalarOpInfo& info = Info(inst.op);
  const DType first = TypeOf(inst.operands[info.rule == TypeRule::kSelect ? 1 : 0]);
  if (!Takes(inst.op, first)) {
    return Error(inst, absl::StrCat("it does not take ", std::string(DTypeName(first))));
  }
  const size_t skipped = info.rule == TypeRule::kSelect ? 1 : 0;
  for (size_t i = skipped; i < inst.operands.size(); ++i) {
    if (TypeOf(inst.operands[i]) != first) return Error(inst, "its operands differ in type");
  }
  if (inst.op == ScalarOp::kPhilox && first != DType::kI64) return Error(inst, "it takes i64");
  switch (info.rule) {
    case TypeRule::kSelect:
      if (TypeOf(inst.operands[0]) != DType::kBool) {
        return Error(inst, "its condition is no bool");
      }
      [[fallthrough]];
    case TypeRule::kSame:
      if (inst.dtype != first) return Error(inst, "its result differs in type from its operands");
      break;
    case TypeRule::kCompare:
    case TypeRule::kPredicate:
      if (inst.dtype != DType::kBool) return Error(inst, "its result is bool");
      break;
    case TypeRule::kCast:
      if (inst.op == ScalarOp::kBitcast && DTypeSize(inst.dtype) != DTypeSize(first)) {
        return Error(inst, "a bitcast keeps the size of the type");
      }
      break;
    case TypeRule::kNone:
      break;
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckReduce(const Inst& inst) {
  if (kernel_->phases[phase_].inner.empty()) {
    return Error(inst, "a reduction needs a phase with inner loops");
  }
  const DType operand = TypeOf(inst.operands[0]);
  const bool logical = inst.reduce_kind == ReduceKind::kAny || inst.reduce_kind == ReduceKind::kAll;
  if (logical != (operand == DType::kBool)) {
    return Error(inst, logical ? "it reduces bools" : "it reduces numbers");
  }
  if (inst.reduce_kind == ReduceKind::kLogAddExp && !IsFloat(operand)) {
    return Error(inst, "it reduces floats");
  }
  const DType result = IsArg(inst.reduce_kind) ? DType::kI64 : operand;
  if (inst.dtype != result) {
    return Error(inst, absl::StrCat("its result is ", std::string(DTypeName(result))));
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckScan(const Inst& inst) {
  if (kernel_->phases[phase_].inner.empty()) {
    return Error(inst, "a scan needs a phase with inner loops");
  }
  if (kernel_->schedule != Schedule::kLoops) return Error(inst, "only plain loops scan");
  KILN_RETURN_IF_ERROR(CheckFold(inst));
  if (inst.dtype != TypeOf(inst.operands[0])) {
    return Error(inst, "its result differs in type from its operand");
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckSort(const Inst& inst) {
  const std::vector<Phase>& phases = kernel_->phases;
  const auto is_sort = [](const Inst& other) { return other.op == ScalarOp::kSort; };
  if (kernel_->schedule != Schedule::kSorting || phases.size() != 1 ||
      phases[0].inner.size() != 1 || phases[0].inner[0].extent().is_const(1) ||
      absl::c_count_if(phases[0].body, is_sort) != 1) {
    return Error(inst, "it sorts the one loop of the one phase of a sorting kernel");
  }
  if (inst.dtype != DType::kI64 || TypeOf(inst.operands[0]) != DType::kI64) {
    return Error(inst, "it sorts i64");
  }
  return inst.immediate_int >= 0 ? absl::OkStatus() : Error(inst, "it gives less than nothing");
}

absl::Status KernelVerifier::CheckFold(const Inst& inst) {
  const bool needs_float = inst.reduce_kind == ReduceKind::kLogAddExp;
  if (!FoldsNumbers(inst.reduce_kind) || !(IsFloat(inst.dtype) || IsInteger(inst.dtype)) ||
      (needs_float && !IsFloat(inst.dtype))) {
    return Error(inst, "it does not fold such values");
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckAccess(const Inst& inst, size_t other_operands) {
  if (inst.buffer < 0 || static_cast<size_t>(inst.buffer) >= module_.buffers.size()) {
    return Error(inst, "there is no such buffer");
  }
  if (inst.operands.size() < other_operands) return Error(inst, "it lacks an operand");
  const size_t indirect = inst.operands.size() - other_operands;
  for (size_t i = 0; i < indirect; ++i) {
    if (TypeOf(inst.operands[i]) != DType::kI64) {
      return Error(inst, "the operand of an indirect index is i64");
    }
  }
  if (inst.dtype != module_.buffers[inst.buffer].dtype) {
    return Error(inst, "its type is not the buffer's");
  }
  return CheckIndices(inst, indirect);
}

absl::Status KernelVerifier::CheckIndices(const Inst& inst, size_t indirect_operands) {
  const Buffer& buffer = module_.buffers[inst.buffer];
  if (inst.indices.size() != buffer.sizes.size()) {
    return Error(inst, absl::StrCat("@", buffer.name, " has ", buffer.sizes.size(),
                                    " dimensions, not ", inst.indices.size()));
  }
  for (const IntExpr check : inst.checks) {
    KILN_RETURN_IF_ERROR(CheckLeaves(inst, check, indirect_operands));
    if (check.kind() != IntKind::kIndirect) return Error(inst, "only operands are checked");
  }
  for (size_t i = 0; i < inst.indices.size(); ++i) {
    KILN_RETURN_IF_ERROR(CheckLeaves(inst, inst.indices[i], indirect_operands));
    if (inst.has_mask || has_empty_loop_) continue;
    const std::optional<std::string> outside =
        FindIndexOutside(*module_.ints, inst.indices[i], buffer.sizes[i]);
    if (outside) return Error(inst, absl::StrCat("index ", i, " ", *outside));
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckLeaves(const Inst& inst, IntExpr index,
                                         size_t indirect_operands) {
  if (!index) return Error(inst, "an index is missing");
  absl::string_view problem;
  const auto check = [&](IntExpr leaf) {
    if (leaf.kind() == IntKind::kVar && !loop_depth_.contains(leaf)) {
      problem = "an index uses a loop variable that is not in scope";
    } else if (leaf.kind() == IntKind::kIndirect) {
      if (static_cast<size_t>(leaf.id()) >= indirect_operands) {
        problem = "an indirect index has no operand";
      } else if (!IsSizeExpr(leaf.extent())) {
        problem = "the bound of an indirect index is no size";
      }
    }
  };
  if (index.kind() == IntKind::kVar) {
    check(index);
  } else if (!index.is_const()) {
    ForEachLeaf(index, check);
  }
  return problem.empty() ? absl::OkStatus() : Error(inst, problem);
}

absl::Status KernelVerifier::CheckLoad(const Inst& inst) {
  KILN_RETURN_IF_ERROR(CheckAccess(inst, inst.has_mask ? 1 : 0));
  if (inst.has_mask && TypeOf(inst.operands.back()) != DType::kBool) {
    return Error(inst, "its mask is no bool");
  }
  if (!IsWritten(inst.buffer)) return Error(inst, "nothing has been stored in the buffer yet");
  if (writer_[inst.buffer] == operation_) return CheckLoadOfOwnStore(inst);
  const bool is_input = module_.buffers[inst.buffer].kind == BufferKind::kInput;
  if (is_input && writer_[inst.buffer] >= 0) {
    return Error(inst, "an earlier operation has overwritten the input");
  }
  return absl::OkStatus();
}

// Outer points run in any order, so a point may read only what it stored itself: the dimensions
// that tell the stores of outer points apart must have the same index in the load.
absl::Status KernelVerifier::CheckLoadOfOwnStore(const Inst& inst) {
  IntContext& ints = *module_.ints;
  IntContext::VarMap at_zero;
  for (const Phase& phase : kernel_->phases) {
    for (IntExpr var : phase.inner) at_zero[var] = ints.Const(0);
  }
  const auto outer_part = [&](IntExpr e) { return ints.Substitute(e, at_zero); };
  for (const StoredAt& store : stores_[inst.buffer]) {
    if (store.phase >= phase_) {
      return Error(inst, "the buffer is stored in this phase; only later phases may load it");
    }
    for (size_t i = 0; i < inst.indices.size(); ++i) {
      const IntExpr stored = outer_part(store.inst->indices[i]);
      const IntExpr loaded = outer_part(inst.indices[i]);
      const bool indirect =
          ContainsKind(stored, IntKind::kIndirect) || ContainsKind(loaded, IntKind::kIndirect);
      const bool outer = ContainsKind(stored, IntKind::kVar) || ContainsKind(loaded, IntKind::kVar);
      if (indirect || (outer && stored != loaded)) {
        return Error(inst, "it may read what another outer point of this kernel stores");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckStore(const Inst& inst) {
  KILN_RETURN_IF_ERROR(CheckAccess(inst, 1));
  if (inst.result != kNoValue) return Error(inst, "a store has no result");
  if (inst.has_mask) return Error(inst, "a store has no mask");
  const Buffer& buffer = module_.buffers[inst.buffer];
  // A store into an input is its mutation, which lowering puts after every other read of it.
  if (buffer.kind == BufferKind::kConstant || buffer.kind == BufferKind::kLibrary) {
    return Error(inst, "only temp, output and mutated input buffers are stored");
  }
  if (TypeOf(inst.operands.back()) != inst.dtype) {
    return Error(inst, "the value's type is not the buffer's");
  }
  const bool adds = buffer.kind == BufferKind::kTile && AddsUp(*kernel_);
  if (writer_[inst.buffer] >= 0 && writer_[inst.buffer] != operation_ && !adds) {
    return Error(inst, "another operation stores the buffer");
  }
  if (IsScatter(inst)) KILN_RETURN_IF_ERROR(CheckScatter(inst));
  writer_[inst.buffer] = operation_;
  stores_[inst.buffer].push_back({phase_, &inst});
  return absl::OkStatus();
}

// Outer points run in any order: each must have elements of its own.
absl::Status KernelVerifier::CheckScatter(const Inst& inst) {
  if (kernel_->schedule != Schedule::kLoops) return Error(inst, "only plain loops scatter");
  for (IntExpr var : kernel_->outer) {
    const auto is_index = std::find(inst.indices.begin(), inst.indices.end(), var);
    if (is_index == inst.indices.end() && !var.extent().is_const(1)) {
      return Error(inst, "two outer points may store to one element");
    }
  }
  if (!inst.accumulates) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(CheckFold(inst));
  const std::vector<StoredAt>& before = stores_[inst.buffer];
  if (before.empty() || before.front().phase >= phase_) {
    return Error(inst, "no earlier phase has stored what it accumulates into");
  }
  return absl::OkStatus();
}

absl::Status KernelVerifier::Define(const Inst& inst) {
  if (inst.result < 0 || inst.result >= kernel_->num_values) {
    return Error(inst, "its result has no legal number");
  }
  Value& value = values_[inst.result];
  if (value.kernel == operation_) return Error(inst, "its result is defined twice");
  value = {.kernel = operation_,
           .phase = phase_,
           .dtype = inst.dtype,
           .is_reduction = inst.op == ScalarOp::kReduce,
           .from_loop = !kernel_->phases[phase_].inner.empty()};
  return absl::OkStatus();
}

absl::Status KernelVerifier::CheckContraction() {
  const std::vector<Phase>& phases = kernel_->phases;
  if (phases.empty() || phases[0].inner.empty() || phases[0].body.size() < 2) {
    return Error("a contraction starts with a phase with inner loops");
  }
  const std::vector<Inst>& body = phases[0].body;
  const Inst& sum = body.back();
  const Inst& product = body[body.size() - 2];
  if (sum.op != ScalarOp::kReduce || sum.reduce_kind != ReduceKind::kSum ||
      product.op != ScalarOp::kMul || sum.operands[0] != product.result) {
    return Error("the first phase of a contraction ends in the sum of a product");
  }
  for (size_t i = 0; i < phases.size(); ++i) {
    if (i > 0 && !phases[i].inner.empty()) {
      return Error("later phases of a contraction have no inner loops");
    }
    for (const Inst& inst : phases[i].body) {
      if (inst.op == ScalarOp::kReduce && &inst != &sum) {
        return Error(inst, "a contraction has one reduction");
      }
      if (i == 0 && inst.op == ScalarOp::kStore) {
        return Error(inst, "the first phase of a contraction stores nothing");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln::ir
