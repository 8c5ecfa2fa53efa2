#include "compiler/schedule/ptx/schedule.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/kept_values.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/schedule/row_scheduler.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule::ptx {

using ir::IntExpr;

namespace {

// Shared memory that the kept rows of a task may take: as many blocks as fill a multiprocessor's
// threads should fit beside each other.
constexpr int64_t kKeptBytes = 48 << 10;

}  // namespace

absl::StatusOr<Tree> ScheduleKernel(ir::Module& module, const ir::Kernel& kernel,
                                    const DeviceInfo& device) {
  if (kernel.schedule == ir::Schedule::kSorting) {
    return absl::UnimplementedError(
        absl::StrCat("kernel ", kernel.name, ": target ptx leaves sorting to libraries"));
  }
  KILN_ASSIGN_OR_RETURN(const Nest nest, BuildNest(module, kernel, /*collapse=*/true));
  const TeamPlan plan = PlanTeam(*module.ints, nest, device);
  Builder builder(module, kernel, nest);
  RowScheduler row(builder, nest, plan);
  Tree& tree = builder.tree();
  tree.team = plan.team;
  tree.reasons.push_back(plan.reason);
  Block root;
  Block* at = &root;
  for (IntExpr var : nest.outer) {
    if (plan.outer && var == plan.lanes.var) continue;
    at = &builder.AddLoop(builder.Whole(var, Binding::kTask), *at);
  }
  if (plan.outer) {
    const Binding binding = plan.lanes.width > 1 ? Binding::kTaskVector : Binding::kTask;
    row.AddLanesBody(builder.Whole(plan.lanes.var, binding, plan.lanes.width), *at);
  } else {
    const std::vector<KeptValue> kept = FindKeptValues(*module.ints, nest, kernel.num_values,
                                                       {.most_bytes = kKeptBytes, .loads = true});
    if (row.Keep(kept, Space::kL1, *at)) {
      tree.reasons.push_back("a row of what two loops read or compute is kept");
    }
    row.AddPhases(*at);
  }
  tree.body = std::move(root);
  return std::move(tree);
}

}  // namespace kiln::schedule::ptx
