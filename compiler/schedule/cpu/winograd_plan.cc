#include "compiler/schedule/cpu/winograd_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/cpu/answers.h"
#include "compiler/schedule/micro.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

constexpr int64_t kLeastTiles = 32;        // of an image: fewer do not pay for larger weights
constexpr int64_t kMostBlockTiles = 64;    // that are transformed at a time
constexpr double kMostOfCache = 1.3;       // of half of the second-level cache, for those
constexpr double kLeastGain = 1.2;         // over the usual way, by the model
constexpr double kTransformedElement = 4;  // vectors' time of one in a plane
constexpr double kStepOfTiles = 2;         // what a step of k takes beside its multiply-adds
constexpr double kBlockOfTiles = 2;        // and a block, for which weights come once more
constexpr double kStoredSteps = 8;         // steps of k that sums take which are stored

class Planner {
 public:
  Planner(ir::Module& module, const Nest& nest, const ContractionPlan& plan,
          const DeviceInfo& device)
      : ints_(*module.ints), nest_(nest), device_(device) {
    out_.contraction = plan;
  }

  std::optional<WinogradPlan> Run() {
    if (!HasForm() || !FindImage() || !ChooseTiles()) return std::nullopt;
    ContractionPlan& plan = out_.contraction;
    plan.num_batches = NumPoints(ints_, plan.batch);
    plan.num_rows = NumPoints(ints_, plan.rows);
    plan.reason =
        absl::StrCat("Winograd's tiles of 2 x 2 places, ", out_.block_tiles(), " at a time; ",
                     plan.tile_rows, " x ", plan.panel_width(), " sums in registers");
    return std::move(out_);
  }

 private:
  // What of the image is inside along one dimension: low <= place + tap < high.
  struct Bounds {
    std::optional<int64_t> low, high;
  };

  bool HasForm() {
    ContractionPlan& plan = out_.contraction;
    const bool is_plain = plan.type == DType::kF32 && plan.operand_type == DType::kF32 &&
                          plan.panel_type == DType::kF32 && nest_.tile == nullptr;
    if (!is_plain || IsaOf(device_) == VectorIsa::kBaseline || !plan.batch.empty() ||
        plan.lanes.size() != 1 || plan.k.size() != 3 || plan.rows.size() < 2 ||
        plan.rows.size() > 3) {
      return false;
    }
    for (size_t i = 1; i < 3; ++i) {
      if (!Extent(ints_, plan.k[i]).is_const(3)) return false;
    }
    if (plan.rows.size() == 3) {
      plan.batch = {plan.rows[0]};
      plan.rows.erase(plan.rows.begin());
    }
    const IntExpr channels = Extent(ints_, plan.k[0]), rows = Extent(ints_, plan.rows[0]),
                  columns = Extent(ints_, plan.rows[1]);
    if (!channels.is_const() || !rows.is_const() || !columns.is_const() ||
        !plan.num_lanes.is_const()) {
      return false;
    }
    out_.channels = channels.value();
    out_.height.places = rows.value();
    out_.width.places = columns.value();
    return true;
  }

  bool FindImage() {
    const ContractionPlan& plan = out_.contraction;
    const std::vector<const Step*> steps = Closure(nest_.phases[0], plan.row_value);
    if (steps.empty()) return false;
    out_.image = steps.back();
    const Inst& load = *out_.image->inst;
    if (load.op != ScalarOp::kLoad || load.result != plan.row_value || NumIndirect(load) > 0 ||
        !load.checks.empty()) {
      return false;
    }
    for (const Step* step : steps) step_of_[step->inst->result] = step;
    values_ = IndexValues(ints_, nest_.phases);
    if (load.has_mask && (load.immediate_float != 0 || !ReadMask(load.operands.back()))) {
      return false;
    }
    const IntExpr index = out_.image->index;
    const IntExpr of_channel = ints_.CoefficientOf(index, plan.k[0]);
    if (!of_channel || !of_channel.is_const() || of_channel.value() < 1) return false;
    out_.channel_stride = of_channel.value();
    if (!FindAxis(0, out_.height) || !FindAxis(1, out_.width)) return false;
    if (out_.width.stride != 1) return false;
    out_.origin = AtFirst(index);
    for (const WinogradAxis* axis : {&out_.height, &out_.width}) {
      out_.origin = ints_.Add(out_.origin, axis->before * axis->stride);
    }
    return true;
  }

  IntExpr AtFirst(IntExpr e) {
    const ContractionPlan& plan = out_.contraction;
    IntContext::VarMap first;
    for (const std::vector<IntExpr>* vars : {&plan.rows, &plan.k}) {
      for (IntExpr var : *vars) first[var] = ints_.Const(0);
    }
    return ints_.Substitute(e, first);
  }

  // Whether it is comparisons of places with the borders, all of which hold.
  bool ReadMask(ValueId mask) {
    const auto step = step_of_.find(mask);
    if (step == step_of_.end()) return false;
    const Inst& inst = *step->second->inst;
    if (inst.op == ScalarOp::kAnd) return ReadMask(inst.operands[0]) && ReadMask(inst.operands[1]);
    if (inst.op != ScalarOp::kGe && inst.op != ScalarOp::kLt) return false;
    const auto place = values_.find(inst.operands[0]), border = values_.find(inst.operands[1]);
    if (place == values_.end() || border == values_.end() || !border->second.is_const()) {
      return false;
    }
    const IntExpr first = AtFirst(place->second);
    if (!first.is_const()) return false;
    for (size_t d = 0; d < 2; ++d) {
      const IntExpr at = ints_.Add(out_.contraction.rows[d], out_.contraction.k[d + 1]);
      if (ints_.Add(at, first) != place->second) continue;
      std::optional<int64_t>& bound = inst.op == ScalarOp::kGe ? bounds_[d].low : bounds_[d].high;
      if (bound) return false;
      bound = border->second.value() - first.value();
      return true;
    }
    return false;
  }

  bool FindAxis(size_t dimension, WinogradAxis& axis) {
    const ContractionPlan& plan = out_.contraction;
    const IntExpr of_place = ints_.CoefficientOf(out_.image->index, plan.rows[dimension]);
    const IntExpr of_tap = ints_.CoefficientOf(out_.image->index, plan.k[dimension + 1]);
    if (!of_place || of_place != of_tap || !of_place.is_const() || of_place.value() < 1) {
      return false;
    }
    axis.stride = of_place.value();
    const int64_t all = axis.places + 2;
    axis.before = std::clamp<int64_t>(bounds_[dimension].low.value_or(0), 0, all);
    axis.size = std::min(bounds_[dimension].high.value_or(all), all) - axis.before;
    return axis.size > 0;
  }

  // Steps of one plane's products of `rows` rows of tiles, a block at a time.
  double BlockSteps(int64_t rows, int tile_rows) const {
    const int64_t tiles = rows * out_.width.tiles();
    const auto groups = static_cast<double>((tiles + tile_rows - 1) / tile_rows);
    return groups * (tile_rows + kStepOfTiles) + kBlockOfTiles;
  }

  int64_t TransformedBytes(int64_t rows) const {
    const int64_t each = out_.channels + out_.contraction.panel_width();
    return rows * out_.width.tiles() * each * kWinogradPlanes * int64_t{sizeof(float)};
  }

  // How many rows of tiles a block has, and how many tiles the registers.
  bool ChooseTiles() {
    ContractionPlan& plan = out_.contraction;
    plan.tile_vectors = kWinogradVectors;
    const int64_t rows = out_.height.tiles(), columns = out_.width.tiles();
    if (rows * columns < kLeastTiles || columns > kMostTileColumns) return false;
    const int most = IsaOf(device_) == VectorIsa::kAvx512 ? 14 : 6;
    double best = 0;
    for (int64_t block = 1; block <= rows && block * columns <= kMostBlockTiles; ++block) {
      // Half of the second-level cache is for weights.
      if (2 * TransformedBytes(block) > kMostOfCache * device_.l2_bytes) break;
      const int64_t rest = rows % block;
      for (int tile_rows = most; tile_rows > most / 2; --tile_rows) {
        const double steps = static_cast<double>(rows / block) * BlockSteps(block, tile_rows) +
                             (rest == 0 ? 0 : BlockSteps(rest, tile_rows));
        if (best > 0 && steps >= best * 0.995) continue;
        best = steps;
        plan.tile_rows = tile_rows;
        out_.block_rows = block;
      }
    }
    return best > 0 && Pays();
  }

  // Both in vectors' time.
  bool Pays() const {
    const ContractionPlan& plan = out_.contraction;
    const double width = plan.panel_width(), vector = plan.vector_lanes;
    const double lanes = std::ceil(static_cast<double>(plan.num_lanes.value()) / width) * width;
    const auto channels = static_cast<double>(out_.channels);
    const auto places = static_cast<double>(out_.height.places * out_.width.places);
    const int64_t rows = out_.height.tiles(), columns = out_.width.tiles();
    const double groups = static_cast<double>((rows + out_.block_rows - 1) / out_.block_rows) *
                          std::ceil(static_cast<double>(out_.block_tiles()) / plan.tile_rows);
    const double products = groups * plan.tile_rows * (channels + kStoredSteps) * lanes / vector;
    const double transforms = kTransformedElement * static_cast<double>(rows * columns) *
                              (kGroupsOfPrepared * channels + lanes) / vector;
    const double direct = places * kWinogradTaps * channels * lanes / vector;
    return direct > kLeastGain * kWinogradPlanes * (products + transforms);
  }

  IntContext& ints_;
  const Nest& nest_;
  const DeviceInfo& device_;
  WinogradPlan out_;
  Bounds bounds_[2];
  absl::flat_hash_map<ValueId, const Step*> step_of_;
  absl::flat_hash_map<ValueId, IntExpr> values_;
};

}  // namespace

std::optional<WinogradPlan> PlanWinograd(ir::Module& module, const Nest& nest,
                                         const ContractionPlan& plan, const DeviceInfo& device) {
  return Planner(module, nest, plan, device).Run();
}

}  // namespace kiln::schedule::cpu
