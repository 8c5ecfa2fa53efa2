#include "compiler/schedule/cpu/loops.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/cache_hints.h"
#include "compiler/schedule/cpu/channel_windows.h"
#include "compiler/schedule/cpu/column_sums.h"
#include "compiler/schedule/cpu/interior.h"
#include "compiler/schedule/cpu/row_dots.h"
#include "compiler/schedule/cpu/segments.h"
#include "compiler/schedule/cpu/staged_windows.h"
#include "compiler/schedule/kept_values.h"
#include "compiler/schedule/row_scheduler.h"

namespace kiln::schedule::cpu {
namespace {

using ir::IntExpr;
using ir::ScalarOp;

// A tile of a transposing kernel reads pieces of so many bytes, one from each of as many rows of
// what it turns as the tile has lanes. Of shorter ones neither the memory nor its prefetchers make
// good use. Where a kernel is large, tiles turned in the second-level cache are a quarter faster
// than smaller ones in the first, as each piece is nearer to a page.
struct TileShape {
  int piece_bytes, lanes;
};
constexpr TileShape kTileShapes[] = {{1024, 128}, {1024, 64}, {512, 64}, {256, 64}};
constexpr int64_t kLeastTiles = 32;  // for threads to share

// Where all comes from memory, a tile is turned in squares of whole cache lines that never leave
// the first-level cache, and the lines of the squares to come are asked for: memory then waits for
// neither the turning nor the arithmetic. Not where rows begin within lines, as each square would
// cut lines in two, nor where the lines that a square turns lie so far apart that memory has to
// open a page of its own for each.
constexpr TileShape kShapesOfSquares[] = {{512, 128}, {512, 64}, {256, 64}};
constexpr int64_t kLineBytes = 64, kLeastSquare = 16;
constexpr int64_t kMostSquareBytes = 2 << 20;                // from its first line to its last
constexpr int64_t kSquaresAhead = 2, kLeastLanesAhead = 64;  // of what is turned
constexpr int64_t kRowBytesAhead = 256;                      // of what is not

class LoopsScheduler {
 public:
  LoopsScheduler(ir::Module& module, const ir::Kernel& kernel, Nest nest, VectorPlan plan,
                 const DeviceInfo& device)
      : ints_(*module.ints),
        nest_(std::move(nest)),
        plan_(std::move(plan)),
        builder_(module, kernel, nest_),
        row_(*this),
        prefetches_(PlanPrefetches(ints_, module, nest_, plan_, device)),
        num_values_(kernel.num_values),
        l1_bytes_(device.l1_bytes),
        l2_bytes_(device.l2_bytes) {
    Because(plan_.reason);
    absl::flat_hash_set<ir::BufferId> streamed = StreamedBuffers(ints_, module, nest_, device);
    streams_ = !streamed.empty();
    if (streams_) Because("stores go past the caches, which all of it would not fit");
    if (!prefetches_.empty() && !LanesMayBeInnermost()) Because("rows to come are fetched ahead");
    builder_.MarkStreamed(std::move(streamed));
    for (IntExpr var : nest_.outer) {
      if (!(plan_.outer && var == plan_.lanes.var) && var != plan_.row_var) rows_.push_back(var);
    }
  }

  Tree Run() &&;

 private:
  struct TurnedLoad {
    AllocId alloc;
    IntExpr index;
  };
  // With loads from tiles that were turned, and prefetches.
  class Row : public RowScheduler {
   public:
    explicit Row(LoopsScheduler& all)
        : RowScheduler(all.builder_, all.nest_, all.plan_), all_(all) {}

   private:
    void AddStep(const NestPhase& phase, const Step& step, Block& out) override;

    LoopsScheduler& all_;
  };

  Loop LanesLoop(Binding binding);
  void ChooseTile();
  void AddTiledRows(Block& out);
  Block& AddPieces(Loop& loop, int64_t step, Binding binding, Block& out);
  void AddSquares(const Loop& rows, const Loop& lanes, Block& out);
  bool SuitsSquares(int64_t square_lanes);
  bool IsTurned(const Step& step);
  bool LanesMayBeInnermost() const;
  void AddInnermostLanes(Block& out);
  void AddTurnedLoads(const Loop& rows, const Loop& lanes, Block& out);
  void AddRowBody(const Loop& lanes, Block& out);
  void AddSegments(const Segments& segments, const Loop& lanes, Block& out);
  void AddInterior(const Interior& interior, const Loop& lanes, Block& out);
  void Because(std::string reason) { builder_.tree().reasons.push_back(std::move(reason)); }

  ir::IntContext& ints_;
  Nest nest_;
  const VectorPlan plan_;
  Builder builder_;
  Row row_;
  const absl::flat_hash_map<const ir::Inst*, IntExpr> prefetches_;
  const int num_values_;
  const int64_t l1_bytes_, l2_bytes_;
  std::vector<IntExpr> rows_;           // outer loops but for lanes and row_var
  bool streams_ = false;                // past the caches
  int tile_rows_ = 0, tile_lanes_ = 0;  // where the plan has tiles
  int64_t square_ = 0;                  // the side of one; 0: a tile is turned at once
  absl::flat_hash_map<const ir::Inst*, TurnedLoad> turned_;
};

void LoopsScheduler::Row::AddStep(const NestPhase& phase, const Step& step, Block& out) {
  if (const auto turned = all_.turned_.find(step.inst); turned != all_.turned_.end()) {
    builder_.AddLoad(step.inst->result, step.inst->dtype, turned->second.alloc,
                     turned->second.index, out);
    return;
  }
  if (const auto ahead = all_.prefetches_.find(step.inst); ahead != all_.prefetches_.end()) {
    out.push_back({Prefetch{step.inst->buffer, ahead->second, lanes().width}});
  }
  RowScheduler::AddStep(phase, step, out);
}

// Over all lanes of the outer loop that has them; without its vectors where they have one lane.
Loop LoopsScheduler::LanesLoop(Binding binding) {
  if (plan_.lanes.width == 1) {
    binding = binding == Binding::kTaskVector ? Binding::kTask : Binding::kSerial;
  }
  return builder_.Whole(plan_.lanes.var, binding, plan_.lanes.width);
}

// One loop for each segment of the lanes, or one branch for each of a loop around them.
void LoopsScheduler::AddSegments(const Segments& segments, const Loop& lanes, Block& out) {
  const std::vector<Step> all = nest_.phases[0].steps;
  Block* at = &out;
  for (size_t i = 0; i < segments.steps.size(); ++i) {
    nest_.phases[0].steps = segments.steps[i];
    const bool is_last = i == segments.breaks.size();
    Loop piece = lanes;
    if (segments.var == lanes.var) {
      for (const Step& step : segments.steps[i]) {
        if (step.inst->result >= 0) builder_.Alias(step.inst->result, builder_.NewValue());
      }
      if (i > 0) piece.begin = segments.breaks[i - 1];
      if (!is_last) piece.end = segments.breaks[i];
      row_.AddLanesBody(piece, out);
    } else if (is_last) {
      row_.AddLanesBody(piece, *at);
    } else {
      at->push_back({If{segments.var, segments.breaks[i], {}, {}}});
      If& branch = std::get<If>(at->back().value);
      row_.AddLanesBody(piece, branch.then);
      at = &branch.otherwise;
    }
  }
  nest_.phases[0].steps = all;
}

// The whole vectors inside of all borders without masks, and those on both sides of them; rows of
// the border as they are.
void LoopsScheduler::AddInterior(const Interior& interior, const Loop& lanes, Block& out) {
  Block* inside = &out;
  if (interior.rows) {
    out.push_back({If{interior.rows, ints_.Const(1), {}, {}}});
    If& branch = std::get<If>(out.back().value);
    row_.AddLanesBody(lanes, branch.otherwise);
    inside = &branch.then;
  }
  const std::vector<NestPhase> all = nest_.phases;
  const auto add = [&](const std::vector<std::vector<Step>>& steps, IntExpr begin, IntExpr end) {
    if (begin == end) return;
    for (size_t i = 0; i < steps.size(); ++i) {
      nest_.phases[i].steps = steps[i];
      for (const Step& step : steps[i]) {
        if (step.inst->result < 0 || step.inst->op == ScalarOp::kReduce) continue;
        builder_.Alias(step.inst->result, builder_.NewValue());
      }
    }
    Loop piece = lanes;
    piece.begin = begin;
    piece.end = end;
    row_.AddLanesBody(piece, *inside);
  };
  const IntExpr begin = ints_.Const(interior.begin), end = ints_.Const(interior.end);
  add(interior.row_steps, lanes.begin, begin);
  add(interior.steps, begin, end);
  add(interior.row_steps, end, lanes.end);
  nest_.phases = all;
}

// Whether each phase with inner loops may run for many lanes before the next begins: nothing is
// carried from one iteration, or from one phase, to another but through memory.
bool LoopsScheduler::LanesMayBeInnermost() const {
  if (!plan_.outer || plan_.row_var || plan_.lanes.width == 1 || nest_.tile != nullptr) {
    return false;
  }
  bool has_loops = false;
  absl::flat_hash_set<ir::ValueId> earlier;
  for (const NestPhase& phase : nest_.phases) {
    has_loops |= !phase.inner.empty();
    std::vector<ir::ValueId> made;
    for (const Step& step : phase.steps) {
      const ir::Inst& inst = *step.inst;
      if (inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) return false;
      for (ir::ValueId id : inst.operands) {
        if (earlier.contains(id)) return false;
      }
      if (inst.result >= 0) made.push_back(inst.result);
    }
    earlier.insert(made.begin(), made.end());
  }
  return has_loops;
}

// A task takes a run of lanes, and walks memory row by row: lanes outermost would walk it in
// columns of one vector.
void LoopsScheduler::AddInnermostLanes(Block& out) {
  constexpr int64_t kLeastLanes = 64;
  Because("lanes innermost, in a run of them for each task");
  const IntExpr var = plan_.lanes.var;
  IntExpr begin, end;
  Block& task = builder_.AddTaskRuns(Extent(ints_, var), kLeastLanes, NumPoints(ints_, rows_),
                                     begin, end, out);
  for (const NestPhase& phase : nest_.phases) {
    std::vector<const Step*> steps;
    for (const Step& step : phase.steps) steps.push_back(&step);
    std::vector<Loop> loops;
    for (IntExpr inner : phase.inner) loops.push_back(builder_.Whole(inner));
    loops.push_back({var, begin, end, Binding::kVector, plan_.lanes.width});
    builder_.AddNest(steps, loops, [](Block&) {}, [](Block&) {}, task);
  }
}

// `lanes` counts where the plan has lanes of an outer loop.
void LoopsScheduler::AddRowBody(const Loop& lanes, Block& out) {
  if (const auto segments = PlanSegments(ints_, nest_, plan_)) {
    Because(absl::StrCat("in ", segments->steps.size(), " segments, where a comparison changes"));
    AddSegments(*segments, lanes, out);
  } else if (const auto interior = PlanInterior(ints_, nest_, plan_)) {
    Because(absl::StrCat("the border apart: lanes ", interior->begin, " to ", interior->end,
                         " need no masks"));
    AddInterior(*interior, lanes, out);
  } else if (plan_.outer) {
    row_.AddLanesBody(lanes, out);
  } else {
    if (row_.Keep(FindKeptValues(ints_, nest_, num_values_, {.most_bytes = l1_bytes_ / 2}),
                  Space::kL1, out)) {
      Because("a row of what two loops compute is kept");
    }
    row_.AddPhases(out);
  }
}

// Whether a tile of rows and lanes turns it.
bool LoopsScheduler::IsTurned(const Step& step) {
  return !builder_.IsStored(step.inst->buffer) &&
         schedule::IsTurned(ints_, step, plan_.row_var, plan_.lanes.var);
}

// Those loads, for a tile: read row by row, turned, and kept as [row][lane].
void LoopsScheduler::AddTurnedLoads(const Loop& rows, const Loop& lanes, Block& out) {
  const int64_t kept_rows = square_ > 0 ? square_ : tile_rows_;
  const int64_t kept_lanes = square_ > 0 ? square_ : tile_lanes_;
  for (const Step& step : nest_.phases[0].steps) {
    if (!IsTurned(step)) continue;
    const ir::Inst& inst = *step.inst;
    const int64_t size = kept_rows * kept_lanes;
    const Space space = TaskSpace(size * DTypeSize(inst.dtype), l1_bytes_);
    const Alloc alloc{inst.dtype, ints_.Const(size), space, {}, false};
    const AllocId turned = builder_.Open(alloc, out);
    const IntExpr from =
        ints_.Substitute(step.index, {{rows.var, rows.begin}, {lanes.var, lanes.begin}});
    const IntExpr along_lane = ints_.CoefficientOf(step.index, lanes.var);
    out.push_back({Micro{MicroKind::kPackTransposed,
                         {},
                         {{-1, turned, ints_.Const(0)}, {inst.buffer, -1, from}},
                         {along_lane, ints_.Sub(lanes.end, lanes.begin),
                          ints_.Sub(rows.end, rows.begin), ints_.Const(kept_lanes)}}});
    turned_[&inst] = {turned, ints_.Add(ints_.Mul(ints_.Sub(rows.var, rows.begin), kept_lanes),
                                        ints_.Sub(lanes.var, lanes.begin))};
  }
}

// Whether all rows in memory begin where a cache line does, if their buffer does, and the lines
// that a square of so many lanes turns lie near to each other.
bool LoopsScheduler::SuitsSquares(int64_t square_lanes) {
  for (const Step& step : nest_.phases[0].steps) {
    const ir::Inst& inst = *step.inst;
    if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) continue;
    if (!ContainsVar(step.index, plan_.lanes.var)) continue;
    const bool is_turned = IsTurned(step);
    const int64_t size = DTypeSize(inst.dtype);
    const auto is_lines = [&](IntExpr elements) {
      return elements && ints_.Mod(ints_.Mul(elements, size), kLineBytes).is_const(0);
    };
    ir::IntContext::VarMap at_first;
    for (IntExpr var : nest_.outer) {
      at_first[var] = ints_.Const(0);
      if (var == (is_turned ? plan_.row_var : plan_.lanes.var)) continue;
      const IntExpr pitch = ints_.CoefficientOf(step.index, var);
      if (!is_lines(pitch)) return false;
      const int64_t bytes = ints_.EvaluateAtHints(pitch) * size;
      const bool is_turned_pitch = is_turned && var == plan_.lanes.var;
      if (is_turned_pitch && square_lanes * std::abs(bytes) > kMostSquareBytes) return false;
    }
    if (!is_lines(ints_.Substitute(step.index, at_first))) return false;
  }
  return true;
}

// The first of the shapes of which there are enough, and whose turned pieces fit their share of the
// second-level cache.
void LoopsScheduler::ChooseTile() {
  int64_t least_size = 8, bytes_of_all = 0, points = 1;
  for (const Step& step : nest_.phases[0].steps) {
    if (!IsTurned(step)) continue;
    const int64_t size = DTypeSize(step.inst->dtype);
    least_size = std::min(least_size, size);
    bytes_of_all += size;
  }
  for (IntExpr var : nest_.outer) points *= ExtentHint(ints_, var);
  absl::Span<const TileShape> shapes = kTileShapes;
  const int64_t square = std::max(kLeastSquare, kLineBytes / least_size);
  if (streams_ && SuitsSquares(square)) {
    square_ = square;
    shapes = kShapesOfSquares;
    Because(absl::StrCat("tiles in squares of ", square_,
                         ", those to come fetched ahead, as all comes from memory"));
  }
  for (const TileShape& shape : shapes) {
    tile_rows_ = static_cast<int>(shape.piece_bytes / least_size);
    tile_lanes_ = shape.lanes;
    const int64_t size = int64_t{tile_rows_} * tile_lanes_;
    if (size * bytes_of_all <= l2_bytes_ / 4 && points >= kLeastTiles * size) break;
  }
  if (square_ == 0) return;
  // Whole squares, and no more than there are.
  const auto limit = [&](int& size, IntExpr var) {
    const int64_t squares =
        (std::min<int64_t>(size, ExtentHint(ints_, var)) + square_ - 1) / square_;
    size = static_cast<int>(std::max<int64_t>(squares, 1) * square_);
  };
  limit(tile_rows_, plan_.row_var);
  limit(tile_lanes_, plan_.lanes.var);
}

// Rows by lanes in tiles, so that what is contiguous along the rows is read in whole cache lines.
void LoopsScheduler::AddTiledRows(Block& out) {
  ChooseTile();
  Block* at = &out;
  for (IntExpr var : rows_) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  Loop rows = builder_.Whole(plan_.row_var), lanes = LanesLoop(Binding::kVector);
  at = &AddPieces(rows, tile_rows_, Binding::kTask, *at);
  at = &AddPieces(lanes, tile_lanes_, Binding::kTask, *at);
  if (square_ > 0) {
    AddSquares(rows, lanes, *at);
  } else {
    AddTurnedLoads(rows, lanes, *at);
    AddRowBody(lanes, builder_.AddLoop(rows, *at));
  }
}

// Steps through `loop`, which becomes one of a step's iterations.
Block& LoopsScheduler::AddPieces(Loop& loop, int64_t step, Binding binding, Block& out) {
  const IntExpr extent = Extent(ints_, loop.var), end = loop.end;
  IntExpr piece;
  Block& at = builder_.AddSteps(piece, extent, loop.begin, end, ints_.Const(step), binding, out);
  loop.begin = piece;
  loop.end = builder_.Let(ints_.Min(ints_.Add(piece, step), end), extent, at);
  return at;
}

// A tile of `rows` and `lanes`, turned square by square.
void LoopsScheduler::AddSquares(const Loop& rows, const Loop& lanes, Block& out) {
  Loop own_rows = rows, own_lanes = lanes;
  own_lanes.width = static_cast<int>(std::min<int64_t>(lanes.width, square_));
  Block* at = &AddPieces(own_rows, square_, Binding::kSerial, out);
  at = &AddPieces(own_lanes, square_, Binding::kSerial, *at);
  AddTurnedLoads(own_rows, own_lanes, *at);
  // Where a square begins that comes later, in the order of those of this tile and the next.
  const int64_t ahead = std::max(kLeastLanesAhead, kSquaresAhead * square_);
  const IntExpr number =
      ints_.Add(ints_.Add(ints_.Mul(ints_.Sub(own_rows.begin, rows.begin), tile_lanes_ / square_),
                          ints_.Sub(own_lanes.begin, lanes.begin)),
                ahead);
  const IntExpr band = ints_.FloorDiv(number, tile_lanes_);
  const int64_t bands = tile_rows_ / square_;
  const IntExpr row =
      builder_.Let(ints_.Add(rows.begin, ints_.Mul(ints_.Mod(band, bands), square_)),
                   ints_.Add(Extent(ints_, rows.var), tile_rows_), *at);
  const IntExpr lane = builder_.Let(
      ints_.Add(ints_.Add(lanes.begin, ints_.Mul(ints_.FloorDiv(band, bands), tile_lanes_)),
                ints_.Mod(number, tile_lanes_)),
      ints_.Add(Extent(ints_, lanes.var), ints_.Const(ahead + 2 * tile_lanes_)), *at);
  at = &builder_.AddLoop(own_rows, *at);
  // A line of the later square beside each row, and those to come of what is not turned.
  for (const Step& step : nest_.phases[0].steps) {
    const ir::Inst& inst = *step.inst;
    if (inst.op != ScalarOp::kLoad || !inst.operands.empty()) continue;
    IntExpr index;
    if (IsTurned(step)) {
      const IntExpr own = ints_.Sub(rows.var, own_rows.begin);
      index = ints_.Substitute(step.index, {{rows.var, row}, {lanes.var, ints_.Add(lane, own)}});
    } else if (ContainsVar(step.index, rows.var) && ContainsVar(step.index, lanes.var)) {
      index = ints_.Add(ints_.Substitute(step.index, {{lanes.var, own_lanes.begin}}),
                        kRowBytesAhead / DTypeSize(inst.dtype));
    } else {
      continue;
    }
    at->push_back({Prefetch{inst.buffer, index, static_cast<int>(square_)}});
  }
  AddRowBody(own_lanes, *at);
}

Tree LoopsScheduler::Run() && {
  Block root;
  if (plan_.row_var) {
    AddTiledRows(root);
  } else if (LanesMayBeInnermost()) {
    Block* at = &root;
    for (IntExpr var : rows_) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
    AddInnermostLanes(*at);
  } else {
    Block* at = &root;
    for (IntExpr var : rows_) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
    AddRowBody(plan_.outer ? LanesLoop(Binding::kTaskVector) : Loop(), *at);
  }
  builder_.tree().body = std::move(root);
  return std::move(builder_.tree());
}

}  // namespace

Tree ScheduleLoops(ir::Module& module, const ir::Kernel& kernel, Nest nest, VectorIsa isa,
                   const DeviceInfo& device) {
  if (auto tree = ScheduleChannelWindows(module, kernel, nest, isa)) return *std::move(tree);
  VectorPlan plan = PlanVectors(*module.ints, nest, isa);
  if (auto tree = ScheduleColumnSums(module, kernel, nest, plan, isa, device)) {
    return *std::move(tree);
  }
  if (auto tree = ScheduleRowDots(module, kernel, nest, plan, isa)) return *std::move(tree);
  if (auto tree = ScheduleStagedWindows(module, kernel, nest, plan, isa, device)) {
    return *std::move(tree);
  }
  return LoopsScheduler(module, kernel, std::move(nest), std::move(plan), device).Run();
}

}  // namespace kiln::schedule::cpu
