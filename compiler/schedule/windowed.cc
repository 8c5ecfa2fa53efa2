#include "compiler/schedule/windowed.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/ir/tile_window.h"
#include "compiler/schedule/movable.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::ScalarOp;

namespace {

constexpr size_t kMostKernels = 16;  // of a chain
constexpr double kMostTimes = 1.5;   // that a chain is computed

class Finder {
 public:
  Finder(ir::Module& module, const BufferUses& uses, size_t last)
      : module_(module), uses_(uses), last_(last) {}

  std::vector<Tileable> Run() {
    if (!MayBeTiled(module_, last_)) return {};
    for (IntExpr loop : KernelAt(last_).outer) {
      if (loop.extent().is_const(1)) continue;
      std::vector<Tileable> found = Grow(loop);
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  const Kernel& KernelAt(size_t operation) const {
    return std::get<Kernel>(module_.operations[operation]);
  }

  // Chains of ever more kernels, tiled along `loop` of the last one.
  std::vector<Tileable> Grow(IntExpr loop) {
    std::vector<Tileable> found;
    Tileable chain{{last_}, {}, {{loop}}};
    while (chain.operations.size() < kMostKernels) {
      std::optional<Tileable> longer = Extend(chain, loop);
      if (!longer) break;
      chain = *std::move(longer);
      const auto is_window = [](const auto& of_kernel) { return !of_kernel[0].IsTile(); };
      if (absl::c_any_of(chain.windows, is_window)) found.push_back(WithOtherLoops(chain, loop));
    }
    return found;
  }

  // With one kernel more before it: the latest that may be.
  std::optional<Tileable> Extend(const Tileable& chain, IntExpr loop) {
    std::vector<size_t> producers;
    for (const size_t i : chain.operations) {
      ForEachAccess(module_.operations[i], [&](const Inst& inst) {
        const std::optional<size_t> storer = uses_.StorerOf(inst.buffer);
        if (inst.op == ScalarOp::kLoad && storer && *storer < i &&
            !absl::c_linear_search(chain.operations, *storer) &&
            !absl::c_linear_search(producers, *storer)) {
          producers.push_back(*storer);
        }
      });
    }
    std::sort(producers.rbegin(), producers.rend());
    for (const size_t i : producers) {
      if (!MayBeTiled(module_, i)) continue;
      Tileable longer{chain.operations, chain.buffers, {}};
      longer.operations.push_back(i);
      if (!MayMove(module_, longer.operations) ||
          longer.operations.size() != chain.operations.size() + 1) {
        continue;
      }
      const std::vector<BufferId> made = StoredFor(module_, uses_, i, chain.operations);
      if (made.size() != NumStored(i)) continue;
      absl::c_copy(made, std::back_inserter(longer.buffers));
      const std::vector<IntExpr> loops = LoopsLike(longer.operations, loop);
      if (loops.empty()) continue;
      longer.loops = {loops};
      if (SetWindows(longer)) return longer;
    }
    return std::nullopt;
  }

  size_t NumStored(size_t operation) const {
    std::vector<BufferId> stored;
    ForEachAccess(module_.operations[operation], [&](const Inst& inst) {
      if (inst.op == ScalarOp::kStore && !absl::c_linear_search(stored, inst.buffer)) {
        stored.push_back(inst.buffer);
      }
    });
    return stored.size();
  }

  // By kernel: the loop that moves with `loop` of the last one. Empty where one has none.
  std::vector<IntExpr> LoopsLike(const std::vector<size_t>& operations, IntExpr loop) {
    std::vector<IntExpr> loops(operations.size());
    loops.back() = loop;
    for (size_t k = operations.size(); k-- > 0;) {
      if (!loops[k]) return {};
      bool found = true;
      ForEachAccess(module_.operations[operations[k]], [&](const Inst& load) {
        if (load.op != ScalarOp::kLoad) return;
        for (size_t from = 0; from < k; ++from) {
          const Inst* store = StoreOf(operations[from], load.buffer);
          if (store == nullptr) continue;
          const IntExpr its = LoopOfStore(operations[from], *store, load, loops[k]);
          found &= its && (!loops[from] || loops[from] == its);
          loops[from] = its;
        }
      });
      if (!found) return {};
    }
    return loops;
  }

  const Inst* StoreOf(size_t operation, BufferId buffer) const {
    const Inst* store = nullptr;
    ForEachAccess(module_.operations[operation], [&](const Inst& inst) {
      if (inst.op == ScalarOp::kStore && inst.buffer == buffer) store = &inst;
    });
    return store;
  }

  // The outer loop that `store` has where `load` has `loop`; null where that is none.
  IntExpr LoopOfStore(size_t operation, const Inst& store, const Inst& load, IntExpr loop) const {
    for (size_t d = 0; d < load.indices.size(); ++d) {
      if (!ContainsVar(load.indices[d], loop)) continue;
      const bool is_loop = absl::c_linear_search(KernelAt(operation).outer, store.indices[d]);
      return is_loop ? store.indices[d] : IntExpr();
    }
    return {};
  }

  bool SetWindows(Tileable& chain) {
    chain.windows.clear();
    const ir::Repeat repeat =
        MakeRepeat(module_, chain, std::vector<int64_t>(chain.loops.size(), 1));
    auto windows = ir::InferWindows(module_, repeat);
    if (!windows.ok()) return false;
    chain.windows = *std::move(windows);
    return true;
  }

  // With the loops that can be tiled, too: before it those of whole images, after it others.
  Tileable WithOtherLoops(const Tileable& chain, IntExpr loop) {
    Tileable all = chain;
    for (IntExpr other : KernelAt(last_).outer) {
      if (other == loop || other.extent().is_const(1)) continue;
      const std::vector<IntExpr> loops = LoopsLike(chain.operations, other);
      if (loops.empty()) continue;
      Tileable more = all;
      const bool is_image = IsImages(chain, loops);
      more.loops.insert(is_image ? more.loops.begin() : more.loops.end(), loops);
      if (!SetWindows(more)) continue;
      const size_t at = is_image ? 0 : more.loops.size() - 1;
      const bool is_tile =
          absl::c_all_of(more.windows, [&](const auto& windows) { return windows[at].IsTile(); });
      if (is_tile == is_image) all = std::move(more);
    }
    return all;
  }

  // Whether `loops` are those of planes: outside of the chain's loop in memory, and every access
  // that moves with one of them moves with the chain's, too. Weights move with neither.
  bool IsImages(const Tileable& chain, const std::vector<IntExpr>& loops) const {
    bool all = StandsBefore(loops.back(), chain.loops[0].back());
    for (size_t k = 0; k < loops.size(); ++k) {
      const auto moves = [](const Inst& inst, IntExpr var) {
        return absl::c_any_of(inst.indices, [&](IntExpr i) { return ContainsVar(i, var); });
      };
      ForEachAccess(module_.operations[chain.operations[k]], [&](const Inst& inst) {
        all &= !moves(inst, loops[k]) || moves(inst, chain.loops[0][k]);
      });
      all &= loops[k].extent() == loops.back().extent();
    }
    return all;
  }

  // Whether the last kernel's stores have `loop` in an earlier dimension than `other`.
  bool StandsBefore(IntExpr loop, IntExpr other) const {
    bool before = true;
    ForEachAccess(module_.operations[last_], [&](const Inst& inst) {
      if (inst.op != ScalarOp::kStore) return;
      before &= absl::c_find(inst.indices, loop) < absl::c_find(inst.indices, other);
    });
    return before;
  }

  ir::Module& module_;
  const BufferUses& uses_;
  const size_t last_;
};

int64_t AtHints(ir::IntContext& ints, IntExpr size) {
  return std::max<int64_t>(1, ints.EvaluateAtHints(size));
}

// Instructions that all of the kernel's loops run.
double InstsOf(ir::IntContext& ints, const Kernel& kernel) {
  double insts = 0;
  for (const ir::Phase& phase : kernel.phases) {
    auto of_phase = static_cast<double>(phase.body.size());
    for (IntExpr var : phase.inner) of_phase *= static_cast<double>(ExtentHint(ints, var));
    insts += of_phase;
  }
  for (IntExpr var : kernel.outer) insts *= static_cast<double>(ExtentHint(ints, var));
  return insts;
}

// Which of the chain's loops has one iteration a tile by itself: not that which windows move along.
size_t NumImageLoops(const Tileable& tileable) {
  for (size_t i = 0; i < tileable.loops.size(); ++i) {
    for (const std::vector<ir::TileWindow>& windows : tileable.windows) {
      if (!windows[i].IsTile()) return i;
    }
  }
  return tileable.loops.size();
}

}  // namespace

std::vector<Tileable> FindWindowed(ir::Module& module, const BufferUses& uses, size_t last) {
  return Finder(module, uses, last).Run();
}

int64_t TileBytes(ir::Module& module, const Tileable& tileable, const std::vector<int64_t>& steps) {
  ir::IntContext& ints = *module.ints;
  int64_t bytes = 0;
  for (size_t k = 0; k < tileable.operations.size(); ++k) {
    std::vector<BufferId> seen;
    ForEachAccess(module.operations[tileable.operations[k]], [&](const Inst& inst) {
      if (inst.op != ScalarOp::kStore || absl::c_linear_search(seen, inst.buffer) ||
          !absl::c_linear_search(tileable.buffers, inst.buffer)) {
        return;
      }
      seen.push_back(inst.buffer);
      const ir::Buffer& buffer = module.buffers[inst.buffer];
      int64_t elements = static_cast<int64_t>(DTypeSize(buffer.dtype));
      for (size_t d = 0; d < buffer.sizes.size(); ++d) {
        int64_t size = AtHints(ints, buffer.sizes[d]);
        for (size_t i = 0; i < steps.size(); ++i) {
          if (inst.indices[d] != tileable.loops[i][k]) continue;
          size = std::min(size, tileable.windows[k][i].Span(steps[i]));
        }
        elements *= size;
      }
      bytes += elements;
    });
  }
  return bytes;
}

double TimesComputed(ir::Module& module, const Tileable& tileable,
                     const std::vector<int64_t>& steps) {
  ir::IntContext& ints = *module.ints;
  double once = 0, all = 0;
  for (size_t k = 0; k < tileable.operations.size(); ++k) {
    const double work = InstsOf(ints, std::get<Kernel>(module.operations[tileable.operations[k]]));
    double times = 1;
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto extent = static_cast<double>(ExtentHint(ints, tileable.loops[i][k]));
      const auto tiled = static_cast<double>(ExtentHint(ints, tileable.loops[i].back()));
      const auto step = std::min(static_cast<double>(steps[i]), tiled);
      const auto span =
          static_cast<double>(tileable.windows[k][i].Span(static_cast<int64_t>(step)));
      times *= tiled / step * std::min(span, extent) / extent;
    }
    once += work;
    all += work * times;
  }
  return all / once;
}

std::optional<std::vector<int64_t>> FitSteps(ir::Module& module, const Tileable& tileable,
                                             int64_t capacity_bytes) {
  const size_t images = NumImageLoops(tileable);
  std::vector<int64_t> steps(images, 1);
  for (size_t i = images; i < tileable.loops.size(); ++i) {
    const int64_t extent = ExtentHint(*module.ints, tileable.loops[i].back());
    steps.push_back(1);
    if (TileBytes(module, tileable, steps) > capacity_bytes) continue;
    // The most that fit, between what does and what need not.
    int64_t fits = 1, past = extent + 1;
    while (past - fits > 1) {
      steps.back() = fits + (past - fits) / 2;
      (TileBytes(module, tileable, steps) <= capacity_bytes ? fits : past) = steps.back();
    }
    // Tiles of about the same length.
    const int64_t tiles = (extent + fits - 1) / fits;
    steps.back() = (extent + tiles - 1) / tiles;
    return steps;
  }
  return std::nullopt;
}

void TileByWindows(ir::Module& module, int64_t capacity_bytes) {
  const BufferUses uses(module);
  for (size_t i = module.operations.size(); i-- > 0;) {
    if (!std::holds_alternative<Kernel>(module.operations[i])) continue;
    std::vector<Tileable> chains = FindWindowed(module, uses, i);
    absl::c_reverse(chains);
    for (const Tileable& chain : chains) {
      const auto steps = FitSteps(module, chain, capacity_bytes);
      if (!steps || TimesComputed(module, chain, *steps) > kMostTimes) continue;
      Replace(module, chain, MakeRepeat(module, chain, *steps));
      break;
    }
  }
  std::erase_if(module.operations, [](const ir::Operation& operation) {
    const auto* repeat = std::get_if<ir::Repeat>(&operation);
    return repeat != nullptr && repeat->kernels.empty();
  });
}

}  // namespace kiln::schedule
