#include "compiler/memory/write_inputs.h"

#include <algorithm>

#include "compiler/memory/checked_index.h"
#include "compiler/memory/in_place.h"

namespace kiln::memory {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::ScalarOp;

struct Copy {
  BufferId from, to;
  size_t operation = 0;
};

// Whether the loops are the buffer's dimensions, in order; those of one element need none.
bool ReachesAll(const ir::Buffer& buffer, const std::vector<IntExpr>& indices,
                const std::vector<IntExpr>& loops) {
  size_t next = 0;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (next < loops.size() && indices[d] == loops[next]) {
      ++next;
    } else if (!indices[d].is_const(0) || !buffer.sizes[d].is_const(1)) {
      return false;
    }
  }
  return next == loops.size();
}

// The buffers of a kernel that moves each element of a temporary one to the same place of an input.
bool IsCopyIntoInput(const Module& module, const ir::Operation& operation, Copy& copy) {
  const auto* kernel = std::get_if<Kernel>(&operation);
  if (kernel == nullptr || kernel->phases.size() != 1) return false;
  const ir::Phase& phase = kernel->phases[0];
  if (!phase.inner.empty() || phase.body.size() != 2) return false;
  const Inst &load = phase.body[0], &store = phase.body[1];
  if (load.op != ScalarOp::kLoad || store.op != ScalarOp::kStore || load.has_mask ||
      store.operands != std::vector<ir::ValueId>{load.result} || load.indices != store.indices) {
    return false;
  }
  copy.from = load.buffer;
  copy.to = store.buffer;
  const ir::Buffer &from = module.buffers[copy.from], &to = module.buffers[copy.to];
  return from.kind == BufferKind::kTemp && to.kind == BufferKind::kInput &&
         from.dtype == to.dtype && from.sizes == to.sizes && from.strides == to.strides &&
         ReachesAll(to, store.indices, kernel->outer);
}

// By buffer: the kernel that stores it, and the last operation that reads it; -1 for none.
struct Uses {
  explicit Uses(const Module& module)
      : writer(module.buffers.size(), -1), reader(module.buffers.size(), -1) {
    const int end = static_cast<int>(module.operations.size());
    for (int i = 0; i < end; ++i) {
      ForEachInst(module.operations[i], [&](const Inst& inst) {
        if (inst.op == ScalarOp::kLoad) reader[inst.buffer] = i;
        if (inst.op == ScalarOp::kStore) writer[inst.buffer] = i;
      });
      if (const auto* library = std::get_if<ir::Library>(&module.operations[i])) {
        ir::ForEachWindow(library->args,
                          [&](const ir::BufferWindow& window) { reader[window.buffer] = i; });
      }
    }
    for (const ir::ModuleOutput& output : module.outputs) {
      const auto* window = std::get_if<ir::BufferWindow>(&output.value);
      if (window != nullptr) reader[window->buffer] = end;
    }
  }

  std::vector<int> writer, reader;
};

// The phase in which `kernel` copies `to` to the same places of `from`, of which it stores others
// later; it reads no other element of `to`. -1 where there is none.
int CopyingPhase(const Kernel& kernel, const Copy& copy) {
  const Inst* only = nullptr;  // load of `to`
  int found = -1;
  bool stored = false;
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    const std::vector<Inst>& body = kernel.phases[p].body;
    for (const Inst& inst : body) {
      if (inst.op == ScalarOp::kStore && inst.buffer == copy.from) stored |= found < 0;
      if (inst.op != ScalarOp::kLoad || inst.buffer != copy.to) continue;
      if (only != nullptr || stored || body.size() != 2) return -1;
      only = &inst;
      const Inst& store = body[1];
      const bool copies = &inst == &body[0] && store.op == ScalarOp::kStore &&
                          store.buffer == copy.from && !inst.has_mask && !store.accumulates &&
                          !HasIndirect(inst) && inst.indices == store.indices &&
                          store.operands == std::vector<ir::ValueId>{inst.result};
      if (!copies) return -1;
      found = static_cast<int>(p);
    }
  }
  if (found < 0 || kernel.phases.size() < 2) return -1;
  int uses = 0;
  ForEachInst(kernel, [&](const Inst& inst) {
    uses += static_cast<int>(std::count(inst.operands.begin(), inst.operands.end(), only->result));
  });
  return uses == 1 ? found : -1;
}

// As far as memory goes.
bool MayLieIn(Module& module, const Uses& uses, const Copy& copy) {
  const int writer = uses.writer[copy.from];
  if (writer < 0 || uses.reader[copy.to] > writer) return false;
  const auto* kernel = std::get_if<Kernel>(&module.operations[writer]);
  if (kernel == nullptr) return false;
  return ChooseInPlace(module, *kernel, {copy.from}, {copy.to})[0] >= 0 ||
         CopyingPhase(*kernel, copy) >= 0;
}

// A kernel that computes and checks indices of operations.
class Checks {
 public:
  explicit Checks(Module& module) : module_(module) { kernel_.name = "check_indices"; }

  // Whether `operation` cannot fail after the kernel.
  bool Add(const ir::Operation& operation) {
    if (std::holds_alternative<ir::Library>(operation)) return false;
    for (const Kernel& kernel : KernelsOf(operation)) {
      for (const ir::Phase& phase : kernel.phases) {
        for (const Inst& inst : phase.body) {
          if (!Add(kernel, inst)) return false;
        }
      }
    }
    return true;
  }

  Kernel Take() && { return std::move(kernel_); }

 private:
  bool Add(const Kernel& kernel, const Inst& inst) {
    auto indices = CheckedIndices(module_, kernel, inst);
    // What a mask leaves out need not be in range.
    if (!indices || (inst.has_mask && !indices->empty())) return false;
    for (CheckedIndex& index : *indices) {
      const auto same = [&](const CheckedIndex& other) { return other.Same(index); };
      if (std::any_of(known_.begin(), known_.end(), same)) continue;
      AddPhase(index);
      known_.push_back(std::move(index));
    }
    return true;
  }

  // Computes the index's values, and loads something that is there once more, with the check.
  void AddPhase(const CheckedIndex& index) {
    ir::IntContext& ints = *module_.ints;
    ir::Phase& phase = kernel_.phases.emplace_back();
    ir::IntContext::VarMap renamed;
    for (IntExpr var : index.others) renamed[var] = ints.Const(0);
    for (IntExpr var : index.loops) {
      phase.inner.push_back(ints.NewVar(var.extent()));
      renamed[var] = phase.inner.back();
    }
    std::vector<ir::ValueId> values;
    size_t load = 0;
    for (const CheckedIndex::Op& op : index.ops) {
      Inst inst = *op.inst;
      for (IntExpr& at : inst.indices) at = ints.Substitute(at, renamed);
      for (size_t i = 0; i < op.operands.size(); ++i) inst.operands[i] = values[op.operands[i]];
      inst.result = kernel_.num_values++;
      values.push_back(inst.result);
      if (inst.op == ScalarOp::kLoad) load = phase.body.size();
      phase.body.push_back(std::move(inst));
    }
    Inst check = phase.body[load];
    check.result = kernel_.num_values++;
    check.checks.push_back(ints.Indirect(static_cast<int>(check.operands.size()), index.extent));
    check.operands.push_back(values.back());
    phase.body.push_back(std::move(check));
  }

  Module& module_;
  std::vector<CheckedIndex> known_;  // their instructions stay where they are
  Kernel kernel_;
};

// Takes from `copies` those before or at an operation that may fail for a reason that no kernel in
// front can find, and returns that kernel for what comes after the first that is left.
Kernel CheckBefore(Module& module, const Uses& uses, std::vector<Copy>& copies) {
  size_t first_safe = module.operations.size();
  for (; first_safe > 0; --first_safe) {
    Checks alone(module);
    if (!alone.Add(module.operations[first_safe - 1])) break;
  }
  std::erase_if(copies, [&](const Copy& copy) {
    return uses.writer[copy.from] < static_cast<int>(first_safe);
  });
  size_t first = module.operations.size();
  for (const Copy& copy : copies) {
    first = std::min(first, static_cast<size_t>(uses.writer[copy.from]));
  }
  Checks checks(module);
  for (size_t i = first; i < module.operations.size(); ++i) checks.Add(module.operations[i]);
  return std::move(checks).Take();
}

bool MakesPrepared(const Module& module, const ir::Operation& operation) {
  bool makes = false;
  ForEachInst(operation, [&](const Inst& inst) {
    makes |=
        inst.op == ScalarOp::kStore && module.buffers[inst.buffer].kind == BufferKind::kPrepared;
  });
  return makes;
}

}  // namespace

std::vector<BufferId> WriteInputsInPlace(Module& module) {
  std::vector<BufferId> lies_in(module.buffers.size(), -1);
  const Uses uses(module);
  std::vector<Copy> copies;
  for (size_t i = 0; i < module.operations.size(); ++i) {
    Copy copy;
    if (!IsCopyIntoInput(module, module.operations[i], copy)) continue;
    if (lies_in[copy.from] >= 0 || !MayLieIn(module, uses, copy)) continue;
    lies_in[copy.from] = copy.to;
    copy.operation = i;
    copies.push_back(copy);
  }
  if (copies.empty()) return lies_in;
  Kernel check = CheckBefore(module, uses, copies);

  lies_in.assign(module.buffers.size(), -1);
  std::vector<bool> is_done(module.operations.size(), false);
  for (const Copy& copy : copies) {
    lies_in[copy.from] = copy.to;
    is_done[copy.operation] = true;
    auto& kernel = std::get<Kernel>(module.operations[uses.writer[copy.from]]);
    const int phase = CopyingPhase(kernel, copy);
    if (phase >= 0) kernel.phases.erase(kernel.phases.begin() + phase);
  }
  size_t next = 0;
  std::erase_if(module.operations, [&](const ir::Operation&) { return is_done[next++]; });
  if (!check.phases.empty()) {
    const auto first =
        std::find_if(module.operations.begin(), module.operations.end(),
                     [&](const ir::Operation& o) { return !MakesPrepared(module, o); });
    module.operations.insert(first, std::move(check));
  }
  return lies_in;
}

}  // namespace kiln::memory
