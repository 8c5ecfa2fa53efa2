#include "compiler/fusion/fuse.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "compiler/fusion/passes.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::fusion {
namespace {

struct Pass {
  const char* name;
  void (*run)(FusionGraph&);
  bool FuseOptions::* wanted = nullptr;  // of a pass that not every target has
};

// Loops and reductions take their final form around the passes that join kernels.
constexpr Pass kPasses[] = {
    {"collapse", FoldEmptyReductions},
    {"collapse", RemoveUnitLoops},
    {"inline", InlineProducers},
    {"repeats", ShareResults},
    {"epilogue", FuseEpilogues},
    {"merge", MergeKernels},
    {"repeats", ShareRepeats},
    {"horizontal", MergeHorizontally},
    {"launches", MergeLaunches, &FuseOptions::costly_launches},
    {"split", SplitReductions},
    {"layouts", ChooseLayouts},
};

}  // namespace

absl::Status Fuse(ir::Module& module, const FuseOptions& options,
                  std::vector<Decision>* decisions) {
  for (const ir::Operation& operation : module.operations) {
    const auto* repeat = std::get_if<ir::Repeat>(&operation);
    if (repeat == nullptr || (repeat->steps.empty() && repeat->versions.empty())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("repeat @", NameOf(operation), " is from a stage after fusion"));
  }
  FusionGraph graph(module, decisions);
  graph.set_plain_operands(options.plain_operands, options.takes_operands);
  graph.set_costly_launches(options.costly_launches);
  graph.set_lanes_beside_windows(options.lanes_beside_windows);
  RemoveDeadKernels(graph);
  if (options.enabled) {
    const std::vector<std::string>& disabled = options.disabled_passes;
    for (const Pass& pass : kPasses) {
      if (std::find(disabled.begin(), disabled.end(), pass.name) != disabled.end()) continue;
      if (pass.wanted != nullptr && !(options.*pass.wanted)) continue;
      pass.run(graph);
      if (!options.verify_passes) continue;
      KILN_RETURN_IF_ERROR(Annotate(graph.Verify(), absl::StrCat("after pass ", pass.name)));
    }
    RemoveDeadKernels(graph);
  }
  graph.Finish();
  return absl::OkStatus();
}

}  // namespace kiln::fusion
