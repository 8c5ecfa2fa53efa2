#include "compiler/lowering/together.h"

#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kiln::lowering {

void RunTogether(LoweringState& state, size_t first, size_t first_buffer) {
  ir::Module& module = state.module;
  std::vector<bool> is_value(module.buffers.size(), false);
  for (const std::optional<View>& value : state.values) {
    if (value) is_value[value->buffer] = true;
  }
  for (size_t b = first_buffer; b < module.buffers.size(); ++b) {
    if (!is_value[b]) module.buffers[b].kind = ir::BufferKind::kTile;
  }
  ir::Repeat repeat;
  for (size_t i = first; i < module.operations.size(); ++i) {
    repeat.kernels.push_back(std::move(std::get<ir::Kernel>(module.operations[i])));
  }
  repeat.name = absl::StrCat(repeat.kernels.back().name, "_together");
  module.operations.resize(first);
  module.operations.emplace_back(std::move(repeat));
}

}  // namespace kiln::lowering
