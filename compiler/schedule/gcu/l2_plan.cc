#include "compiler/schedule/gcu/l2_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/gcu/tiles.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {
namespace {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;

constexpr int64_t kAlignment = 512;

}  // namespace

void Place(L2Plan& plan) {
  // In the order of sizes, each at the lowest offset that is free while it lives.
  plan.bytes = 0;
  std::vector<size_t> order(plan.buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  absl::c_stable_sort(
      order, [&](size_t a, size_t b) { return plan.buffers[a].bytes > plan.buffers[b].bytes; });
  std::vector<const L2Buffer*> placed;
  for (const L2Buffer& buffer : plan.buffers) {
    if (!buffer.is_placed) continue;
    plan.bytes = std::max(plan.bytes, buffer.offset + buffer.bytes);
    placed.push_back(&buffer);
  }
  for (size_t i : order) {
    L2Buffer& buffer = plan.buffers[i];
    if (buffer.is_placed) continue;
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const L2Buffer* other : placed) {
      if (other->last < buffer.first || buffer.last < other->first) continue;
      taken.emplace_back(other->offset, other->offset + other->bytes);
    }
    absl::c_sort(taken);
    int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - at >= buffer.bytes) break;
      at = std::max(at, end);
    }
    buffer.offset = at;
    plan.bytes = std::max(plan.bytes, at + buffer.bytes);
    placed.push_back(&buffer);
  }
}

std::vector<IntExpr> PackedStrides(ir::IntContext& ints, const std::vector<IntExpr>& sizes,
                                   const std::vector<int64_t>& weights) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  absl::c_stable_sort(order, [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  std::vector<IntExpr> strides(sizes.size());
  IntExpr stride = ints.Const(1);
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride = ints.Mul(stride, sizes[order[i]]);
  }
  return strides;
}

std::vector<IntExpr> SymbolsOf(const ir::Operation& operation) {
  const auto* repeat = std::get_if<ir::Repeat>(&operation);
  return repeat == nullptr ? std::vector<IntExpr>() : repeat->by;
}

absl::StatusOr<std::vector<Version>> VersionsOf(const ir::Module& module,
                                                const ir::Operation& operation) {
  std::vector<Version> versions;
  InL2 tiles(module.buffers.size(), false);
  for (size_t b = 0; b < tiles.size(); ++b) {
    tiles[b] = module.buffers[b].kind == ir::BufferKind::kTile;
  }
  const auto add = [&](const ir::Repeat& repeat) {
    Version& version = versions.emplace_back();
    version.kernels = repeat.kernels;
    version.step = repeat.steps.empty() ? 0 : repeat.steps[0];
    version.before = repeat.before;
    version.after = repeat.after;
    for (size_t k = 0; k < repeat.windows.size(); ++k) {
      const IntExpr extent = repeat.kernels[k].outer[0].extent();
      version.overlaps.push_back(
          {.window = repeat.windows[k][0], .extent = extent.is_const() ? extent.value() : -1});
    }
    version.keeps = tiles;
  };
  const auto* repeat = std::get_if<ir::Repeat>(&operation);
  if (repeat == nullptr) {
    const absl::Span<const ir::Kernel> kernels = KernelsOf(operation);
    versions.push_back({.kernels = {kernels.begin(), kernels.end()},
                        .step = 0,
                        .keeps = std::move(tiles),
                        .bucket = {}});
    return versions;
  }
  if (repeat->steps.size() > 1) {
    return absl::UnimplementedError("the GCU runs groups tile by tile in one loop");
  }
  if (repeat->versions.empty()) {
    add(*repeat);
    if (absl::c_any_of(versions[0].overlaps, [](const Overlap& o) { return o.extent < 0; })) {
      return absl::UnimplementedError("the GCU runs tiles that overlap where sizes are known");
    }
    return versions;
  }
  std::vector<std::vector<int64_t>> limits;
  for (const ir::RepeatVersion& version : repeat->versions) {
    add(ir::OfVersion(*repeat, version));
    for (const BufferId id : version.keeps) versions.back().keeps[id] = true;
    if (!version.most.empty()) limits.push_back(version.most);
  }
  const std::vector<Bucket> buckets = BucketsOf(*module.ints, repeat->by, limits);
  for (size_t v = 0; v < versions.size(); ++v) versions[v].bucket = buckets[v];
  return versions;
}

absl::StatusOr<L2Plan> PlanL2(ir::Module& module, const std::vector<IntExpr>& symbols,
                              const Version& version) {
  ir::IntContext& ints = *module.ints;
  L2Plan plan;
  const TiledDims tiled = TiledDimsOf(version);
  absl::flat_hash_map<BufferId, size_t> known;
  for (size_t k = 0; k < version.kernels.size(); ++k) {
    absl::Status status;
    ir::ForEachInst(version.kernels[k], [&](const Inst& inst) {
      if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) return;
      const ir::Buffer& buffer = module.buffers[inst.buffer];
      if (!version.keeps[inst.buffer]) return;
      const auto [at, added] = known.try_emplace(inst.buffer, plan.buffers.size());
      if (!added) {
        L2Buffer& before = plan.buffers[at->second];
        before.last = std::max(before.last, k);
        return;
      }
      L2Buffer& out = plan.buffers.emplace_back();
      out.buffer = inst.buffer;
      out.first = out.last = k;
      if (inst.op == ScalarOp::kStore) {
        out.stored_by = k;
      } else {  // it is there before the first tile, and stays
        out.first = 0;
        out.last = version.kernels.size() - 1;
      }
      out.sizes = buffer.sizes;
      if (const auto dim = tiled.find(inst.buffer); dim != tiled.end()) {
        const auto& [number, window] = dim->second;
        const IntExpr span = ints.Const(window.Span(version.step));
        // A window may begin before the dimension does.
        out.sizes[number] = window.IsTile() ? ints.Min(span, out.sizes[number]) : span;
        if (!version.overlaps.empty() && version.overlaps[k].carried) {
          out.first = 0;
          out.last = version.kernels.size() - 1;
        }
      }
      std::vector<int64_t> weights;
      for (IntExpr stride : buffer.strides) weights.push_back(TypicalOf(ints, stride));
      out.strides = PackedStrides(ints, out.sizes, weights);
      const int64_t bytes = Bytes(MostOf(ints, symbols, version.bucket, out.sizes), buffer.dtype);
      if (bytes == kNoLimit) {
        status = absl::UnimplementedError(absl::StrCat("@", buffer.name, " has no largest size"));
      }
      out.bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    });
    if (!status.ok()) return status;
  }
  Place(plan);
  return plan;
}

}  // namespace kiln::schedule::gcu
