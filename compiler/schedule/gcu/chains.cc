#include "compiler/schedule/gcu/chains.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "absl/algorithm/container.h"
#include "compiler/ir/tile_window.h"

namespace kiln::schedule::gcu {
namespace {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::ScalarOp;
using ir::TileWindow;

constexpr size_t kMostKernels = 24;  // of a chain

class Finder {
 public:
  Finder(const ir::Module& module, const BufferUses& uses, size_t last)
      : module_(module), uses_(uses), last_(last) {}

  std::vector<Chain> Run(size_t first) {
    std::vector<Chain> found;
    const std::vector<IntExpr>& outer = KernelAt(last_).outer;
    for (size_t l = 0; l < outer.size() && found.empty(); ++l) {
      if (!outer[l].extent().is_const() || outer[l].extent().is_const(1)) continue;
      links_ = {{.loop = static_cast<int64_t>(l), .window = {}, .carried = {}}};
      if (!StoresWell(last_)) continue;
      while (last_ + 1 - links_.size() > first && links_.size() < kMostKernels && Extend()) {
        const auto is_tile = [](const Link& link) { return link.window.IsTile(); };
        if (!absl::c_all_of(links_, is_tile)) found.push_back(Made());
      }
    }
    return found;
  }

 private:
  struct Link {
    int64_t loop = 0;
    // What of it there must be for a tile, where all of that is run for each tile, and where what
    // the tile before has run is not.
    TileWindow window, carried;
  };

  const Kernel& KernelAt(size_t operation) const {
    return std::get<Kernel>(module_.operations[operation]);
  }
  size_t begin() const { return last_ + 1 - links_.size(); }
  const Link& LinkOf(size_t operation) const { return links_[operation - begin()]; }
  IntExpr LoopOf(size_t operation) const {
    return KernelAt(operation).outer[static_cast<size_t>(LinkOf(operation).loop)];
  }

  Chain Made() const {
    Chain chain{.begin = begin(), .end = last_ + 1, .loops = {}, .twice = {}, .once = {}};
    for (size_t k = begin(); k <= last_; ++k) {
      const Link& link = LinkOf(k);
      const int64_t extent = LoopOf(k).extent().value();
      chain.loops.push_back(link.loop);
      chain.twice.push_back({.window = link.window, .extent = extent, .carried = false});
      chain.once.push_back(
          {.window = link.carried, .extent = extent, .carried = StaysOf(link.carried) > 0});
    }
    return chain;
  }

  // One kernel more before the others; whether there may be.
  bool Extend() {
    const size_t number = begin() - 1;
    std::optional<Link> link;
    bool may = true;
    ir::ForEachInst(KernelAt(number), [&](const Inst& store) {
      if (store.op != ScalarOp::kStore || !may) return;
      for (const size_t reader : uses_.LoadersOf(store.buffer)) {
        if (reader < begin() || reader > last_) continue;
        ir::ForEachInst(KernelAt(reader), [&](const Inst& load) {
          if (load.op != ScalarOp::kLoad || load.buffer != store.buffer) return;
          may = may && AskFor(number, store, load, reader, link);
        });
      }
    });
    if (!may || !link) return false;
    const IntExpr loop = KernelAt(number).outer[static_cast<size_t>(link->loop)];
    if (!loop.extent().is_const()) return false;
    links_.push_front(*link);
    if (StoresWell(number)) return true;
    links_.pop_front();
    return false;
  }

  // Adds what `load` needs of the kernel that has `store` to `link`.
  bool AskFor(size_t number, const Inst& store, const Inst& load, size_t reader,
              std::optional<Link>& link) const {
    const IntExpr loop = LoopOf(reader);
    std::optional<size_t> dim;
    for (size_t d = 0; d < load.indices.size(); ++d) {
      if (!ir::ContainsVar(load.indices[d], loop)) continue;
      if (dim) return false;
      dim = d;
    }
    if (!dim) return false;
    const std::vector<IntExpr>& outer = KernelAt(number).outer;
    const int64_t at = absl::c_find(outer, store.indices[*dim]) - outer.begin();
    if (at == static_cast<int64_t>(outer.size())) return false;
    if (link && link->loop != at) return false;
    const auto join = [&](const TileWindow& runs, const TileWindow* known) {
      const auto reach = ir::ReachOf(*module_.ints, load.indices[*dim], loop, runs);
      return reach && known != nullptr ? ir::JoinWindows(*known, *reach) : reach;
    };
    const Link& of = LinkOf(reader);
    const auto window = join(of.window, link ? &link->window : nullptr);
    const auto carried = join(ir::Remaining(of.carried), link ? &link->carried : nullptr);
    if (!window || !carried) return false;
    link = {.loop = at, .window = *window, .carried = *carried};
    return true;
  }

  // Whether the kernel, which is the first of the chain, has its loop in one dimension of all that
  // it stores, loads no more of it, and others than the chain see only what each tile stores once.
  bool StoresWell(size_t number) const {
    const Kernel& kernel = KernelAt(number);
    const IntExpr loop = LoopOf(number);
    const TileWindow window = LinkOf(number).window;
    const bool parts = window.low == 0 && window.high == window.scale - 1 &&
                       loop.extent().value() <= window.scale * LoopOf(last_).extent().value();
    bool well = !ir::HasScatter(kernel);
    ir::ForEachInst(kernel, [&](const Inst& store) {
      if (store.op != ScalarOp::kStore) return;
      const auto dim = absl::c_find(store.indices, loop) - store.indices.begin();
      ir::ForEachInst(kernel, [&](const Inst& other) {
        if (other.buffer != store.buffer) return;
        for (size_t d = 0; d < other.indices.size(); ++d) {
          well =
              well && (static_cast<ptrdiff_t>(d) == dim ? other.indices[d] == loop
                                                        : !ir::ContainsVar(other.indices[d], loop));
        }
      });
      const bool is_temp = module_.buffers[store.buffer].kind == ir::BufferKind::kTemp;
      const std::vector<size_t>& loaders = uses_.LoadersOf(store.buffer);
      well = well && dim < static_cast<ptrdiff_t>(store.indices.size()) &&
             (parts || (is_temp && !loaders.empty() && loaders.back() <= last_));
    });
    return well;
  }

  const ir::Module& module_;
  const BufferUses& uses_;
  const size_t last_;
  std::deque<Link> links_;  // by kernel of the chain
};

}  // namespace

std::vector<Chain> ChainsTo(const ir::Module& module, const BufferUses& uses, size_t first,
                            size_t last) {
  return Finder(module, uses, last).Run(first);
}

}  // namespace kiln::schedule::gcu
