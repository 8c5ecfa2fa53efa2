#include "compiler/ir/tile_window.h"

#include <algorithm>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

// Of a window's numbers, far from where sums of them and of extents overflow.
constexpr int64_t kMostReach = int64_t{1} << 30;

bool IsSmall(const TileWindow& window) {
  return window.scale <= kMostReach && std::abs(window.low) <= kMostReach &&
         std::abs(window.high) <= kMostReach;
}

// Goes through the kernels from the last one on, and asks those before for what each loads.
class Inference {
 public:
  Inference(const Module& module, const Repeat& repeat, bool carries)
      : module_(module), repeat_(repeat), carries_(carries) {
    needs_.resize(repeat.kernels.size(), Needs(repeat.steps.size()));
    for (size_t k = 0; k < repeat.kernels.size(); ++k) {
      ForEachInst(repeat.kernels[k], [&](const Inst& inst) {
        if (inst.op == ScalarOp::kStore) stores_.try_emplace(inst.buffer, Store{k, &inst});
      });
    }
  }

  absl::StatusOr<std::vector<std::vector<TileWindow>>> Run() {
    std::vector<std::vector<TileWindow>> windows(repeat_.kernels.size());
    for (size_t k = repeat_.kernels.size(); k-- > 0;) {
      for (const std::optional<TileWindow>& need : needs_[k]) {
        windows[k].push_back(need.value_or(TileWindow()));
      }
      absl::Status status = absl::OkStatus();
      ForEachInst(repeat_.kernels[k], [&](const Inst& inst) {
        if (inst.op == ScalarOp::kLoad && status.ok()) status = AskFor(k, inst, windows[k]);
      });
      KILN_RETURN_IF_ERROR(status);
    }
    return windows;
  }

 private:
  using Needs = std::vector<std::optional<TileWindow>>;
  struct Store {
    size_t kernel;
    const Inst* inst;
  };

  absl::Status AskFor(size_t number, const Inst& load, const std::vector<TileWindow>& windows) {
    const auto found = stores_.find(load.buffer);
    if (found == stores_.end() || found->second.kernel >= number) return absl::OkStatus();
    const Store& store = found->second;
    const std::vector<IntExpr> loops = TiledLoops(repeat_, number);
    const std::vector<IntExpr> stored = TiledLoops(repeat_, store.kernel);
    for (size_t i = 0; i < loops.size(); ++i) {
      const auto place = absl::c_find(store.inst->indices, stored[i]);
      if (place == store.inst->indices.end()) return NotFound(number, load, "stored elsewhere");
      const IntExpr index = load.indices[place - store.inst->indices.begin()];
      const auto reach =
          ReachOf(*module_.ints, index, loops[i], carries_ ? Remaining(windows[i]) : windows[i]);
      if (!reach) return NotFound(number, load, "loaded at places that are no window");
      std::optional<TileWindow>& need = needs_[store.kernel][i];
      need = need ? JoinWindows(*need, *reach) : reach;
      if (!need) return NotFound(number, load, "loaded at different speeds");
    }
    return absl::OkStatus();
  }

  absl::Status NotFound(size_t number, const Inst& load, absl::string_view why) const {
    return absl::NotFoundError(absl::StrCat("@", module_.buffers[load.buffer].name, " is ", why,
                                            ": kernel @", repeat_.kernels[number].name));
  }

  const Module& module_;
  const Repeat& repeat_;
  const bool carries_;
  std::vector<Needs> needs_;  // by kernel
  absl::flat_hash_map<BufferId, Store> stores_;
};

}  // namespace

std::optional<TileWindow> ReachOf(IntContext& ints, IntExpr index, IntExpr var,
                                  const TileWindow& window) {
  const IntExpr coefficient = ints.CoefficientOf(index, var);
  if (!coefficient || !coefficient.is_const() || coefficient.value() < 1 ||
      coefficient.value() > kMostReach || ContainsKind(index, IntKind::kIndirect) ||
      !IsSmall(window)) {
    return std::nullopt;
  }
  const int64_t scale = coefficient.value();
  const IntRange rest = ints.Sub(index, ints.Mul(var, scale)).range();
  if (rest.min < -kMostReach || rest.max > kMostReach) return std::nullopt;
  const TileWindow reach{scale * window.scale, scale * window.low + rest.min,
                         scale * window.high + rest.max};
  return IsSmall(reach) ? std::optional(reach) : std::nullopt;
}

TileWindow Remaining(const TileWindow& window) {
  // Where the tile before ends; but the first tile has none before it, and begins at 0 or later.
  const int64_t begin = std::min(window.high + 1 - window.scale, std::max<int64_t>(window.low, 0));
  return {window.scale, std::max(window.low, begin), window.high};
}

bool Covers(const TileWindow& window, const TileWindow& need) {
  return window.scale == need.scale && window.low <= need.low && window.high >= need.high;
}

std::optional<TileWindow> JoinWindows(const TileWindow& a, const TileWindow& b) {
  if (a.scale != b.scale) return std::nullopt;
  return TileWindow{a.scale, std::min(a.low, b.low), std::max(a.high, b.high)};
}

absl::StatusOr<std::vector<std::vector<TileWindow>>> InferWindows(const Module& module,
                                                                  const Repeat& repeat,
                                                                  bool carries) {
  return Inference(module, repeat, carries).Run();
}

}  // namespace kiln::ir
