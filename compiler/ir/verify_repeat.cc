// What makes the tiles of a Repeat independent of each other.
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/tile_window.h"
#include "compiler/ir/verify_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

constexpr int64_t kMostReach = int64_t{1} << 30;  // of a window, far from overflow

class RepeatVerifier {
 public:
  // `keeps`: buffers that are as if they were kTile ones.
  RepeatVerifier(const Module& module, const Repeat& repeat, const std::vector<BufferId>& keeps)
      : module_(module), repeat_(repeat), keeps_(keeps) {}

  absl::Status Run() {
    const size_t count = repeat_.kernels.size();
    if (count == 0) return Error("has no kernels");
    for (const int64_t step : repeat_.steps) {
      if (step < 1) return Error(absl::StrCat("has a step of ", step));
    }
    if (repeat_.before + repeat_.after >= count) return Error("has no kernel in its last loop");
    if (repeat_.steps.empty() && (repeat_.before + repeat_.after > 0 || !repeat_.windows.empty())) {
      return Error("has sums or windows and no steps");
    }
    KILN_RETURN_IF_ERROR(CheckWindows());
    for (size_t k = 0; k < count; ++k) KILN_RETURN_IF_ERROR(CheckLoops(k));
    for (size_t k = 0; k < count; ++k) KILN_RETURN_IF_ERROR(CheckAccesses(k));
    return absl::OkStatus();
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InternalError(absl::StrCat("repeat @", repeat_.name, " ", what));
  }

  absl::Status CheckWindows() {
    if (repeat_.windows.empty()) return absl::OkStatus();
    if (repeat_.before + repeat_.after > 0) return Error("has windows and sums");
    if (repeat_.windows.size() != repeat_.kernels.size()) {
      return Error("has windows of other kernels");
    }
    for (const int64_t step : repeat_.steps) {
      if (step > kMostReach) return Error("has a step that is too long for windows");
    }
    for (size_t k = 0; k < repeat_.kernels.size(); ++k) {
      const Kernel& kernel = repeat_.kernels[k];
      const auto is_wrong = [](const TileWindow& w) {
        return w.scale < 1 || w.scale > kMostReach || w.low < -kMostReach || w.high > kMostReach ||
               w.low > w.high;
      };
      if (repeat_.windows[k].size() != repeat_.steps.size() ||
          absl::c_any_of(repeat_.windows[k], is_wrong)) {
        return Error(absl::StrCat("has a kernel @", kernel.name, " of an impossible window"));
      }
      // What a scatter or sum takes in twice would count twice.
      if (HasScatter(kernel) || AddsUp(kernel)) {
        return Error(absl::StrCat("has windows and a kernel @", kernel.name, " that adds up"));
      }
    }
    const auto is_tile = [](const TileWindow& window) { return window.IsTile(); };
    if (!absl::c_all_of(repeat_.windows.back(), is_tile)) {
      return Error("has a last kernel that does not run the tile itself");
    }
    return absl::OkStatus();
  }

  // Whether all tiles together store all of what kernel `number` computes, each its own part.
  bool StoresAllOnce(size_t number) {
    if (repeat_.windows.empty()) return true;
    for (size_t i = 0; i < repeat_.steps.size(); ++i) {
      const TileWindow window = repeat_.WindowOf(number, i);
      const bool parts = window.low == 0 && window.high == window.scale - 1;
      const IntExpr all = module_.ints->Mul(extents_.at(i), window.scale);
      if (!parts || !module_.ints->ProvablyLessEqual(loops_[number][i].extent(), all)) return false;
    }
    return true;
  }

  absl::Status CheckLoops(size_t number) {
    const Kernel& kernel = repeat_.kernels[number];
    const bool is_between = IsBetween(repeat_, number);
    const bool adds = is_between && AddsUp(kernel) && !repeat_.steps.empty();
    const size_t tiled = repeat_.steps.size() - (is_between && !adds ? 0 : 1);
    if (kernel.outer.size() < tiled) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " of fewer loops than steps"));
    }
    if (adds && !IsPlainSum(kernel)) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " that does more than add sums"));
    }
    std::vector<IntExpr> loops = TiledLoops(repeat_, number);
    for (size_t i = 0; i < loops.size(); ++i) {
      // With windows the last kernel's loop is that of the repeat.
      if (!loops[i] || (!repeat_.windows.empty() && number + 1 < repeat_.kernels.size())) continue;
      const auto [first, is_first] = extents_.try_emplace(i, loops[i].extent());
      if (first->second != loops[i].extent()) {
        return Error(absl::StrCat("has a kernel @", kernel.name, " whose loop ", i,
                                  " is not as long as that of the others"));
      }
    }
    loops_.push_back(std::move(loops));
    return absl::OkStatus();
  }

  // Whether what follows the sums is `load @x[i]`, `add`, `store @x[i]` for each of them, with what
  // combines parts of it in the place of `add`.
  static bool IsPlainSum(const Kernel& kernel) {
    const std::vector<Inst>& body = kernel.phases[1].body;
    std::vector<const Inst*> sums;
    for (const Inst& inst : kernel.phases[0].body) {
      if (inst.op == ScalarOp::kReduce) sums.push_back(&inst);
    }
    if (body.size() != 3 * sums.size()) return false;
    for (size_t i = 0; i < sums.size(); ++i) {
      const Inst &load = body[3 * i], &add = body[3 * i + 1], &store = body[3 * i + 2];
      const bool plain = load.op == ScalarOp::kLoad && add.op == CombinerOf(sums[i]->reduce_kind) &&
                         store.op == ScalarOp::kStore && load.buffer == store.buffer &&
                         load.indices == store.indices && !load.has_mask && !store.accumulates &&
                         absl::c_is_permutation(
                             add.operands, std::vector<ValueId>{load.result, sums[i]->result}) &&
                         store.operands == std::vector<ValueId>{add.result};
      if (!plain) return false;
    }
    return true;
  }

  absl::Status CheckAccesses(size_t number) {
    const Kernel& kernel = repeat_.kernels[number];
    for (const ScalarOp op : {ScalarOp::kStore, ScalarOp::kLoad}) {
      for (const Phase& phase : kernel.phases) {
        for (const Inst& inst : phase.body) {
          if (inst.op == op) KILN_RETURN_IF_ERROR(CheckAccess(number, inst));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAccess(size_t number, const Inst& inst) {
    const Kernel& kernel = repeat_.kernels[number];
    const Buffer& buffer = module_.buffers[inst.buffer];
    const auto [first, is_first] = first_uses_.try_emplace(inst.buffer, Use{number, &inst});
    if (inst.op == ScalarOp::kStore) {
      if (buffer.kind == BufferKind::kInput) {
        return Error(absl::StrCat("has a kernel @", kernel.name, " that stores to an input"));
      }
      if (first->second.inst->op == ScalarOp::kLoad) {
        return Error(absl::StrCat("stores @", buffer.name, " after a kernel has loaded it"));
      }
      if (!is_first && first->second.kernel != number) added_to_.insert(inst.buffer);
      if (buffer.kind != BufferKind::kTile && !StoresAllOnce(number)) {
        return Error(absl::StrCat("has a kernel @", kernel.name, " whose tiles are no parts of @",
                                  buffer.name));
      }
    }
    const Use& stored = first->second;
    if (stored.inst->op == ScalarOp::kLoad) return absl::OkStatus();  // made before the repeat
    const bool handed_on = stored.kernel != number || buffer.kind == BufferKind::kTile ||
                           absl::c_linear_search(keeps_, inst.buffer);
    if (!handed_on) return absl::OkStatus();
    // Of what is stored in each tile of the last loop the others have one tile at a time.
    const size_t loops =
        IsBetween(repeat_, stored.kernel) ? repeat_.steps.size() : repeat_.steps.size() - 1;
    if (!ReachesTile(number, inst, stored, loops)) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " that reaches @", buffer.name,
                                " outside of its tile"));
    }
    if (added_to_.contains(inst.buffer) && IsBetween(repeat_, number) && !AddsUp(kernel)) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " that reaches @", buffer.name,
                                " before its sums are complete"));
    }
    return absl::OkStatus();
  }

  struct Use {
    size_t kernel;  // its number
    const Inst* inst;
  };

  // Whether in each of the first tiled loops `inst`, of kernel `number`, stays in what `stored`
  // stores for a tile: at that loop's variable, in one dimension.
  bool ReachesTile(size_t number, const Inst& inst, const Use& stored, size_t loops) const {
    for (size_t i = 0; i < loops; ++i) {
      const IntExpr var = loops_[number][i], its = loops_[stored.kernel][i];
      const auto at = its ? absl::c_find(stored.inst->indices, its) : stored.inst->indices.end();
      if (!var || at == stored.inst->indices.end()) return false;
      const IntExpr index = inst.indices[at - stored.inst->indices.begin()];
      if (inst.op == ScalarOp::kStore && index != var) return false;
      const auto reach = ReachOf(*module_.ints, index, var, repeat_.WindowOf(number, i));
      if (!reach || !Covers(repeat_.WindowOf(stored.kernel, i), *reach)) return false;
    }
    return true;
  }

  const Module& module_;
  const Repeat& repeat_;
  const std::vector<BufferId>& keeps_;
  std::vector<std::vector<IntExpr>> loops_;       // the tiled ones, by kernel
  absl::flat_hash_map<size_t, IntExpr> extents_;  // of each tiled loop
  absl::flat_hash_map<BufferId, Use> first_uses_;
  absl::flat_hash_set<BufferId> added_to_;
};

absl::Status CheckVersions(const Module& module, const Repeat& repeat) {
  const auto error = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("repeat @", repeat.name, " ", what));
  };
  if (repeat.by.empty() || repeat.versions.empty()) return error("has versions by no symbol");
  if (!repeat.steps.empty() || !repeat.windows.empty() || repeat.before + repeat.after > 0) {
    return error("has versions, and steps, windows or sums of its own");
  }
  for (size_t i = 0; i < repeat.by.size(); ++i) {
    if (repeat.by[i].kind() != IntKind::kSymbol) return error("has versions by what is no symbol");
  }
  for (const RepeatVersion& version : repeat.versions) {
    const bool is_last = &version == &repeat.versions.back();
    if (version.most.size() != (is_last ? 0 : repeat.by.size())) {
      return error(is_last ? "has no version for all sizes" : "has a version of other symbols");
    }
    const bool fits = version.step > 0 ? version.loops.size() == repeat.kernels.size()
                                       : version.step == 0 && version.loops.empty();
    if (!fits) return error("has a version whose loops are not those of its kernels");
    for (size_t k = 0; k < version.loops.size(); ++k) {
      const auto loops = static_cast<int64_t>(repeat.kernels[k].outer.size());
      if (version.loops[k] < 0 || version.loops[k] >= loops) {
        return error(
            absl::StrCat("has a version of a loop that @", repeat.kernels[k].name, " has not"));
      }
    }
    for (const BufferId kept : version.keeps) {
      const BufferKind kind = module.buffers[kept].kind;
      if (kind != BufferKind::kTemp && kind != BufferKind::kTile) {
        return error(absl::StrCat("keeps @", module.buffers[kept].name, ", which others see"));
      }
    }
    KILN_RETURN_IF_ERROR(RepeatVerifier(module, OfVersion(repeat, version), version.keeps).Run());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRepeat(const Module& module, const Repeat& repeat) {
  if (repeat.versions.empty() && repeat.by.empty()) {
    return RepeatVerifier(module, repeat, {}).Run();
  }
  return CheckVersions(module, repeat);
}

}  // namespace kiln::ir
