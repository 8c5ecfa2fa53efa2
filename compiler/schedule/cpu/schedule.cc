#include "compiler/schedule/cpu/schedule.h"

#include <optional>
#include <utility>

#include "compiler/schedule/cpu/contraction.h"
#include "compiler/schedule/cpu/loops.h"
#include "compiler/schedule/cpu/panels.h"
#include "compiler/schedule/cpu/repeat.h"
#include "compiler/schedule/cpu/winograd.h"
#include "compiler/schedule/plain.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule::cpu {

absl::StatusOr<Tree> ScheduleKernel(ir::Module& module, const ir::Kernel& kernel,
                                    const DeviceInfo& device) {
  return ScheduleForTile(module, kernel, device, nullptr);
}

absl::StatusOr<Tree> ScheduleForTile(ir::Module& module, const ir::Kernel& kernel,
                                     const DeviceInfo& device, const schedule::Tile* tile) {
  const VectorIsa isa = IsaOf(device);
  if (kernel.schedule == ir::Schedule::kSorting) {
    return SchedulePlainly(module, kernel, VectorBytes(isa) / static_cast<int>(sizeof(int64_t)));
  }
  KILN_ASSIGN_OR_RETURN(Nest nest, BuildNest(module, kernel, /*collapse=*/true, tile));
  if (kernel.schedule == ir::Schedule::kContraction) {
    std::optional<ContractionPlan> plan = PlanContraction(module, nest, device);
    if (plan && plan->has_planes && device.rank == 0) {
      const auto winograd = PlanWinograd(module, nest, *plan, device);
      if (winograd) return ScheduleWinograd(module, kernel, nest, *winograd, device);
    }
    if (plan) return ScheduleContraction(module, kernel, nest, *std::move(plan), device.l2_bytes);
  }
  if (kernel.schedule == ir::Schedule::kPacking && tile == nullptr) {
    std::optional<Tree> panels = SchedulePanels(module, kernel, nest);
    if (panels) return *std::move(panels);
  }
  return ScheduleLoops(module, kernel, std::move(nest), isa, device);
}

}  // namespace kiln::schedule::cpu
