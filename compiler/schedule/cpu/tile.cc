// Which kernels run tile by tile on a CPU, and in which steps.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/node_hash_map.h"
#include "compiler/ir/identity.h"
#include "compiler/schedule/cpu/contraction_plan.h"
#include "compiler/schedule/cpu/repeat.h"
#include "compiler/schedule/cpu/schedule.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule::cpu {
namespace {

using ir::IntExpr;

// Rows of a tile: whole micro tiles of every height that contractions choose from, but 14; at least
// as many as pay for packing the other operand, at most as many as still gain by that.
struct RowLimits {
  int64_t unit, least, most;
};
constexpr RowLimits kVectors = {24, 48, 96}, kMatrices = {32, 64, 192};
// For the threads, whose number is the client's own matter: tiles of rows are made that many where
// they may be, and less than the least are none.
constexpr int64_t kEnoughTiles = 16, kLeastTiles = 8;
// In vectors' time, as contraction plans count: an element packed; one of panels that come from the
// third-level cache again; one handed on through a second-level cache instead of the third or of
// memory; a launch.
constexpr double kPack = 0.8, kPanel = 0.3, kFromThird = 0.5, kFromMemory = 2, kLaunch = 20'000;

using Steps = std::vector<int64_t>;  // of the tiled loops

class Chooser {
 public:
  Chooser(ir::Module& module, const DeviceInfo& device, const Tileable& tileable)
      : module_(module), ints_(*module.ints), device_(device), tileable_(tileable) {
    const auto is_bf16 = [&](ir::BufferId b) { return module.buffers[b].dtype == DType::kBF16; };
    const bool by_matrices = HasMatrixTiles(device) && absl::c_any_of(tileable.buffers, is_bf16);
    rows_ = by_matrices ? kMatrices : kVectors;
  }

  // Nothing where the kernels run better one after another.
  std::optional<Steps> Run() {
    const size_t loops = tileable_.loops.size();
    Steps single(loops, 1);
    if (tileable_.sums) return ChooseSummed(std::move(single));
    if (Pays(single)) return single;
    single.pop_back();
    if (Points(single) < 2) return std::nullopt;
    const IntExpr rows = Extent(ints_, tileable_.loops.back()[0]);
    const int64_t step = ChooseRows(ExtentHint(ints_, tileable_.loops.back()[0]));
    if (rows.is_const() && rows.value() <= step) {
      return Pays(single) ? std::optional(single) : std::nullopt;
    }
    single.push_back(step);
    return Pays(single) ? std::optional(single) : std::nullopt;
  }

 private:
  // Steps of the last loop, whose tiles one task takes in order; nothing where all of that loop
  // stays in the cache anyway.
  std::optional<Steps> ChooseSummed(Steps steps) {
    const IntExpr last = tileable_.loops.back()[0];
    const int64_t extent = ExtentHint(ints_, last);
    const double points = Points(Steps(steps.size() - 1, 1));
    const double bytes = HandedOnBytes() / points;
    if (points < kLeastTiles || extent <= rows_.least || bytes <= device_.l2_bytes * 0.75) {
      return std::nullopt;
    }
    steps.back() = rows_.least;
    while (2 * steps.back() <= rows_.most &&
           bytes / static_cast<double>(extent) * 2 * steps.back() <= device_.l2_bytes * 0.75) {
      steps.back() *= 2;
    }
    return Pays(steps) ? std::optional(steps) : std::nullopt;
  }

  // Of the loops with a step of 1.
  double Points(const Steps& steps) {
    double points = 1;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] == 1) points *= ExtentHint(ints_, tileable_.loops[i][0]);
    }
    return points;
  }

  double Elements(ir::BufferId buffer) {
    return static_cast<double>(
        std::max<int64_t>(1, ints_.EvaluateAtHints(NumElements(ints_, module_.buffers[buffer]))));
  }

  double HandedOnBytes() {
    double bytes = 0;
    for (const ir::BufferId buffer : tileable_.buffers) {
      bytes += Elements(buffer) * DTypeSize(module_.buffers[buffer].dtype);
    }
    return bytes;
  }

  int64_t ChooseRows(int64_t rows) {
    const Steps others(tileable_.loops.size() - 1, 1);
    const double points = Points(others);
    const double bytes_a_row = HandedOnBytes() / points / static_cast<double>(rows);
    const auto fit = static_cast<int64_t>(device_.l2_bytes / 4 * 3 / std::max(1.0, bytes_a_row));
    int64_t most = std::clamp(fit, rows_.least, rows_.most);
    while (most > rows_.least &&
           points * std::ceil(static_cast<double>(rows) / most) < kEnoughTiles) {
      most = std::max(rows_.least, most / 2);
    }
    if (rows <= most) return rows;
    const int64_t tiles = (rows + most - 1) / most;
    const int64_t each = (rows + tiles - 1) / tiles;
    return (each + rows_.unit - 1) / rows_.unit * rows_.unit;
  }

  // Whether all products can be blocked in such tiles, tiles stay in the cache, and packing costs
  // less than it saves.
  bool Pays(const Steps& steps) {
    double points = 1, tiles = 1;
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto extent = static_cast<double>(ExtentHint(ints_, tileable_.loops[i][0]));
      if (steps[i] == 1) points *= extent;
      tiles *= std::ceil(extent / static_cast<double>(steps[i]));
    }
    if (points < 2 || (tileable_.sums ? points : tiles) < kLeastTiles) return false;
    const bool in_cache = HandedOnBytes() / tiles <= 4.0 * static_cast<double>(device_.l2_bytes);
    if (!in_cache) return false;
    const std::optional<double> cost = PanelsCost(steps, tiles);
    if (!cost) return false;
    const bool from_memory = HandedOnBytes() > static_cast<double>(device_.l3_bytes);
    double gain = kLaunch * static_cast<double>(tileable_.operations.size() - 1);
    for (const ir::BufferId buffer : tileable_.buffers) {
      gain += Elements(buffer) * (from_memory ? kFromMemory : kFromThird);
    }
    return gain > *cost;
  }

  // Of the products' panels, which every tile packs or reads, and a product alone once a batch;
  // nothing where a product that is blocked alone is not blocked in tiles.
  std::optional<double> PanelsCost(const Steps& steps, double num_tiles) {
    const ir::Repeat repeat = MakeRepeat(module_, tileable_, steps);
    std::vector<std::vector<IntExpr>> loops(repeat.kernels.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      for (size_t k = 0; k < loops.size(); ++k) loops[k].push_back(tileable_.loops[i][k]);
    }
    TileMaker tiles(module_, repeat, std::move(loops));
    for (size_t k = 0; k < repeat.kernels.size(); ++k) {
      ForEachStore(repeat.kernels[k], [&](ir::BufferId buffer) {
        if (!absl::c_linear_search(tileable_.buffers, buffer)) return;
        tiles.AddBuffer(buffer, repeat.kernels[k], k);
      });
    }
    double cost = 0;
    for (size_t k = 0; k < repeat.kernels.size(); ++k) {
      const ir::Kernel& kernel = repeat.kernels[k];
      const schedule::Tile tile = tiles.Of(k);
      const absl::StatusOr<Nest> alone = BuildNest(module_, kernel, /*collapse=*/true);
      const absl::StatusOr<Nest> tiled = BuildNest(module_, kernel, /*collapse=*/true, &tile);
      if (!alone.ok() || !tiled.ok()) return std::nullopt;
      if (kernel.schedule != ir::Schedule::kContraction) continue;
      const auto in_tiles = PlanContraction(module_, *tiled, device_);
      const auto in_one = PlanContraction(module_, *alone, device_);
      if (!in_tiles) {
        if (in_one) return std::nullopt;
        continue;
      }
      const double again =
          num_tiles * PanelElements(*in_tiles) - (in_one ? PanelElements(*in_one) : 0);
      if (in_tiles->packed_load == nullptr) {
        cost += kPack * std::max(0.0, again);
      } else if (PanelElements(*in_tiles) * DTypeSize(in_tiles->panel_type) > device_.l2_bytes) {
        cost += kPanel * std::max(0.0, again);
      }
    }
    return cost;
  }

  double PanelElements(const ContractionPlan& plan) {
    const auto hint = [&](IntExpr all) { return static_cast<double>(ints_.EvaluateAtHints(all)); };
    return hint(plan.num_batches) * MostOf(hint(plan.num_lanes), plan.lane_part) *
           MostOf(hint(plan.num_k), plan.k_part);
  }

  ir::Module& module_;
  ir::IntContext& ints_;
  const DeviceInfo& device_;
  const Tileable& tileable_;
  RowLimits rows_;
};

// Choices for groups of kernels; those of equal groups are made once.
class Choices {
 public:
  Choices(ir::Module& module, const DeviceInfo& device)
      : module_(module), device_(device), writer_(module) {}

  const std::optional<Steps>& Of(const Tileable& tileable) {
    std::vector<ir::BufferId> buffers;
    std::string text =
        writer_.Text(MakeRepeat(module_, tileable, Steps(tileable.loops.size(), 1)), buffers);
    for (const ir::BufferId buffer : buffers) {
      text += absl::c_linear_search(tileable.buffers, buffer) ? "handed on " : "";
      text += ";";
    }
    const auto [it, added] = known_.try_emplace(std::move(text));
    if (added) it->second = Chooser(module_, device_, tileable).Run();
    return it->second;
  }

 private:
  ir::Module& module_;
  const DeviceInfo& device_;
  ir::IdentityWriter writer_;
  absl::node_hash_map<std::string, std::optional<Steps>> known_;
};

}  // namespace

void Tile(ir::Module& module, const DeviceInfo& device) {
  const BufferUses uses(module);
  Choices choices(module, device);
  size_t next = 0;  // operations before it are done, as they stand in no order among repeats
  for (size_t i = 0; i < module.operations.size(); ++i) {
    const auto* kernel = std::get_if<ir::Kernel>(&module.operations[i]);
    if (i < next || kernel == nullptr || kernel->schedule != ir::Schedule::kContraction) continue;
    for (const Tileable& tileable : FindTileable(module, uses, i)) {
      const std::optional<Steps>& steps = choices.Of(tileable);
      if (!steps) continue;
      Replace(module, tileable, MakeRepeat(module, tileable, *steps));
      next = tileable.operations.back() + 1;
      break;
    }
  }
  std::erase_if(module.operations, [](const ir::Operation& operation) {
    const auto* repeat = std::get_if<ir::Repeat>(&operation);
    return repeat != nullptr && repeat->kernels.empty();
  });
}

}  // namespace kiln::schedule::cpu
