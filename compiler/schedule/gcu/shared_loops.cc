#include "compiler/schedule/gcu/shared_loops.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/schedule/split_sums.h"

namespace kiln::schedule::gcu {

using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::ScalarOp;

SharedLoops::SharedLoops(const Kernel& first, int loop, bool sums)
    : extent_(first.outer[loop].extent()), sums_(sums) {
  ok_ = AddStores(first, loop);
  loops_.push_back(loop);
}

bool SharedLoops::Add(const Kernel& kernel) {
  bool waits = false;
  ir::ForEachInst(kernel, [&](const Inst& inst) {
    waits = waits || (inst.op == ScalarOp::kLoad && summed_.contains(inst.buffer));
  });
  if (waits) return false;
  if (const std::optional<int> loop = LoopOf(kernel)) {
    loops_.push_back(*loop);
    return AddStores(kernel, *loop);
  }
  const std::optional<size_t> inner = sums_ ? SumLoopOf(kernel) : std::nullopt;
  if (!inner) return false;
  loops_.push_back(static_cast<int64_t>(kernel.outer.size() + *inner));
  ir::ForEachInst(kernel, [&](const Inst& inst) {
    if (inst.op == ScalarOp::kStore) summed_.insert(inst.buffer);
  });
  return true;
}

// Whether the kernel stores each buffer at its tiled loop, in one dimension, which is noted.
bool SharedLoops::AddStores(const Kernel& kernel, int loop) {
  bool plain = true;
  ir::ForEachInst(kernel, [&](const Inst& inst) {
    if (inst.op != ScalarOp::kStore) return;
    const auto at = absl::c_find(inst.indices, kernel.outer[loop]);
    if (at == inst.indices.end()) {
      plain = false;
      return;
    }
    const auto dim = static_cast<size_t>(at - inst.indices.begin());
    plain = plain && dims_.try_emplace(inst.buffer, dim).first->second == dim;
  });
  return plain;
}

// The loop of the kernel that is tiled where its operands are: nothing where it is none.
std::optional<int> SharedLoops::LoopOf(const Kernel& kernel) const {
  std::optional<int> found;
  bool fits = true;
  ir::ForEachInst(kernel, [&](const Inst& inst) {
    if (inst.op != ScalarOp::kLoad) return;
    const auto dim = dims_.find(inst.buffer);
    if (dim == dims_.end()) return;
    const auto at = absl::c_find(kernel.outer, inst.indices[dim->second]);
    const auto loop = static_cast<int>(at - kernel.outer.begin());
    if (at == kernel.outer.end() || at->extent() != extent_ || (found && *found != loop)) {
      fits = false;
    }
    found = loop;
  });
  if (!fits) return std::nullopt;
  if (found) return found;
  // It reads nothing of the group: any loop of that length, the first.
  for (size_t l = 0; l < kernel.outer.size(); ++l) {
    if (kernel.outer[l].extent() == extent_) return static_cast<int>(l);
  }
  return std::nullopt;
}

std::optional<size_t> SharedLoops::SumLoopOf(const Kernel& kernel) const {
  if (!MaySplitSums(kernel)) return std::nullopt;
  const std::vector<IntExpr>& inner = kernel.phases[0].inner;
  std::optional<size_t> found;
  bool fits = true;
  for (const ir::Phase& phase : kernel.phases) {
    for (const Inst& inst : phase.body) {
      if (inst.op != ScalarOp::kLoad) continue;
      const auto dim = dims_.find(inst.buffer);
      if (dim == dims_.end()) continue;
      const auto at = absl::c_find(inner, inst.indices[dim->second]);
      const auto loop = static_cast<size_t>(at - inner.begin());
      fits = fits && &phase == &kernel.phases[0] && at != inner.end() && at->extent() == extent_ &&
             (!found || *found == loop);
      found = loop;
    }
  }
  return fits ? found : std::nullopt;
}

std::optional<size_t> SummedLoop(const Kernel& kernel, int64_t loop) {
  const auto outer = static_cast<int64_t>(kernel.outer.size());
  if (loop < outer) return std::nullopt;
  return static_cast<size_t>(loop - outer);
}

void PutFirst(ir::Module& module, const std::vector<int64_t>& loops, ir::Repeat& repeat) {
  const auto rotate = [](std::vector<IntExpr>& vars, size_t loop) {
    const auto at = vars.begin() + static_cast<ptrdiff_t>(loop);
    std::rotate(vars.begin(), at, at + 1);
  };
  std::vector<Kernel> kernels, between, after;
  for (size_t k = 0; k < loops.size(); ++k) {
    Kernel& kernel = repeat.kernels[k];
    const std::optional<size_t> summed = SummedLoop(kernel, loops[k]);
    if (!summed) {
      rotate(kernel.outer, static_cast<size_t>(loops[k]));
      between.push_back(std::move(kernel));
      continue;
    }
    SplitSums split = Split(module, kernel);
    rotate(split.adds.phases[0].inner, *summed);
    kernels.push_back(std::move(split.zeros));
    between.push_back(std::move(split.adds));
    after.push_back(std::move(split.result));
  }
  repeat.before = kernels.size();
  repeat.after = after.size();
  absl::c_move(between, std::back_inserter(kernels));
  absl::c_move(after, std::back_inserter(kernels));
  repeat.kernels = std::move(kernels);
}

}  // namespace kiln::schedule::gcu
