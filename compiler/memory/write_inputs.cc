#include "compiler/memory/write_inputs.h"

#include <algorithm>

#include "compiler/memory/in_place.h"

namespace kiln::memory {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::Inst;
using ir::Kernel;
using ir::Module;
using ir::ScalarOp;

struct Copy {
  BufferId from, to;
};

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
  copy = {load.buffer, store.buffer};
  const ir::Buffer &from = module.buffers[copy.from], &to = module.buffers[copy.to];
  return from.kind == BufferKind::kTemp && to.kind == BufferKind::kInput &&
         from.dtype == to.dtype && from.sizes == to.sizes && from.strides == to.strides &&
         store.indices.size() == kernel->outer.size() &&
         std::equal(store.indices.begin(), store.indices.end(), kernel->outer.begin());
}

// By buffer: the kernel that stores it, and the last operation that reads it; -1 for none.
struct Uses {
  explicit Uses(const Module& module)
      : writer(module.buffers.size(), -1), reader(module.buffers.size(), -1) {
    const int end = static_cast<int>(module.operations.size());
    for (int i = 0; i < end; ++i) {
      ForEachInst(module.operations[i], [&](const Inst& inst) {
        if (HasIndirect(inst)) first_safe = i + 1;
        if (inst.op == ScalarOp::kLoad) reader[inst.buffer] = i;
        if (inst.op == ScalarOp::kStore) writer[inst.buffer] = i;
      });
      if (const auto* library = std::get_if<ir::Library>(&module.operations[i])) {
        first_safe = i + 1;
        AddArgs(library->args, i);
      }
    }
    for (const ir::ModuleOutput& output : module.outputs) {
      const auto* window = std::get_if<ir::BufferWindow>(&output.value);
      if (window != nullptr) reader[window->buffer] = end;
    }
  }

  std::vector<int> writer, reader;
  int first_safe = 0;  // from this operation on none can fail

 private:
  void AddArgs(const ir::LibraryArgs& args, int operation) {
    for (const ir::LibraryArg& arg : args) {
      if (const auto* window = std::get_if<ir::BufferWindow>(&arg.value)) {
        reader[window->buffer] = operation;
      } else if (const auto* list = std::get_if<ir::LibraryArgs>(&arg.value)) {
        AddArgs(*list, operation);
      }
    }
  }
};

bool MayLieIn(Module& module, const Uses& uses, const Copy& copy) {
  const int writer = uses.writer[copy.from];
  if (writer < uses.first_safe || uses.reader[copy.to] > writer) return false;
  const auto* kernel = std::get_if<Kernel>(&module.operations[writer]);
  return kernel != nullptr && ChooseInPlace(module, *kernel, {copy.from}, {copy.to})[0] >= 0;
}

}  // namespace

std::vector<BufferId> WriteInputsInPlace(Module& module) {
  std::vector<BufferId> lies_in(module.buffers.size(), -1);
  const Uses uses(module);
  std::vector<bool> is_done(module.operations.size(), false);
  for (size_t i = 0; i < module.operations.size(); ++i) {
    Copy copy;
    if (!IsCopyIntoInput(module, module.operations[i], copy)) continue;
    if (lies_in[copy.from] >= 0 || !MayLieIn(module, uses, copy)) continue;
    lies_in[copy.from] = copy.to;
    is_done[i] = true;
  }
  size_t next = 0;
  std::erase_if(module.operations, [&](const ir::Operation&) { return is_done[next++]; });
  return lies_in;
}

}  // namespace kiln::memory
