#include "compiler/codegen/gcu/launch_arguments.h"

#include <cstdint>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/code.h"

namespace kiln::codegen::gcu {

using ir::BufferId;
using ir::Inst;
using ir::ScalarOp;
using schedule::gcu::Version;

void AddBuffers(const ir::Module& module, const ir::Operation& operation,
                const std::vector<Version>& versions, Launch& launch, std::vector<Placement>& in_l3,
                std::vector<bool>& loaded_only) {
  in_l3.resize(module.buffers.size());
  std::map<BufferId, uint8_t> access;
  for (const ir::Kernel& kernel : KernelsOf(operation)) {
    ir::ForEachInst(kernel, [&](const Inst& inst) {
      if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) return;
      const ir::Buffer& buffer = module.buffers[inst.buffer];
      if (absl::c_all_of(versions, [&](const Version& v) { return v.keeps[inst.buffer]; })) return;
      if (!access.contains(inst.buffer)) {
        in_l3[inst.buffer] = {.space = Space::kL3,
                              .argument = static_cast<int>(launch.buffers.size()),
                              .offset = 0,
                              .sizes = buffer.sizes,
                              .strides = buffer.strides};
        launch.buffers.push_back(inst.buffer);
      }
      access[inst.buffer] |= inst.op == ScalarOp::kLoad ? kiln::gcu::kRead : kiln::gcu::kWritten;
    });
  }
  loaded_only.assign(module.buffers.size(), false);
  for (const auto& [buffer, how] : access) {
    loaded_only[buffer] = (how & kiln::gcu::kWritten) == 0;
  }
  for (size_t i = 0; i < launch.buffers.size(); ++i) {
    launch.kernel.arguments.push_back({.name = absl::StrCat("b", i),
                                       .kind = kiln::gcu::ArgumentKind::kL3Pointer,
                                       .access = access[launch.buffers[i]]});
  }
}

void AddSymbols(Launch& launch) {
  const auto first = static_cast<int64_t>(launch.buffers.size());
  for (kiln::gcu::Instruction& instruction : launch.kernel.instructions) {
    if (instruction.op != Op::kLoadArgument || instruction.immediate < first) continue;
    const auto id = static_cast<int>(instruction.immediate - first);
    auto at = absl::c_find(launch.symbols, id);
    if (at == launch.symbols.end()) {
      launch.kernel.arguments.push_back({.name = absl::StrCat("s", launch.symbols.size()),
                                         .kind = kiln::gcu::ArgumentKind::kInteger,
                                         .access = 0});
      at = launch.symbols.insert(at, id);
    }
    instruction.immediate = first + (at - launch.symbols.begin());
  }
}

}  // namespace kiln::codegen::gcu
