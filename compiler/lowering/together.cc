#include "compiler/lowering/together.h"

#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kiln::lowering {

void RunTogether(LoweringState& state, size_t begin, size_t end, size_t first_buffer) {
  ir::Module& module = state.module;
  std::vector<bool> is_elsewhere(module.buffers.size(), false);
  for (const std::optional<View>& value : state.values) {
    if (value) is_elsewhere[value->buffer] = true;
  }
  for (size_t i = 0; i < module.operations.size(); ++i) {
    if (i >= begin && i < end) continue;
    ir::ForEachInst(module.operations[i], [&](const ir::Inst& inst) {
      if (inst.buffer >= 0) is_elsewhere[inst.buffer] = true;
    });
  }
  for (size_t b = first_buffer; b < module.buffers.size(); ++b) {
    if (!is_elsewhere[b]) module.buffers[b].kind = ir::BufferKind::kTile;
  }
  ir::Repeat repeat;
  for (size_t i = begin; i < end; ++i) {
    repeat.kernels.push_back(std::move(std::get<ir::Kernel>(module.operations[i])));
  }
  repeat.name = absl::StrCat(repeat.kernels.back().name, "_together");
  const auto first = module.operations.begin();
  module.operations.erase(first + static_cast<ptrdiff_t>(begin) + 1,
                          first + static_cast<ptrdiff_t>(end));
  module.operations[begin] = std::move(repeat);
}

}  // namespace kiln::lowering
