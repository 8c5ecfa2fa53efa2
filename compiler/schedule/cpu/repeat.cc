#include "compiler/schedule/cpu/repeat.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/memory/in_place.h"
#include "compiler/schedule/cpu/schedule.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule::cpu {

using ir::BufferId;
using ir::IntExpr;

TileMaker::TileMaker(ir::Module& module, const ir::Repeat& repeat,
                     std::vector<std::vector<IntExpr>> loops)
    : module_(module),
      ints_(*module.ints),
      steps_(repeat.steps),
      windows_(repeat.windows),
      loops_(std::move(loops)) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const IntExpr extent = ExtentOf(i);
    extents_.push_back(extent);
    begins_.push_back(extent.is_const(1) ? ints_.Const(0) : ints_.NewVar(extent));
    const bool is_part = steps_[i] > 1 && !extent.is_const(1);
    ends_.push_back(is_part ? ints_.NewVar(ints_.Add(extent, 1)) : IntExpr());
    AddWindowParts(i);
  }
}

// That of the repeat's loop; with windows it is the last kernel's.
IntExpr TileMaker::ExtentOf(size_t loop) const {
  if (!windows_.empty()) return loops_.back()[loop].extent();
  const auto& any = *absl::c_find_if(loops_, [&](const auto& of) { return bool{of[loop]}; });
  return any[loop].extent();
}

bool TileMaker::RunsTile(size_t number, size_t loop) const {
  return windows_.empty() ||
         (windows_[number][loop].IsTile() && loops_[number][loop].extent() == extents_[loop]);
}

void TileMaker::AddWindowParts(size_t loop) {
  for (size_t k = 0; k < windows_.size(); ++k) {
    const ir::TileWindow window = windows_[k][loop];
    if (RunsTile(k, loop) || PartOf(k, loop)) continue;
    const IntExpr extent = loops_[k][loop].extent(), most = ints_.Add(extent, 1);
    const TilePart part{ints_.NewVar(most), ints_.NewVar(most), window.Span(steps_[loop]), true};
    window_parts_.push_back({loop, window, extent, part});
  }
}

std::optional<TilePart> TileMaker::PartOf(size_t number, size_t loop) const {
  if (RunsTile(number, loop)) {
    if (!ends_[loop]) return std::nullopt;
    return TilePart{begins_[loop], ends_[loop], steps_[loop]};
  }
  const auto found = absl::c_find_if(window_parts_, [&](const WindowPart& made) {
    return made.loop == loop && made.window == windows_[number][loop] &&
           made.extent == loops_[number][loop].extent();
  });
  return found == window_parts_.end() ? std::nullopt : std::optional(found->part);
}

Block& TileMaker::AddLoops(size_t first, size_t last, Binding binding, Block& out) {
  Block* at = &out;
  for (size_t i = first; i < last; ++i) {
    if (begins_[i].is_const()) continue;
    at->push_back(
        {For{begins_[i], ints_.Const(0), extents_[i], ints_.Const(steps_[i]), binding, 1, {}}});
    at = &std::get<For>(at->back().value).body;
  }
  for (size_t i = first; i < last; ++i) {
    if (!ends_[i]) continue;
    at->push_back({Let{ends_[i], ints_.Min(ints_.Add(begins_[i], steps_[i]), extents_[i])}});
  }
  for (const WindowPart& made : window_parts_) {
    if (made.loop >= first && made.loop < last) LetWindow(made, *at);
  }
  return *at;
}

void TileMaker::LetWindow(const WindowPart& made, Block& out) {
  const IntExpr first = begins_[made.loop];
  const IntExpr last = ends_[made.loop] ? ints_.Add(ends_[made.loop], -1) : first;
  const auto at = [&](IntExpr place, int64_t offset) {
    return ints_.Add(ints_.Mul(place, made.window.scale), offset);
  };
  const auto inside = [&](IntExpr place) {
    return ints_.Min(ints_.Max(ints_.Const(0), place), made.extent);
  };
  out.push_back({Let{made.part.begin, inside(at(first, made.window.low))}});
  out.push_back({Let{made.part.end, inside(at(last, made.window.high + 1))}});
}

IntExpr TileMaker::AddBuffer(BufferId id, const ir::Kernel& kernel, size_t number) {
  const ir::Buffer& buffer = module_.buffers[id];
  const std::vector<IntExpr>& loops = loops_[number];
  std::vector<IntExpr> sizes = buffer.sizes;
  TileLayout layout;
  layout.origin.assign(sizes.size(), ints_.Const(0));
  ForEachInst(kernel, [&](const ir::Inst& inst) {
    if (inst.op != ir::ScalarOp::kStore || inst.buffer != id) return;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (!loops[i]) continue;
      const auto at = std::find(inst.indices.begin(), inst.indices.end(), loops[i]);
      const auto d = static_cast<size_t>(at - inst.indices.begin());
      const std::optional<TilePart> part = PartOf(number, i);
      layout.origin[d] = part ? part->begin : begins_[i];
      sizes[d] = ints_.Min(ints_.Const(part ? part->step : 1), buffer.sizes[d]);
    }
  });
  layout.strides = module_.ContiguousStrides(sizes);
  layouts_[id] = std::move(layout);
  return ints_.Product(sizes);
}

void TileMaker::AddBounds(const BoundedLoops& loops, Block& out) {
  if (ends_.empty() || !ends_.back()) return;
  std::vector<std::pair<int, IntExpr>> vars;  // in an order of their own
  for (const auto& [var, bound] : loops) vars.emplace_back(var.id(), var);
  absl::c_sort(vars, [](const auto& a, const auto& b) { return a.first < b.first; });
  absl::flat_hash_map<IntExpr, IntExpr> let;  // by value
  const auto add = [&](IntExpr value, IntExpr extent) {
    if (value.is_const()) return value;
    IntExpr& made = let[value];
    if (!made) {
      made = ints_.NewVar(ints_.Add(extent, 1));
      out.push_back({Let{made, value}});
    }
    return made;
  };
  for (const auto& [id, var] : vars) {
    // Whole vectors: what they hold too many is masked away.
    const Bound& bound = loops.at(var);
    TilePart part{ints_.Const(0), var.extent(), 0};
    if (bound.end) {
      const IntExpr vectors = ints_.CeilDiv(ints_.Add(ends_.back(), *bound.end), ints_.Const(16));
      part.end = add(ints_.Min(ints_.Mul(vectors, 16), var.extent()), var.extent());
    }
    if (bound.begin) {
      const IntExpr first = ints_.Min(
          ints_.Max(ints_.Const(0), ints_.Add(begins_.back(), *bound.begin)), var.extent());
      part.begin = add(ints_.Mul(ints_.FloorDiv(first, kPartUnit), kPartUnit), var.extent());
    }
    bounded_[var] = part;
  }
}

schedule::Tile TileMaker::Of(size_t number) const {
  schedule::Tile tile;
  tile.parts = bounded_;
  tile.layouts = layouts_;
  const std::vector<IntExpr>& loops = loops_[number];
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!loops[i]) continue;
    if (const std::optional<TilePart> part = PartOf(number, i)) {
      tile.parts[loops[i]] = *part;
    } else {
      tile.fixed[loops[i]] = begins_[i];
    }
  }
  return tile;
}

namespace {

// Moves trees of single kernels into one tree, in whose tasks they run.
class Grafter {
 public:
  explicit Grafter(Tree& tree) : tree_(tree) {}

  // From now on accesses to `buffer` are accesses to `alloc`.
  void Keep(BufferId buffer, AllocId alloc) { kept_[buffer] = alloc; }

  AllocId KeptAs(BufferId buffer) const { return kept_.at(buffer); }

  // Appends the tree's nodes to `out`, and to `memory` what opens its scratch memory.
  void Add(Tree from, Block& memory, Block& out) {
    const auto allocs = static_cast<AllocId>(tree_.allocs.size());
    const ir::ValueId values = tree_.num_values;
    for (Alloc& alloc : from.allocs) {
      if (alloc.space == Space::kGlobal) alloc.space = Space::kL2;
      tree_.allocs.push_back(std::move(alloc));
    }
    tree_.num_values += from.num_values;
    ForEachNode(from.body, [&](Node& node) { Renumber(node, allocs, values); });
    for (std::string& reason : from.reasons) {
      tree_.reasons.push_back(absl::StrCat("@", from.name, ": ", reason));
    }
    for (std::string& origin : from.origins) {
      if (std::find(tree_.origins.begin(), tree_.origins.end(), origin) == tree_.origins.end()) {
        tree_.origins.push_back(std::move(origin));
      }
    }
    MoveScratch(from.body, memory);
    for (Node& node : from.body) out.push_back(std::move(node));
  }

 private:
  // What a task opened is opened once a tile: its loops are loops of the tile's task now.
  void MoveScratch(Block& block, Block& out) const {
    std::erase_if(block, [&](const Node& node) {
      const auto* open = std::get_if<Open>(&node.value);
      if (open == nullptr || tree_.allocs[open->alloc].space != Space::kL2) return false;
      out.push_back(node);
      return true;
    });
    for (Node& node : block) {
      if (auto* loop = std::get_if<For>(&node.value)) MoveScratch(loop->body, out);
      if (auto* branch = std::get_if<If>(&node.value)) {
        MoveScratch(branch->then, out);
        MoveScratch(branch->otherwise, out);
      }
    }
  }

  void Renumber(Node& node, AllocId allocs, ir::ValueId values) const {
    const auto moved = [&](ir::ValueId id) { return id < 0 ? id : id + values; };
    if (auto* loop = std::get_if<For>(&node.value)) {
      if (loop->binding == Binding::kTask) loop->binding = Binding::kSerial;
      if (loop->binding == Binding::kTaskVector) loop->binding = Binding::kVector;
    } else if (auto* open = std::get_if<Open>(&node.value)) {
      open->alloc += allocs;
    } else if (auto* compute = std::get_if<Compute>(&node.value)) {
      ir::Inst& inst = compute->inst;
      inst.result = moved(inst.result);
      for (ir::ValueId& id : inst.operands) id = moved(id);
      Place(inst.buffer, compute->alloc, allocs);
      if (compute->alloc >= 0) compute->stream = false;
    } else if (auto* update = std::get_if<Update>(&node.value)) {
      update->alloc += allocs;
      update->value = moved(update->value);
    } else if (auto* fold = std::get_if<Fold>(&node.value)) {
      fold->into += allocs;
      fold->from += allocs;
    } else if (auto* combine = std::get_if<Combine>(&node.value)) {
      combine->from += allocs;
      combine->result = moved(combine->result);
    } else if (auto* micro = std::get_if<Micro>(&node.value)) {
      for (Window& window : micro->windows) Place(window.buffer, window.alloc, allocs);
    }
  }

  void Place(BufferId& buffer, AllocId& alloc, AllocId allocs) const {
    if (alloc >= 0) {
      alloc += allocs;
    } else if (const auto kept = kept_.find(buffer); kept != kept_.end()) {
      alloc = kept->second;
      buffer = -1;
    }
  }

  Tree& tree_;
  absl::flat_hash_map<BufferId, AllocId> kept_;
};

}  // namespace

namespace {

std::vector<BufferId> StoredTiles(const ir::Module& module, const ir::Kernel& kernel) {
  std::vector<BufferId> stored;
  ForEachStore(kernel, [&](BufferId buffer) {
    const bool is_tile = module.buffers[buffer].kind == ir::BufferKind::kTile;
    if (is_tile && !absl::c_linear_search(stored, buffer)) stored.push_back(buffer);
  });
  return stored;
}

// By kernel: the tiles that no later one loads, but for those that the next tile needs again.
std::vector<std::vector<BufferId>> LastLoads(const ir::Module& module, const ir::Repeat& repeat) {
  std::vector<std::vector<BufferId>> last(repeat.kernels.size());
  absl::flat_hash_set<BufferId> seen;
  for (size_t k = 0; k < repeat.before; ++k) {
    ForEachStore(repeat.kernels[k], [&](BufferId buffer) { seen.insert(buffer); });
  }
  for (size_t k = repeat.kernels.size(); k-- > 0;) {
    ForEachInst(repeat.kernels[k], [&](const ir::Inst& inst) {
      if (inst.op != ir::ScalarOp::kLoad) return;
      const bool is_tile = module.buffers[inst.buffer].kind == ir::BufferKind::kTile;
      if (is_tile && seen.insert(inst.buffer).second) last[k].push_back(inst.buffer);
    });
  }
  return last;
}

}  // namespace

absl::StatusOr<Tree> ScheduleRepeat(ir::Module& module, const ir::Repeat& repeat,
                                    const DeviceInfo& device) {
  Tree tree;
  tree.name = repeat.name;
  std::vector<std::vector<IntExpr>> loops;
  for (size_t k = 0; k < repeat.kernels.size(); ++k) loops.push_back(TiledLoops(repeat, k));
  TileMaker tiles(module, repeat, std::move(loops));
  const size_t last = repeat.steps.size() - 1;
  const bool ordered = repeat.before + repeat.after > 0;
  if (ordered && repeat.steps.back() == 1) {
    return absl::InternalError("a repeat sums over tiles of one iteration");
  }
  Block& task = tiles.AddLoops(0, ordered ? last : last + 1, Binding::kTask, tree.body);
  Grafter grafter(tree);
  std::vector<std::vector<BufferId>> dying = LastLoads(module, repeat);
  // Tiles of different windows lie in different places.
  if (!repeat.windows.empty()) dying.assign(repeat.kernels.size(), {});
  for (size_t k = 0; k < repeat.kernels.size(); ++k) {
    const ir::Kernel& kernel = repeat.kernels[k];
    std::vector<BufferId> made = StoredTiles(module, kernel);
    std::erase_if(made, [&](BufferId buffer) { return tiles.HasBuffer(buffer); });
    const std::vector<BufferId> over = memory::ChooseInPlace(module, kernel, made, dying[k]);
    for (size_t i = 0; i < made.size(); ++i) {
      const IntExpr size = tiles.AddBuffer(made[i], kernel, k);
      if (over[i] >= 0) {
        grafter.Keep(made[i], grafter.KeptAs(over[i]));
        continue;
      }
      const auto alloc = static_cast<AllocId>(tree.allocs.size());
      tree.allocs.push_back({module.buffers[made[i]].dtype, size, Space::kL2, {}, false});
      task.push_back({Open{alloc}});
      grafter.Keep(made[i], alloc);
    }
  }
  tree.reasons.push_back(absl::StrCat(repeat.kernels.size(), " kernels, tile by tile"));
  if (!repeat.windows.empty()) tree.reasons.push_back("tiles overlap: windows are computed again");
  if (ordered) tree.reasons.push_back("tiles of the last loop one after another: sums");
  Block later;  // the last loop, where it is no task
  Block* tile = ordered ? &tiles.AddLoops(last, last + 1, Binding::kSerial, later) : &task;
  if (repeat.steps.back() > 1 && repeat.windows.empty()) {
    const BoundedLoops bounded = FindBoundedLoops(module, repeat);
    if (!bounded.empty()) tree.reasons.push_back("tiles end where all is masked away");
    tiles.AddBounds(bounded, *tile);
  }
  for (size_t k = 0; k < repeat.kernels.size(); ++k) {
    const schedule::Tile part = tiles.Of(k);
    KILN_ASSIGN_OR_RETURN(Tree made, ScheduleForTile(module, repeat.kernels[k], device, &part));
    if (k == repeat.kernels.size() - repeat.after) {
      for (Node& node : later) task.push_back(std::move(node));
      later.clear();
    }
    grafter.Add(std::move(made), task, IsBetween(repeat, k) ? *tile : task);
  }
  for (Node& node : later) task.push_back(std::move(node));
  return tree;
}

}  // namespace kiln::schedule::cpu
