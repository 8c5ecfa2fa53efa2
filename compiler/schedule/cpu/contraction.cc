#include "compiler/schedule/cpu/contraction.h"

#include <functional>
#include <utility>
#include <vector>

#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/flat_loops.h"
#include "compiler/schedule/cpu/short_runs.h"
#include "compiler/schedule/micro.h"

namespace kiln::schedule::cpu {
namespace {

using ir::IntExpr;

class ContractionScheduler {
 public:
  ContractionScheduler(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                       ContractionPlan plan, int64_t l2_bytes)
      : ints_(*module.ints),
        nest_(nest),
        plan_(std::move(plan)),
        builder_(module, kernel, nest),
        width_(plan_.panel_width()),
        panels_(ints_.CeilDiv(plan_.num_lanes, ints_.Const(width_))),
        depth_(MostDepth()),
        panel_size_(ints_.Mul(depth_, width_)) {
    const int64_t elements = l2_bytes / 2 / DTypeSize(plan_.panel_type) / width_;
    panel_group_ =
        ints_.Max(ints_.Const(1),
                  ints_.FloorDiv(ints_.Const(elements), ints_.Max(plan_.num_k, ints_.Const(1))));
  }

  Tree Run() &&;

 private:
  IntExpr Let(IntExpr value, IntExpr most, Block& out) { return builder_.Let(value, most, out); }
  IntExpr Flat(const std::vector<IntExpr>& vars) { return PointNumber(ints_, vars); }
  Block& AddBatches(Block& out);
  IntExpr OriginOf(const Step& load, const std::vector<IntExpr>& vars);
  AllocId OpenRowScratch(Block& out);
  FlatRange LanesOf(IntExpr panel, Block& out);

  void PackPanel(IntExpr panel, const Window& to, Block& out);
  void PackRuns(const ShortRuns& runs, const std::vector<IntExpr>& vars, const FlatRange& range,
                int width, const Window& to, Block& out);
  IntExpr UnmaskedK(const std::vector<const Step*>& steps);
  void PackAnyPanel(const FlatRange& lanes, const Window& to, Block& out) {
    PackBeside(plan_.panel_value, plan_.panel_type, plan_.lanes, lanes, width_, to, out);
  }
  void PackBeside(ir::ValueId value, DType type, const std::vector<IntExpr>& vars,
                  const FlatRange& range, int width, const Window& to, Block& out);
  void PackRows(const FlatRange& rows, Block& out);
  void PackTurnedRows(const FlatRange& rows, Block& out);
  void CopyLastRows(IntExpr row_begin, IntExpr row_end, Block& out);
  void Multiply(AllocId tile, const FlatRange& rows, const Window& panel, Block& out);
  void AddBlocks(const FlatRange& rows, const FlatRange& panels,
                 const std::function<Window(IntExpr panel)>& panel_at, Block& out);
  // One panel of the point of the batches at hand, where `panels` are those of all of them.
  Window PanelOf(const Window& panels, IntExpr panel);
  void RunShared(Block& root);
  void RunOwn(Block& root);
  // Whether each block of rows is some whole micro tiles.
  bool RowsAreWhole() {
    if (plan_.row_part && (plan_.row_part->step == 0 || plan_.row_part->is_window)) return false;
    const int64_t step = plan_.row_part ? plan_.row_part->step : 0;
    return step % plan_.tile_rows == 0 && ints_.Mod(plan_.num_rows, plan_.tile_rows).is_const(0);
  }
  // Whether the last rows of a block that are no whole micro tile are multiplied with those before
  // them, once more, in place.
  bool RowsOverlap() {
    return plan_.row_load != nullptr && !plan_.row_part && !RowsAreWhole() &&
           plan_.num_rows.is_const() && plan_.num_rows.value() >= plan_.tile_rows;
  }
  FlatRange RangeOf(const std::optional<TilePart>& part, IntExpr all) {
    return part ? FlatRange{part->begin, part->end} : FlatRange{ints_.Const(0), all};
  }
  FlatRange AllRows() { return RangeOf(plan_.row_part, plan_.num_rows); }
  FlatRange AllLanes() { return RangeOf(plan_.lane_part, plan_.num_lanes); }
  FlatRange AllK() { return RangeOf(plan_.k_part, plan_.num_k); }
  IntExpr NumK() { return ints_.Sub(AllK().end, AllK().begin); }
  // The place of the point of k at hand.
  IntExpr PlaceOfK() { return ints_.Sub(Flat(plan_.k), AllK().begin); }
  // With what pairs are filled up with.
  IntExpr DepthOf(IntExpr k) {
    return plan_.pairs() ? ints_.Mul(ints_.CeilDiv(k, ints_.Const(2)), 2) : k;
  }
  IntExpr Depth() { return plan_.k_part ? DepthOf(NumK()) : plan_.depth; }
  IntExpr MostDepth() {
    if (!plan_.k_part || plan_.k_part->step == 0) return plan_.depth;
    return DepthOf(ints_.Min(plan_.num_k, ints_.Const(plan_.k_part->step)));
  }

  ir::IntContext& ints_;
  const Nest& nest_;
  const ContractionPlan plan_;
  Builder builder_;
  FlatLoops flat_{nest_, plan_, builder_};
  const int width_;       // of a panel
  const IntExpr panels_;  // of a batch
  const IntExpr depth_;   // of packed rows and panels, at most
  const IntExpr panel_size_;
  IntExpr panel_group_;  // panels that together take half of the second-level cache
  AllocId rows_ = -1;    // scratch memory for rows
};

Block& ContractionScheduler::AddBatches(Block& out) {
  Block* at = &out;
  for (IntExpr var : plan_.batch) {
    at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  }
  return *at;
}

// Where `load` reads for the first of `vars` and of k.
IntExpr ContractionScheduler::OriginOf(const Step& load, const std::vector<IntExpr>& vars) {
  ir::IntContext::VarMap origin;
  for (IntExpr var : vars) origin[var] = ints_.Const(0);
  for (IntExpr var : plan_.k) origin[var] = AllK().begin;
  return ints_.Substitute(load.index, origin);
}

AllocId ContractionScheduler::OpenRowScratch(Block& out) {
  if (plan_.row_load != nullptr && (RowsAreWhole() || RowsOverlap())) return -1;  // all in place
  const int rows = plan_.row_load == nullptr ? plan_.block_rows() : plan_.tile_rows;
  return builder_.Open({plan_.operand_type, ints_.Mul(depth_, rows), Space::kL2, {}, false}, out);
}

FlatRange ContractionScheduler::LanesOf(IntExpr panel, Block& out) {
  const FlatRange all = AllLanes();
  const IntExpr begin = Let(ints_.Add(all.begin, ints_.Mul(panel, width_)), plan_.num_lanes, out);
  return {begin, Let(ints_.Min(ints_.Add(begin, width_), all.end), plan_.num_lanes, out)};
}

// out[k][lane], with zeros where the last panel has no lanes.
void ContractionScheduler::PackPanel(IntExpr panel, const Window& to, Block& out) {
  const FlatRange lanes = LanesOf(panel, out);
  const IntExpr count = ints_.Sub(lanes.end, lanes.begin);
  const Micro zero{MicroKind::kZero, {}, {to}, {panel_size_}};
  if (Depth() != NumK()) {
    out.push_back({zero});
  } else if (plan_.lane_part || !ints_.Mod(plan_.num_lanes, width_).is_const(0)) {
    out.push_back({If{count, ints_.Const(width_), {{zero}}, {}}});
  }
  if (plan_.panel_load != nullptr) {
    const Step& load = *plan_.panel_load;
    const IntExpr from =
        ints_.Add(OriginOf(load, plan_.lanes), ints_.Mul(lanes.begin, plan_.lane_stride));
    out.push_back({PackLanes(ints_, plan_.pairs(), width_, to, {load.inst->buffer, -1, from},
                             plan_.lane_stride, count, NumK())});
    return;
  }
  if (!plan_.pairs()) return PackAnyPanel(lanes, to, out);
  const auto interleave = [&](const Window& from, IntExpr k_stride) {
    out.push_back({Micro{MicroKind::kInterleave, {width_}, {to, from}, {k_stride, count, NumK()}}});
  };
  if (plan_.panel_rows_load != nullptr) {
    const Step& load = *plan_.panel_rows_load;
    interleave({load.inst->buffer, -1, ints_.Add(OriginOf(load, plan_.lanes), lanes.begin)},
               plan_.panel_k_stride);
    return;
  }
  const Alloc rows{plan_.operand_type, ints_.Mul(depth_, width_), Space::kL2, {}, false};
  const Window plain{-1, builder_.Open(rows, out), ints_.Const(0)};
  PackAnyPanel(lanes, plain, out);
  interleave(plain, ints_.Const(width_));
}

// The last loop over k that no mask of `steps` depends on, where there are masks; null if there is
// none.
IntExpr ContractionScheduler::UnmaskedK(const std::vector<const Step*>& steps) {
  IntExpr last;
  bool has_masks = false;
  for (IntExpr var : plan_.k) {
    bool is_in_masks = false;
    for (const Step* step : steps) {
      if (step->inst->op == ir::ScalarOp::kLoad || !step->index) continue;
      has_masks = true;
      is_in_masks |= ContainsVar(step->index, var);
    }
    if (!is_in_masks) last = var;
  }
  return has_masks ? last : IntExpr();
}

// PackBeside, all elements of a run at a time.
void ContractionScheduler::PackRuns(const ShortRuns& runs, const std::vector<IntExpr>& vars,
                                    const FlatRange& range, int width, const Window& to,
                                    Block& out) {
  Block* at = &out;
  for (IntExpr var : runs.others) at = &builder_.AddLoop(builder_.Whole(var), *at);
  ir::IntContext::VarMap origin;
  for (IntExpr var : vars) origin[var] = ints_.Const(0);
  for (IntExpr var : runs.run) origin[var] = ints_.Const(0);
  const IntExpr from = ints_.Add(ints_.Substitute(runs.load->index, origin),
                                 ints_.Mul(range.begin, runs.lane_stride));
  const IntExpr place = ints_.Mul(ints_.Substitute(PlaceOfK(), origin), width);
  at->push_back({Micro{
      MicroKind::kPackTransposed,
      {},
      {{to.buffer, to.alloc, ints_.Add(to.index, place)}, {runs.load->inst->buffer, -1, from}},
      {runs.lane_stride, ints_.Sub(range.end, range.begin), NumPoints(ints_, runs.run),
       ints_.Mul(runs.run_stride, width)}}});
}

// to[k][place in `range` of `width`] of an operand of any kind. A mask is computed for several
// points of k that share it: so few that their lines keep out of each other's way in the
// first-level cache, however far apart they are.
void ContractionScheduler::PackBeside(ir::ValueId value, DType type,
                                      const std::vector<IntExpr>& vars, const FlatRange& range,
                                      int width, const Window& to, Block& out) {
  constexpr int64_t kSharing = 8;
  const std::vector<const Step*> steps = Closure(nest_.phases[0], value);
  if (!plan_.k_part) {
    if (const auto runs = FindShortRuns(ints_, steps, vars, plan_.k, type)) {
      return PackRuns(*runs, vars, range, width, to, out);
    }
  }
  const IntExpr sharing = UnmaskedK(steps);
  const auto pack = [&](const Loop& run, IntExpr place, Block& at) {
    std::vector<Loop> loops;
    for (IntExpr var : plan_.k) {
      if (var != sharing) loops.push_back(builder_.Whole(var));
    }
    loops.push_back({run.var, run.begin, run.end, Binding::kVector, plan_.vector_lanes});
    Block* body = &at;
    if (sharing) {
      const Loop all = builder_.Whole(sharing);
      IntExpr first;
      body = &builder_.AddSteps(first, Extent(ints_, sharing), all.begin, all.end,
                                ints_.Const(kSharing), Binding::kSerial, at);
      loops.push_back({sharing, first, ints_.Min(ints_.Add(first, kSharing), all.end)});
    }
    const IntExpr index = ints_.Add(to.index, ints_.Add(ints_.Mul(PlaceOfK(), width), place));
    builder_.AddNest(
        steps, loops, [](Block&) {},
        [&](Block& innermost) { builder_.AddStore(value, type, to.alloc, index, innermost); },
        *body);
  };
  flat_.AddRuns(vars, range, pack, out);
}

// [k][row], or [row][k] of pairs; zeros where the block has no rows.
void ContractionScheduler::PackTurnedRows(const FlatRange& rows, Block& out) {
  const Window to{-1, rows_, ints_.Const(0)};
  const IntExpr count = ints_.Sub(rows.end, rows.begin), most = ints_.Const(plan_.block_rows());
  const Micro zero{MicroKind::kZero, {}, {to}, {ints_.Mul(depth_, most)}};
  if (plan_.pairs() && Depth() != NumK()) {
    out.push_back({zero});
  } else if (plan_.row_part || !ints_.Mod(plan_.num_rows, most).is_const(0)) {
    out.push_back({If{count, most, {{zero}}, {}}});
  }
  if (plan_.rows_beside) {
    PackBeside(plan_.row_value, plan_.operand_type, plan_.rows, rows, plan_.block_rows(), to, out);
    return;
  }
  const Step& load = *plan_.turned_load;
  const Window from{load.inst->buffer, -1, ints_.Add(OriginOf(load, plan_.rows), rows.begin)};
  out.push_back({PackLanes(ints_, /*pairs=*/false, static_cast<int>(depth_.value()), to, from,
                           plan_.k_stride, NumK(), count)});
}

// rows[r][k] in whole micro tiles, the last row again and again where there are fewer.
void ContractionScheduler::PackRows(const FlatRange& rows, Block& out) {
  const IntExpr tiles =
      ints_.CeilDiv(ints_.Sub(rows.end, rows.begin), ints_.Const(plan_.tile_rows));
  const IntExpr count = ints_.Mul(tiles, plan_.tile_rows);
  IntExpr r;
  if (Depth() != NumK()) {
    out.push_back(
        {Micro{MicroKind::kZero, {}, {{-1, rows_, ints_.Const(0)}}, {ints_.Mul(count, depth_)}}});
  }
  Block& body = builder_.AddSteps(r, ints_.Const(plan_.block_rows()), ints_.Const(0), count,
                                  ints_.Const(1), Binding::kSerial, out);
  const IntExpr row =
      Let(ints_.Min(ints_.Add(rows.begin, r), ints_.Add(AllRows().end, -1)), plan_.num_rows, body);
  flat_.Decode(row, plan_.rows, body);
  std::vector<Loop> loops;
  for (IntExpr var : plan_.k) loops.push_back(builder_.Whole(var));
  loops.back().binding = Binding::kVector;
  loops.back().width = plan_.vector_lanes;
  const IntExpr index = ints_.Add(ints_.Mul(r, depth_), PlaceOfK());
  builder_.AddNest(
      Closure(nest_.phases[0], plan_.row_value), loops, [](Block&) {},
      [&](Block& at) { builder_.AddStore(plan_.row_value, plan_.operand_type, rows_, index, at); },
      body);
}

// The rows that are no whole micro tile, filled up, so that the one micro-kernel serves.
void ContractionScheduler::CopyLastRows(IntExpr row_begin, IntExpr row_end, Block& out) {
  const IntExpr rest =
      Let(ints_.Mod(ints_.Sub(row_end, row_begin), plan_.tile_rows), plan_.num_rows, out);
  const IntExpr from = ints_.Add(OriginOf(*plan_.row_load, plan_.rows),
                                 ints_.Mul(ints_.Sub(row_end, rest), plan_.row_stride));
  const Micro copy{MicroKind::kCopyRows,
                   {plan_.tile_rows},
                   {{-1, rows_, ints_.Const(0)}, {plan_.row_load->inst->buffer, -1, from}},
                   {rest, plan_.row_stride, plan_.k_stride, NumK()}};
  out.push_back({If{ints_.Const(0), rest, {{copy}}, {}}});
}

// The sums of `rows`, the first of the tile's and those behind it, with one panel.
void ContractionScheduler::Multiply(AllocId tile, const FlatRange& rows, const Window& panel,
                                    Block& out) {
  const IntExpr step = ints_.Const(plan_.tile_rows), one = ints_.Const(1);
  IntExpr first = rows.begin;
  Block* at = &out;
  if (plan_.row_groups > 1) {
    IntExpr g;
    const IntExpr groups = ints_.CeilDiv(ints_.Sub(rows.end, rows.begin), step);
    at = &builder_.AddSteps(g, ints_.Const(plan_.row_groups), ints_.Const(0), groups, one,
                            Binding::kSerial, out);
    first = ints_.Add(rows.begin, ints_.Mul(g, step));
    if (RowsOverlap()) {
      first = Let(ints_.Min(first, ints_.Sub(rows.end, step)), plan_.num_rows, *at);
    }
  }
  const IntExpr place = ints_.Sub(first, rows.begin);
  const auto multiply = [&](const Window& a, IntExpr row_stride, IntExpr k_stride) {
    Micro micro{plan_.pairs() ? MicroKind::kMultiplyPairs : MicroKind::kMultiply,
                {plan_.vector_lanes, plan_.tile_rows, plan_.tile_vectors},
                {{-1, tile, ints_.Mul(place, width_)}, a, panel},
                {Depth(), row_stride}};
    if (!plan_.pairs()) micro.sizes.push_back(k_stride);
    return micro;
  };
  if (plan_.row_load == nullptr) {
    const IntExpr row_stride = plan_.rows_beside ? one : depth_;
    const IntExpr k_stride = plan_.rows_beside ? ints_.Const(plan_.block_rows()) : one;
    at->push_back({multiply({-1, rows_, ints_.Mul(place, row_stride)}, row_stride, k_stride)});
    return;
  }
  const IntExpr from =
      ints_.Add(OriginOf(*plan_.row_load, plan_.rows), ints_.Mul(first, plan_.row_stride));
  const Micro in_place =
      multiply({plan_.row_load->inst->buffer, -1, from}, plan_.row_stride, plan_.k_stride);
  if (RowsAreWhole() || RowsOverlap()) {
    at->push_back({in_place});
  } else {
    const Micro copied = multiply({-1, rows_, ints_.Const(0)}, NumK(), one);
    at->push_back({If{ints_.Sub(rows.end, first), step, {{copied}}, {{in_place}}}});
  }
}

void ContractionScheduler::AddBlocks(const FlatRange& rows, const FlatRange& panels,
                                     const std::function<Window(IntExpr panel)>& panel_at,
                                     Block& out) {
  IntExpr row_begin, panel;
  Block& block = builder_.AddSteps(row_begin, plan_.num_rows, rows.begin, rows.end,
                                   ints_.Const(plan_.block_rows()), Binding::kSerial, out);
  const IntExpr row_end =
      Let(ints_.Min(ints_.Add(row_begin, plan_.block_rows()), rows.end), plan_.num_rows, block);
  if (plan_.rows_beside || plan_.turned_load != nullptr) {
    PackTurnedRows({row_begin, row_end}, block);
  } else if (plan_.row_load == nullptr) {
    PackRows({row_begin, row_end}, block);
  } else if (!RowsAreWhole() && !RowsOverlap()) {
    CopyLastRows(row_begin, row_end, block);
  }
  IntExpr first = row_begin;  // of the tile
  if (RowsOverlap()) {
    first = Let(ints_.Min(row_begin, ints_.Sub(row_end, ints_.Const(plan_.tile_rows))),
                plan_.num_rows, block);
  }
  Block& body = builder_.AddSteps(panel, panels_, panels.begin, panels.end, ints_.Const(1),
                                  Binding::kSerial, block);
  const Alloc sums{
      plan_.type, ints_.Const(int64_t{plan_.block_rows()} * width_), Space::kL1, {}, false};
  AllocId tile = builder_.Open(sums, body);
  Multiply(tile, {first, row_end}, panel_at(panel), body);
  if (plan_.store_along_rows) {
    const AllocId turned = builder_.Open(sums, body);
    const IntExpr zero = ints_.Const(0);
    body.push_back({Micro{MicroKind::kTranspose,
                          {plan_.block_rows(), width_},
                          {{-1, turned, zero}, {-1, tile, zero}},
                          {}}});
    tile = turned;
  }
  const FlatRange lanes = LanesOf(panel, body);
  const int pitch = plan_.store_along_rows ? plan_.block_rows() : width_;
  flat_.Finish({tile, first, pitch}, {row_begin, row_end}, lanes, body);
}

Window ContractionScheduler::PanelOf(const Window& panels, IntExpr panel) {
  const IntExpr number = ints_.Add(ints_.Mul(Flat(plan_.batch), panels_), panel);
  const IntExpr each = ints_.Mul(plan_.panel_rows(ints_), width_);
  return {panels.buffer, panels.alloc, ints_.Mul(number, each)};
}

// Few panels for many rows: packed once, for all tasks, which split the rows.
void ContractionScheduler::RunShared(Block& root) {
  Window panels{-1, -1, ints_.Const(0)};
  IntExpr panel, first;
  if (plan_.packed_load != nullptr) {
    panels.buffer = plan_.packed_load->inst->buffer;
  } else {
    const IntExpr size = ints_.Mul(ints_.Mul(plan_.num_batches, panels_), panel_size_);
    panels.alloc = builder_.Open({plan_.panel_type, size, Space::kGlobal, {}, false}, root);
    Block& packing = builder_.AddSteps(panel, panels_, ints_.Const(0), panels_, ints_.Const(1),
                                       Binding::kTask, AddBatches(root));
    PackPanel(panel, PanelOf(panels, panel), packing);
  }

  const auto add_groups = [&](IntExpr group, Binding binding, Block& out) -> Block& {
    return builder_.AddSteps(first, panels_, ints_.Const(0), panels_, group, binding, out);
  };
  const auto add_blocks = [&](const FlatRange& rows, IntExpr group, Block& out) {
    const IntExpr last = Let(ints_.Min(ints_.Add(first, group), panels_), panels_, out);
    AddBlocks(rows, {first, last}, [&](IntExpr number) { return PanelOf(panels, number); }, out);
  };
  IntExpr begin, end;
  if (plan_.packed_load != nullptr && plan_.row_load == nullptr) {
    // Rows are packed for as many panels as there are; those come from wherever they lie.
    const IntExpr group = ints_.CeilDiv(panels_, ints_.Const(kGroupsOfPrepared));
    const IntExpr copies = ints_.Mul(plan_.num_batches, kGroupsOfPrepared);
    Block& task = builder_.AddTaskRuns(plan_.num_rows, plan_.block_rows(), copies, begin, end,
                                       add_groups(group, Binding::kTask, AddBatches(root)));
    rows_ = OpenRowScratch(task);
    return add_blocks({begin, end}, group, task);
  }
  Block& task = builder_.AddTaskRuns(plan_.num_rows, plan_.block_rows(), plan_.num_batches, begin,
                                     end, AddBatches(root));
  rows_ = OpenRowScratch(task);
  add_blocks({begin, end}, panel_group_, add_groups(panel_group_, Binding::kSerial, task));
}

// A task packs the panel that it uses, where nobody has before.
void ContractionScheduler::RunOwn(Block& root) {
  IntExpr panel;
  const IntExpr panels =
      ints_.CeilDiv(ints_.Sub(AllLanes().end, AllLanes().begin), ints_.Const(width_));
  Block& task = builder_.AddSteps(panel, panels_, ints_.Const(0), panels, ints_.Const(1),
                                  Binding::kTask, AddBatches(root));
  Window own{-1, -1, ints_.Const(0)};
  if (plan_.packed_load != nullptr) {
    own = PanelOf({plan_.packed_load->inst->buffer, -1, own.index}, panel);
  } else {
    own.alloc = builder_.Open({plan_.panel_type, panel_size_, Space::kL2, {}, false}, task);
  }
  rows_ = OpenRowScratch(task);
  if (plan_.packed_load == nullptr) PackPanel(panel, own, task);
  AddBlocks(AllRows(), {panel, ints_.Add(panel, 1)}, [&](IntExpr) { return own; }, task);
}

Tree ContractionScheduler::Run() && {
  Block root;
  if (plan_.split_rows) {
    RunShared(root);
  } else {
    RunOwn(root);
  }
  builder_.tree().body = std::move(root);
  builder_.tree().reasons.push_back(plan_.reason);
  return std::move(builder_.tree());
}

}  // namespace

Tree ScheduleContraction(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                         ContractionPlan plan, int64_t l2_bytes) {
  return ContractionScheduler(module, kernel, nest, std::move(plan), l2_bytes).Run();
}

}  // namespace kiln::schedule::cpu
