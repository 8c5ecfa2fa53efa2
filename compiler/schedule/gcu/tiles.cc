#include "compiler/schedule/gcu/tiles.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/tile_window.h"
#include "compiler/schedule/gcu/l2_plan.h"

namespace kiln::schedule::gcu {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;
using ir::TileWindow;

TileRun::Range RangeOf(int64_t begin, int64_t end, const Overlap& kernel, int64_t first) {
  begin = std::clamp<int64_t>(begin, 0, kernel.extent);
  end = std::clamp<int64_t>(end, begin, kernel.extent);
  return {begin - kernel.window.scale * first, end - begin};
}

// The tile from `first` on, as a run of its own.
TileRun TileFrom(const std::vector<Overlap>& kernels, int64_t first, int64_t step) {
  const int64_t last = std::min(first + step, kernels.back().extent) - 1;
  TileRun tile{.first = first, .tiles = 1, .runs = {}, .stays = {}};
  for (const Overlap& kernel : kernels) {
    const TileWindow& window = kernel.window;
    const int64_t low = window.scale * first + window.low;
    const int64_t before = window.scale * (first - 1) + window.high + 1;
    const bool stays = kernel.carried && first > 0;
    tile.runs.push_back(
        RangeOf(stays ? before : low, window.scale * last + window.high + 1, kernel, first));
    tile.stays.push_back(stays ? RangeOf(low, before, kernel, first) : TileRun::Range());
  }
  return tile;
}

bool IsSame(const std::vector<TileRun::Range>& a, const std::vector<TileRun::Range>& b) {
  return absl::c_equal(a, b, [](const TileRun::Range& x, const TileRun::Range& y) {
    return x.count == y.count && (x.count == 0 || x.offset == y.offset);
  });
}

}  // namespace

IntExpr TileLoop(const Version& version) {
  return version.overlaps.empty() ? version.kernels[version.before].outer[0]
                                  : version.kernels.back().outer[0];
}

IntExpr TiledLoopOf(const Version& version, size_t k) {
  const ir::Kernel& kernel = version.kernels[k];
  if (k < version.before || k >= version.kernels.size() - version.after) return {};
  return ir::AddsUp(kernel) ? kernel.phases[0].inner[0] : kernel.outer[0];
}

TiledDims TiledDimsOf(const Version& version) {
  TiledDims dims;
  if (version.step == 0) return dims;
  for (size_t k = 0; k < version.kernels.size(); ++k) {
    const IntExpr loop = TiledLoopOf(version, k);
    if (!loop) continue;
    ir::ForEachInst(version.kernels[k], [&](const Inst& inst) {
      if (inst.op != ScalarOp::kStore || !version.keeps[inst.buffer]) return;
      const auto at = absl::c_find(inst.indices, loop);
      if (at == inst.indices.end()) return;
      dims.try_emplace(
          inst.buffer,
          TiledDim{static_cast<size_t>(at - inst.indices.begin()),
                   version.overlaps.empty() ? TileWindow() : version.overlaps[k].window});
    });
  }
  return dims;
}

Part TileAt(ir::IntContext& ints, IntExpr first, IntExpr extent, int64_t step) {
  const bool even = extent.is_const() && extent.value() % step == 0;
  return {first, even ? ints.Const(step) : ints.Min(ints.Const(step), ints.Sub(extent, first))};
}

ir::Kernel ForTile(ir::Module& module, const ir::Kernel& kernel, const Part& part,
                   const TiledDims& kept, IntExpr first) {
  ir::IntContext& ints = *module.ints;
  ir::Kernel out = kernel;
  const IntExpr inside = ints.NewVar(part.count);
  IntExpr& loop = ir::AddsUp(kernel) ? out.phases[0].inner[0] : out.outer[0];
  const ir::IntContext::VarMap map = {{loop, ints.Add(part.begin, inside)}};
  loop = inside;
  for (ir::Phase& phase : out.phases) {
    for (Inst& inst : phase.body) {
      for (IntExpr& index : inst.indices) index = ints.Substitute(index, map);
      const auto dim = kept.find(inst.buffer);
      if (dim == kept.end()) continue;
      const auto& [number, window] = dim->second;
      IntExpr& index = inst.indices[number];
      index = ints.Sub(index, ints.Add(ints.Mul(first, window.scale), window.low));
    }
  }
  return out;
}

std::vector<TileRun> RunsOf(const std::vector<Overlap>& kernels, int64_t step) {
  std::vector<TileRun> runs;
  for (int64_t first = 0; first < kernels.back().extent; first += step) {
    TileRun tile = TileFrom(kernels, first, step);
    if (!runs.empty() && IsSame(runs.back().runs, tile.runs) &&
        IsSame(runs.back().stays, tile.stays)) {
      ++runs.back().tiles;
    } else {
      runs.push_back(std::move(tile));
    }
  }
  return runs;
}

int64_t StaysOf(const TileWindow& window) {
  return window.high - window.low + 1 - window.scale;
}

bool MayCarry(const std::vector<Overlap>& kernels, int64_t step) {
  return absl::c_all_of(kernels, [&](const Overlap& kernel) {
    return !kernel.carried || StaysOf(kernel.window) <= kernel.window.scale * step;
  });
}

std::optional<Version> Carrying(const ir::Module& module, const ir::Repeat& repeat,
                                const Version& version) {
  const auto windows = ir::InferWindows(module, repeat, /*carries=*/true);
  if (!windows.ok()) return std::nullopt;
  Version carrying = version;
  bool any = false;
  for (size_t k = 0; k < carrying.overlaps.size(); ++k) {
    Overlap& kernel = carrying.overlaps[k];
    kernel.window = (*windows)[k][0];
    kernel.carried = StaysOf(kernel.window) > 0;
    any = any || kernel.carried;
  }
  if (!any || !MayCarry(carrying.overlaps, version.step)) return std::nullopt;
  return carrying;
}

ir::Kernel MoveRows(ir::Module& module, const ir::Kernel& stores, ir::BufferId buffer,
                    const TiledDim& dim, const TileRun::Range& range, int64_t step) {
  ir::IntContext& ints = *module.ints;
  const ir::Buffer& moved = module.buffers[buffer];
  ir::Kernel kernel;
  kernel.name = absl::StrCat(stores.name, "_rows");
  kernel.num_values = 1;
  std::vector<IntExpr> to, from;
  for (size_t d = 0; d < moved.sizes.size(); ++d) {
    kernel.outer.push_back(ints.NewVar(d == dim.dim ? ints.Const(range.count) : moved.sizes[d]));
    to.push_back(kernel.outer.back());
    if (d == dim.dim) to.back() = ints.Add(to.back(), range.offset - dim.window.low);
    from.push_back(to.back());
    if (d == dim.dim) from.back() = ints.Add(from.back(), dim.window.scale * step);
  }
  Inst load, store;
  load.op = ScalarOp::kLoad;
  store.op = ScalarOp::kStore;
  load.dtype = store.dtype = moved.dtype;
  load.buffer = store.buffer = buffer;
  load.indices = std::move(from);
  store.indices = std::move(to);
  load.result = 0;
  store.operands = {0};
  kernel.phases = {{{}, {std::move(load), std::move(store)}}};
  return kernel;
}

}  // namespace kiln::schedule::gcu
