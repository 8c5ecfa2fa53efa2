// What makes the tiles of a Repeat independent of each other.
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/verify_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

class RepeatVerifier {
 public:
  RepeatVerifier(const Module& module, const Repeat& repeat) : module_(module), repeat_(repeat) {}

  absl::Status Run() {
    if (repeat_.kernels.empty()) return Error("has no kernels");
    for (const int64_t step : repeat_.steps) {
      if (step < 1) return Error(absl::StrCat("has a step of ", step));
    }
    for (const Kernel& kernel : repeat_.kernels) KILN_RETURN_IF_ERROR(CheckLoops(kernel));
    for (const Kernel& kernel : repeat_.kernels) KILN_RETURN_IF_ERROR(CheckAccesses(kernel));
    return absl::OkStatus();
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InternalError(absl::StrCat("repeat @", repeat_.name, " ", what));
  }

  absl::Status CheckLoops(const Kernel& kernel) const {
    const size_t tiled = repeat_.steps.size();
    if (kernel.outer.size() < tiled) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " of fewer loops than steps"));
    }
    for (size_t i = 0; i < tiled; ++i) {
      if (kernel.outer[i].extent() != repeat_.kernels[0].outer[i].extent()) {
        return Error(absl::StrCat("has a kernel @", kernel.name, " whose loop ", i,
                                  " is not as long as that of the others"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAccesses(const Kernel& kernel) {
    for (const ScalarOp op : {ScalarOp::kStore, ScalarOp::kLoad}) {
      for (const Phase& phase : kernel.phases) {
        for (const Inst& inst : phase.body) {
          if (inst.op == op) KILN_RETURN_IF_ERROR(CheckAccess(kernel, inst));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAccess(const Kernel& kernel, const Inst& inst) {
    const Buffer& buffer = module_.buffers[inst.buffer];
    const auto [first, is_first] = first_uses_.try_emplace(inst.buffer, Use{&kernel, &inst});
    if (inst.op == ScalarOp::kStore) {
      if (buffer.kind == BufferKind::kInput) {
        return Error(absl::StrCat("has a kernel @", kernel.name, " that stores to an input"));
      }
      if (first->second.inst->op == ScalarOp::kLoad) {
        return Error(absl::StrCat("stores @", buffer.name, " after a kernel has loaded it"));
      }
    }
    const Use& stored = first->second;
    if (stored.inst->op == ScalarOp::kLoad) return absl::OkStatus();  // made before the repeat
    const bool handed_on = stored.kernel != &kernel || buffer.kind == BufferKind::kTile;
    if (!handed_on) return absl::OkStatus();
    const std::vector<size_t> places = TiledPlaces(kernel, inst);
    if (absl::c_linear_search(places, inst.indices.size()) ||
        places != TiledPlaces(*stored.kernel, *stored.inst)) {
      return Error(absl::StrCat("has a kernel @", kernel.name, " that reaches @", buffer.name,
                                " outside of its tile"));
    }
    return absl::OkStatus();
  }

  // For each tiled loop the dimension whose index is its variable; the number of dimensions where
  // there is none.
  std::vector<size_t> TiledPlaces(const Kernel& kernel, const Inst& inst) const {
    std::vector<size_t> places;
    for (size_t i = 0; i < repeat_.steps.size(); ++i) {
      const auto at = absl::c_find(inst.indices, kernel.outer[i]);
      places.push_back(static_cast<size_t>(at - inst.indices.begin()));
    }
    return places;
  }

  struct Use {
    const Kernel* kernel;
    const Inst* inst;
  };

  const Module& module_;
  const Repeat& repeat_;
  absl::flat_hash_map<BufferId, Use> first_uses_;
};

}  // namespace

absl::Status CheckRepeat(const Module& module, const Repeat& repeat) {
  return RepeatVerifier(module, repeat).Run();
}

}  // namespace kiln::ir
