#include "compiler/schedule/cpu/winograd.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/cache_hints.h"
#include "compiler/schedule/cpu/flat_loops.h"

namespace kiln::schedule::cpu {
namespace {

using ir::IntExpr;

constexpr int64_t kTransposed = 4;  // the transpose tile takes multiples of so many rows

int64_t RoundUp(int64_t count, int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

class WinogradScheduler {
 public:
  WinogradScheduler(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                    const WinogradPlan& plan, const DeviceInfo& device)
      : ints_(*module.ints),
        plan_(plan),
        sums_(plan.contraction),
        builder_(module, kernel, nest),
        flat_(nest, sums_, builder_),
        l1_bytes_(device.l1_bytes),
        width_(sums_.panel_width()),
        pitch_(std::max<int64_t>(plan.block_tiles(), sums_.tile_rows)),
        plane_(plan.channels * pitch_ + sums_.vector_lanes),
        most_places_(RoundUp(2 * plan.block_rows * plan.width.places, kTransposed)) {}

  Tree Run() &&;

 private:
  IntExpr Const(int64_t value) { return ints_.Const(value); }
  Window Image() { return {plan_.image->inst->buffer, -1, plan_.origin}; }
  AllocId OpenFloats(int64_t size, Space space, Block& out) {
    return builder_.Open({DType::kF32, Const(size), space, {}, false}, out);
  }
  Block& AddTasks(IntExpr& group, IntExpr& groups, IntExpr& block, Block& out);
  void OpenScratch(Block& out);
  void Transform(Block& out);
  void AddPanel(IntExpr panel, Block& out);
  void Multiply(const Window& planes, Block& out);

  ir::IntContext& ints_;
  const WinogradPlan& plan_;
  const ContractionPlan& sums_;
  Builder builder_;
  FlatLoops flat_;
  const int64_t l1_bytes_;
  const int64_t width_;          // of a panel
  const int64_t pitch_, plane_;  // of transformed tiles: from channel to channel, plane to plane
  const int64_t most_places_;    // of a block, in whole steps of the transpose
  AllocId tiles_ = -1, products_ = -1, places_ = -1, turned_ = -1;
  IntExpr first_tile_, tile_rows_;  // of the task's block: rows of tiles
};

// Blocks of tiles, beside each other for several groups of panels where there are too few blocks
// for all threads: each group transforms the tiles anew.
Block& WinogradScheduler::AddTasks(IntExpr& group, IntExpr& groups, IntExpr& block, Block& out) {
  constexpr int64_t kTasksPerThread = 6, kFewBlocks = 4;
  Block* at = &out;
  for (IntExpr var : sums_.batch) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  const IntExpr one = Const(1), zero = Const(0);
  const IntExpr threads = builder_.tree().threads = ints_.NewVar(Const(kMostThreads));
  const IntExpr blocks = ints_.CeilDiv(Const(plan_.height.tiles()), Const(plan_.block_rows));
  const IntExpr all_blocks = ints_.Mul(sums_.num_batches, blocks);
  const IntExpr panels = ints_.CeilDiv(sums_.num_lanes, Const(width_));
  groups = ints_.Max(one, ints_.Min(panels, ints_.CeilDiv(ints_.Mul(threads, kTasksPerThread),
                                                          ints_.Add(all_blocks, kFewBlocks))));
  at = &builder_.AddSteps(group, groups, zero, groups, one, Binding::kTask, *at);
  return builder_.AddSteps(block, blocks, zero, blocks, one, Binding::kTask, *at);
}

void WinogradScheduler::OpenScratch(Block& out) {
  tiles_ = OpenFloats(kWinogradPlanes * plane_, Space::kL2, out);
  products_ = OpenFloats(kWinogradPlanes * pitch_ * width_, Space::kL2, out);
  const int64_t size = most_places_ * width_;
  const Space space = TaskSpace(2 * size * DTypeSize(DType::kF32), l1_bytes_);
  places_ = OpenFloats(size, space, out);
  if (sums_.store_along_rows) turned_ = OpenFloats(size, space, out);
}

void WinogradScheduler::Transform(Block& out) {
  const int64_t columns = plan_.width.tiles();
  const Window to{-1, tiles_, Const(0)};
  // Of a block with too few tiles the others of a product are zeros.
  const int64_t last_rows = (plan_.height.tiles() - 1) % plan_.block_rows + 1;
  if (last_rows * columns < sums_.tile_rows) {
    const Micro zero{MicroKind::kZero, {}, {to}, {Const(kWinogradPlanes * plane_)}};
    out.push_back({If{ints_.Mul(tile_rows_, columns), Const(sums_.tile_rows), {{zero}}, {}}});
  }
  out.push_back({Micro{
      MicroKind::kWinogradImage,
      {columns > sums_.vector_lanes / 2 ? sums_.vector_lanes : std::max(sums_.vector_lanes / 2, 4)},
      {to, Image()},
      {Const(plan_.channels), Const(plan_.channel_stride), Const(plan_.height.size),
       Const(plan_.height.stride), Const(plan_.width.size),
       ints_.Add(ints_.Mul(first_tile_, 2), -plan_.height.before), Const(-plan_.width.before),
       tile_rows_, Const(columns), Const(pitch_), Const(plane_)}}});
}

// products[plane][tile][lane] of the block's tiles with one panel.
void WinogradScheduler::Multiply(const Window& planes, Block& out) {
  const IntExpr one = Const(1), zero = Const(0), rows = Const(sums_.tile_rows);
  const IntExpr tiles = ints_.Mul(tile_rows_, plan_.width.tiles());
  IntExpr plane, group;
  Block& of_plane = builder_.AddSteps(plane, Const(kWinogradPlanes), zero, Const(kWinogradPlanes),
                                      one, Binding::kSerial, out);
  Block& body = builder_.AddSteps(group, ints_.CeilDiv(Const(pitch_), rows), zero,
                                  ints_.CeilDiv(tiles, rows), one, Binding::kSerial, of_plane);
  // The last ones are multiplied with some before them once more.
  const IntExpr last = ints_.Max(zero, ints_.Sub(tiles, rows));
  const IntExpr first =
      builder_.Let(ints_.Min(ints_.Mul(group, sums_.tile_rows), last), Const(pitch_), body);
  const IntExpr product = ints_.Mul(ints_.Add(ints_.Mul(plane, pitch_), first), width_);
  body.push_back({Micro{
      MicroKind::kMultiply,
      {sums_.vector_lanes, sums_.tile_rows, sums_.tile_vectors},
      {{-1, products_, product},
       {-1, tiles_, ints_.Add(ints_.Mul(plane, plane_), first)},
       {planes.buffer, -1, ints_.Add(planes.index, ints_.Mul(plane, plan_.channels * width_))}},
      {Const(plan_.channels), one, Const(pitch_)}}});
}

void WinogradScheduler::AddPanel(IntExpr panel, Block& out) {
  const int64_t columns = plan_.width.places, tap_rows = kWinogradTaps * plan_.channels;
  const Window panels{sums_.packed_load->inst->buffer, -1,
                      ints_.Mul(panel, ints_.Mul(sums_.panel_rows(ints_), width_))};
  Multiply({panels.buffer, -1, ints_.Add(panels.index, tap_rows * width_)}, out);

  const IntExpr zero = Const(0), first_row = builder_.Let(ints_.Mul(first_tile_, 2),
                                                          Const(plan_.height.places), out);
  const IntExpr end_row = builder_.Let(
      ints_.Min(ints_.Add(first_row, ints_.Mul(tile_rows_, 2)), Const(plan_.height.places)),
      Const(plan_.height.places), out);
  out.push_back(
      {Micro{MicroKind::kWinogradSums,
             {sums_.vector_lanes, sums_.tile_vectors},
             {{-1, places_, zero}, {-1, products_, zero}, Image(), panels},
             {Const(pitch_), Const(plan_.width.tiles()), Const(plan_.channels),
              Const(plan_.channel_stride), Const(plan_.height.size), Const(plan_.height.stride),
              Const(plan_.width.size), ints_.Add(first_row, -plan_.height.before),
              Const(-plan_.width.before), ints_.Sub(end_row, first_row), Const(columns)}}});
  const bool along_rows = sums_.store_along_rows;
  if (along_rows) {
    out.push_back({Micro{MicroKind::kTranspose,
                         {static_cast<int>(most_places_), static_cast<int>(width_)},
                         {{-1, turned_, zero}, {-1, places_, zero}},
                         {}}});
  }
  const FlatRange rows{ints_.Mul(first_row, columns), ints_.Mul(end_row, columns)};
  const IntExpr lane = builder_.Let(ints_.Mul(panel, width_), sums_.num_lanes, out);
  const FlatRange lanes{lane, builder_.Let(ints_.Min(ints_.Add(lane, width_), sums_.num_lanes),
                                           sums_.num_lanes, out)};
  const SumTile tile{along_rows ? turned_ : places_, rows.begin,
                     along_rows ? most_places_ : width_};
  flat_.Finish(tile, rows, lanes, out);
}

Tree WinogradScheduler::Run() && {
  Block root;
  IntExpr group, groups, block, panel;
  Block& task = AddTasks(group, groups, block, root);
  const int64_t tile_rows = plan_.height.tiles();
  first_tile_ = builder_.Let(ints_.Mul(block, plan_.block_rows), Const(tile_rows), task);
  tile_rows_ =
      builder_.Let(ints_.Min(Const(plan_.block_rows), ints_.Sub(Const(tile_rows), first_tile_)),
                   Const(plan_.block_rows), task);
  OpenScratch(task);
  Transform(task);
  const IntExpr panels = ints_.CeilDiv(sums_.num_lanes, Const(width_));
  const auto begin = [&](IntExpr number) {
    return ints_.FloorDiv(ints_.Mul(panels, number), groups);
  };
  const IntExpr first = builder_.Let(begin(group), panels, task);
  const IntExpr end = builder_.Let(begin(ints_.Add(group, 1)), panels, task);
  Block& body = builder_.AddSteps(panel, panels, first, end, Const(1), Binding::kSerial, task);
  AddPanel(panel, body);
  builder_.tree().body = std::move(root);
  builder_.tree().reasons.push_back(sums_.reason);
  return std::move(builder_.tree());
}

}  // namespace

Tree ScheduleWinograd(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                      const WinogradPlan& plan, const DeviceInfo& device) {
  return WinogradScheduler(module, kernel, nest, plan, device).Run();
}

}  // namespace kiln::schedule::cpu
