#include "compiler/schedule/gcu/chain_prices.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "compiler/schedule/gcu/buckets.h"
#include "compiler/schedule/gcu/preload.h"

namespace kiln::schedule::gcu {
namespace {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;

constexpr size_t kMostRuns = 8;         // of tiles that differ, each with code of its own
constexpr double kMargin = 1.05;        // of the time: what such tiles must be worth
constexpr double kMoveOverhead = 1e-6;  // seconds of a stage that moves rows

size_t DimOf(const Inst& store, IntExpr loop) {
  return static_cast<size_t>(absl::c_find(store.indices, loop) - store.indices.begin());
}

}  // namespace

const ir::Kernel& ChainPrices::KernelAt(size_t k) const {
  return std::get<ir::Kernel>(module_.operations[k]);
}

IntExpr ChainPrices::LoopAt(const Chain& chain, size_t k) const {
  return KernelAt(k).outer[static_cast<size_t>(chain.loops[k - chain.begin])];
}

std::optional<ChainPrices::Price> ChainPrices::Best(const Chain& chain,
                                                    const std::vector<BufferId>& kept,
                                                    int64_t room) {
  InL2 in_l2(module_.buffers.size(), false);
  for (BufferId id : kept) in_l2[id] = true;
  TileLoads loads;
  for (size_t k = chain.begin; k < chain.end; ++k) loads.Add(KernelAt(k), LoopAt(chain, k));
  const int64_t all = chain.twice.back().extent;
  std::optional<Price> best;
  for (const std::vector<Overlap>* kernels : {&chain.twice, &chain.once}) {
    const auto fits = [&](int64_t step) { return Peak(chain, *kernels, kept, step) <= room; };
    if (!fits(1)) continue;
    int64_t most = 1, past = all;  // between what fits and what need not
    while (past - most > 1) {
      const int64_t step = most + (past - most) / 2;
      (fits(step) ? most : past) = step;
    }
    const int64_t fewest = (all + most - 1) / most;
    for (const int64_t tiles : {fewest, fewest + 1, 2 * fewest}) {
      const int64_t step = (all + tiles - 1) / tiles;
      const std::vector<TileRun> runs = RunsOf(*kernels, step);
      if (runs.size() > kMostRuns || !MayCarry(*kernels, step)) continue;
      const auto improve = [&](double seconds, const InL2& with) {
        for (const TileRun& run : runs) {
          seconds += kMargin * static_cast<double>(run.tiles) * Seconds(chain, run, with);
          if (best && seconds > best->seconds) return;
        }
        if (!best || seconds < best->seconds) best = {seconds, step};
      };
      improve(0, in_l2);
      // The same where weights that all tiles load stay.
      const std::vector<Resident> residents =
          loads.Residents(module_, RoomFor(machine_) - Peak(chain, *kernels, kept, step));
      if (residents.empty()) continue;
      InL2 with = in_l2;
      for (const Resident& resident : residents) with[resident.buffer] = true;
      improve(SecondsOf(residents, machine_), with);
    }
  }
  return best;
}

double ChainPrices::Seconds(const Chain& chain, const TileRun& run, const InL2& in_l2) {
  double seconds = 0;
  for (size_t k = chain.begin; k < chain.end; ++k) {
    const size_t number = k - chain.begin;
    const int64_t count = run.runs[number].count, moved = run.stays[number].count;
    if (count > 0) seconds += prices_.Of(k, chain.loops[number], count, in_l2);
    if (moved > 0) seconds += MoveSeconds(k, LoopAt(chain, k), moved);
  }
  return seconds;
}

// Of rows that stay in L2, to where the next tile has them.
double ChainPrices::MoveSeconds(size_t k, IntExpr loop, int64_t rows) const {
  double bytes = 0;
  ir::ForEachInst(KernelAt(k), [&](const Inst& inst) {
    if (inst.op != ScalarOp::kStore) return;
    std::vector<int64_t> sizes =
        MostOf(*module_.ints, {}, Bucket(), module_.buffers[inst.buffer].sizes);
    sizes[DimOf(inst, loop)] = rows;
    bytes += static_cast<double>(Bytes(sizes, inst.dtype));
  });
  return kMoveOverhead + 2 * bytes / static_cast<double>(machine_.l2_rate);
}

// Bytes of what the chain keeps, of a tile.
int64_t ChainPrices::Peak(const Chain& chain, const std::vector<Overlap>& kernels,
                          const std::vector<BufferId>& kept, int64_t step) const {
  std::vector<int64_t> bytes;
  std::vector<bool> lasting;
  for (BufferId id : kept) {
    const size_t k = *uses_.StorerOf(id);
    const Overlap& kernel = kernels[k - chain.begin];
    std::vector<int64_t> sizes = MostOf(*module_.ints, {}, Bucket(), module_.buffers[id].sizes);
    ir::ForEachInst(KernelAt(k), [&](const Inst& inst) {
      if (inst.op != ScalarOp::kStore || inst.buffer != id) return;
      sizes[DimOf(inst, LoopAt(chain, k))] = kernel.window.Span(step);
    });
    bytes.push_back(Bytes(sizes, module_.buffers[id].dtype));
    lasting.push_back(kernel.carried);
  }
  return handing_.PeakOf(kept, chain.begin, chain.end, bytes, lasting).bytes;
}

}  // namespace kiln::schedule::gcu
