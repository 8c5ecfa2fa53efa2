#include <iterator>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/split_sums.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule {

using ir::BufferId;
using ir::BufferKind;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;

ir::Repeat MakeRepeat(const Module& module, const Tileable& tileable,
                      const std::vector<int64_t>& steps) {
  ir::Repeat repeat;
  repeat.steps = steps;
  for (size_t k = 0; k < tileable.operations.size(); ++k) {
    Kernel kernel = std::get<Kernel>(module.operations[tileable.operations[k]]);
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
  repeat.windows = tileable.windows;
  for (std::vector<ir::TileWindow>& windows : repeat.windows) windows.resize(steps.size());
  repeat.name = absl::StrCat(repeat.kernels.back().name, "_tiles");
  return repeat;
}

void Replace(Module& module, const Tileable& tileable, ir::Repeat repeat) {
  for (const BufferId buffer : tileable.buffers) module.buffers[buffer].kind = BufferKind::kTile;
  for (const size_t i : tileable.operations) module.operations[i] = ir::Repeat();
  std::vector<Kernel> before, after;
  for (size_t k = 0; k < repeat.kernels.size(); ++k) {
    Kernel& kernel = repeat.kernels[k];
    if (!tileable.sums || absl::c_linear_search(kernel.outer, tileable.loops.back()[k])) continue;
    SplitSums split = Split(module, kernel);
    before.push_back(std::move(split.zeros));
    kernel = std::move(split.adds);
    after.push_back(std::move(split.result));
  }
  repeat.before = before.size();
  repeat.after = after.size();
  absl::c_move(repeat.kernels, std::back_inserter(before));
  absl::c_move(after, std::back_inserter(before));
  repeat.kernels = std::move(before);
  module.operations[tileable.operations.back()] = std::move(repeat);
}

}  // namespace kiln::schedule
