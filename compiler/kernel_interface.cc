#include "compiler/kernel_interface.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "compiler/grid.h"
#include "compiler/sym_int.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

bool Do(absl::Span<const ir::Kernel> kernels, ir::ScalarOp op, ir::BufferId buffer) {
  bool does = false;
  for (const ir::Kernel& kernel : kernels) {
    ForEachInst(kernel,
                [&](const ir::Inst& inst) { does |= inst.op == op && inst.buffer == buffer; });
  }
  return does;
}

std::string Text(const v1::KernelInterface& interface) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(interface, &text);
  return std::string(absl::StripSuffix(text, " "));
}

}  // namespace

absl::StatusOr<std::string> InterfaceOf(const ir::Module& module,
                                        absl::Span<const ir::Kernel> kernels,
                                        codegen::EmittedKernel& emitted) {
  std::vector<int>& symbols = emitted.symbols;
  const auto number = [&symbols](int id) {
    const auto at = std::find(symbols.begin(), symbols.end(), id);
    if (at != symbols.end()) return static_cast<uint32_t>(at - symbols.begin());
    symbols.push_back(id);
    return static_cast<uint32_t>(symbols.size() - 1);
  };
  v1::KernelInterface interface;
  for (const ir::BufferId id : emitted.buffers) {
    const ir::Buffer& buffer = module.buffers[id];
    v1::KernelInterface::Buffer& out = *interface.add_buffers();
    const auto stated = emitted.buffer_bytes.find(id);
    KILN_ASSIGN_OR_RETURN(*out.mutable_bytes(), ToSymInt(stated != emitted.buffer_bytes.end()
                                                             ? stated->second
                                                             : ir::SizeBytes(*module.ints, buffer),
                                                         number));
    out.set_dtype(static_cast<v1::DType>(DTypeToProto(buffer.dtype)));
    out.set_read(Do(kernels, ir::ScalarOp::kLoad, id));
    out.set_written(Do(kernels, ir::ScalarOp::kStore, id));
  }
  KILN_ASSIGN_OR_RETURN(*interface.mutable_scratch_bytes(),
                        ToSymInt(emitted.scratch_bytes, number));
  KILN_ASSIGN_OR_RETURN(*interface.mutable_thread_scratch_bytes(),
                        ToSymInt(emitted.thread_scratch_bytes, number));
  if (!emitted.grid.blocks.empty()) {
    KILN_ASSIGN_OR_RETURN(*interface.mutable_grid(), ToGrid(emitted.grid, number));
  }
  const auto parameter_of = [&](ir::BufferId id) {
    const auto buffer = std::find(emitted.buffers.begin(), emitted.buffers.end(), id);
    return static_cast<uint32_t>(buffer - emitted.buffers.begin());
  };
  interface.set_waits(emitted.waits);
  for (const ir::BufferId id : emitted.read_early) interface.add_read_early(parameter_of(id));
  for (const ir::BufferId id : emitted.zeroed) interface.add_zeroed(parameter_of(id));
  for (const codegen::EmittedTensorMap& map : emitted.tensor_maps) {
    v1::KernelInterface::TensorMap& out = *interface.add_tensor_maps();
    out.set_buffer(parameter_of(map.buffer));
    KILN_ASSIGN_OR_RETURN(*out.mutable_offset(), ToSymInt(map.offset, number));
    for (const ir::IntExpr size : map.sizes) {
      KILN_ASSIGN_OR_RETURN(*out.add_sizes(), ToSymInt(size, number));
    }
    for (const ir::IntExpr stride : map.strides) {
      KILN_ASSIGN_OR_RETURN(*out.add_strides(), ToSymInt(stride, number));
    }
    for (const int elements : map.box) out.add_box(static_cast<uint32_t>(elements));
  }
  for (const int id : symbols) {
    const ir::IntContext::SymbolInfo& symbol = module.ints->symbols()[id];
    v1::KernelInterface::Size& size = *interface.add_sizes();
    size.set_min(symbol.min);
    size.set_max(symbol.max);
  }
  return Text(interface);
}

}  // namespace kiln
