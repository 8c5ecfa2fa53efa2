// What makes the tiles of a Repeat independent of each other.
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/verify_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

class RepeatVerifier {
 public:
  RepeatVerifier(const Module& module, const Repeat& repeat) : module_(module), repeat_(repeat) {}

  absl::Status Run() {
    const size_t count = repeat_.kernels.size();
    if (count == 0) return Error("has no kernels");
    if (repeat_.steps.empty()) return Error("has no steps");
    for (const int64_t step : repeat_.steps) {
      if (step < 1) return Error(absl::StrCat("has a step of ", step));
    }
    if (repeat_.before + repeat_.after >= count) return Error("has no kernel in its last loop");
    if (repeat_.before + repeat_.after > 0 && repeat_.steps.back() == 1) {
      return Error("sums over tiles of one iteration");
    }
    for (size_t k = 0; k < count; ++k) KILN_RETURN_IF_ERROR(CheckLoops(k));
    for (size_t k = 0; k < count; ++k) KILN_RETURN_IF_ERROR(CheckAccesses(k));
    return absl::OkStatus();
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InternalError(absl::StrCat("repeat @", repeat_.name, " ", what));
  }

  absl::Status CheckLoops(size_t number) {
    const Kernel& kernel = repeat_.kernels[number];
    const bool is_between = IsBetween(repeat_, number);
    const bool adds = is_between && AddsUp(kernel);
    const size_t tiled = repeat_.steps.size() - (is_between && !adds ? 0 : 1);
    if (kernel.outer.size() < tiled) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " of fewer loops than steps"));
    }
    if (adds && (kernel.phases[0].inner.size() != 1 || !IsPlainSum(kernel))) {
      return Error(
          absl::StrCat("has a kernel @", kernel.name, " that does more than add sums of one loop"));
    }
    std::vector<IntExpr> loops = TiledLoops(repeat_, number);
    for (size_t i = 0; i < loops.size(); ++i) {
      if (!loops[i]) continue;
      const auto [first, is_first] = extents_.try_emplace(i, loops[i].extent());
      if (first->second != loops[i].extent()) {
        return Error(absl::StrCat("has a kernel @", kernel.name, " whose loop ", i,
                                  " is not as long as that of the others"));
      }
    }
    loops_.push_back(std::move(loops));
    return absl::OkStatus();
  }

  // Whether what follows the sum is `load @x[i]`, `add`, `store @x[i]`.
  static bool IsPlainSum(const Kernel& kernel) {
    const std::vector<Inst>& body = kernel.phases[1].body;
    if (body.size() != 3 || !kernel.phases[1].inner.empty()) return false;
    const Inst &load = body[0], &add = body[1], &store = body[2];
    const ValueId sum = kernel.phases[0].body.back().result;
    return load.op == ScalarOp::kLoad && add.op == ScalarOp::kAdd && store.op == ScalarOp::kStore &&
           load.buffer == store.buffer && load.indices == store.indices && !load.has_mask &&
           !store.accumulates &&
           absl::c_is_permutation(add.operands, std::vector<ValueId>{load.result, sum}) &&
           store.operands == std::vector<ValueId>{add.result};
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
    }
    const Use& stored = first->second;
    if (stored.inst->op == ScalarOp::kLoad) return absl::OkStatus();  // made before the repeat
    const bool handed_on = stored.kernel != number || buffer.kind == BufferKind::kTile;
    if (!handed_on) return absl::OkStatus();
    // Of what is stored in each tile of the last loop the others have one tile at a time.
    const size_t loops =
        IsBetween(repeat_, stored.kernel) ? repeat_.steps.size() : repeat_.steps.size() - 1;
    const std::vector<size_t> places = TiledPlaces(number, inst, loops);
    if (absl::c_linear_search(places, inst.indices.size()) ||
        places != TiledPlaces(stored.kernel, *stored.inst, loops)) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " that reaches @", buffer.name,
                                " outside of its tile"));
    }
    if (added_to_.contains(inst.buffer) && IsBetween(repeat_, number) && !AddsUp(kernel)) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " that reaches @", buffer.name,
                                " before its sums are complete"));
    }
    return absl::OkStatus();
  }

  // For each of the first tiled loops the dimension whose index is its variable; the number of
  // dimensions where there is none.
  std::vector<size_t> TiledPlaces(size_t number, const Inst& inst, size_t loops) const {
    std::vector<size_t> places;
    for (size_t i = 0; i < loops; ++i) {
      const IntExpr var = loops_[number][i];
      const auto at = var ? absl::c_find(inst.indices, var) : inst.indices.end();
      places.push_back(static_cast<size_t>(at - inst.indices.begin()));
    }
    return places;
  }

  struct Use {
    size_t kernel;  // its number
    const Inst* inst;
  };

  const Module& module_;
  const Repeat& repeat_;
  std::vector<std::vector<IntExpr>> loops_;       // the tiled ones, by kernel
  absl::flat_hash_map<size_t, IntExpr> extents_;  // of each tiled loop
  absl::flat_hash_map<BufferId, Use> first_uses_;
  absl::flat_hash_set<BufferId> added_to_;
};

}  // namespace

absl::Status CheckRepeat(const Module& module, const Repeat& repeat) {
  return RepeatVerifier(module, repeat).Run();
}

}  // namespace kiln::ir
