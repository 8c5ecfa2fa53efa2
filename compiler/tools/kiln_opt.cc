// kiln-opt: runs the compiler's stages on textual IR, to cut a bug in half.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "compiler/codegen/targets.h"
#include "compiler/fusion/fuse.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "compiler/memory/plan_memory.h"
#include "compiler/prepare/prepare.h"
#include "compiler/schedule/parse.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/verify.h"
#include "compiler/schedule/windowed.h"
#include "compiler/tools/run_module.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr absl::string_view kUsage =
    R"(usage: kiln-opt [FLAGS] [FILE]

Reads a module's text from FILE, or from standard input, runs the stages
  ir      read and verify
  fusion  join operations
  prepare  what follows from parameters alone goes first, with --prepare
  tile    put kernels that the target runs better tile by tile into repeats
  memory  lay out the workspace, check the plan
  schedule  a tree of loops for each kernel, verified
  emit    the target's source of each kernel
in this order, and prints what the last one made. A text with schedules in it
begins after that stage.

  --stop-after=STAGE    the last stage to run (default fusion)
  --start-from=STAGE    the first stage after ir: those between are left out
  --disable=PASS        leave out a pass: fusion as a whole, or its collapse, inline, epilogue,
                        merge, horizontal, launches, split or tile; may be
                        repeated
  --decisions           print fusion's decisions as comments
  --prepare=BYTES       of prepared buffers, at most (default 0: none)
  --windows=BYTES       in stage tile, instead of what the target would do: the longest chains of
                        kernels that read windows of each other and whose tiles fit so much memory
  --target=NAME         schedule and emit for this target (default cpp)
  --arch=NAME           and this architecture of it (default for cpp: x86-64-v3)
  --features=A,B        instruction features of that architecture
  --run                 interpret what the last stage made, with random inputs, and print the
                        outputs' sums and first values instead of the module
  --seed=N              of those inputs (default 0)
  --symbols=A,B         values of the module's symbols (default: their hints)
  --verify-only         print nothing; the exit status tells
  --help                this text

Exit status: 0, 1 where a stage failed, 2 for wrong use.
)";

enum class Stage { kIr, kFusion, kPrepare, kTile, kMemory, kSchedule, kEmit };
constexpr absl::string_view kStageNames[] = {"ir",     "fusion",   "prepare", "tile",
                                             "memory", "schedule", "emit"};

struct Flags {
  std::string file = "-";
  Stage stop_after = Stage::kFusion;
  Stage start_from = Stage::kIr;
  std::vector<std::string> disabled;
  bool decisions = false;
  bool run = false;
  bool verify_only = false;
  int64_t prepare_bytes = 0;
  int64_t window_bytes = 0;
  bool help = false;
  std::string target = "cpp";
  std::string arch;
  std::vector<std::string> features;
  tools::RunOptions run_options;
};

absl::StatusOr<Stage> StageFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kStageNames); ++i) {
    if (name == kStageNames[i]) return static_cast<Stage>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no stage '", name,
                   "'; stages are ir, fusion, prepare, tile, memory, schedule, emit"));
}

absl::Status Disable(absl::string_view pass, std::vector<std::string>& disabled) {
  for (absl::string_view known : {"fusion", "collapse", "inline", "repeats", "epilogue", "merge",
                                  "horizontal", "split", "tile"}) {
    if (pass != known) continue;
    disabled.emplace_back(pass);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no pass '", pass, "'; see --help"));
}

absl::Status SetSymbols(absl::string_view list, tools::RunOptions& options) {
  for (absl::string_view item : absl::StrSplit(list, ',')) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(item, &value)) {
      return absl::InvalidArgumentError(absl::StrCat("--symbols: '", item, "' is no integer"));
    }
    options.symbols.push_back(value);
  }
  return absl::OkStatus();
}

absl::Status SetFlag(absl::string_view name, absl::string_view value, Flags& flags) {
  if (name == "--stop-after") {
    KILN_ASSIGN_OR_RETURN(flags.stop_after, StageFromName(value));
  } else if (name == "--start-from") {
    KILN_ASSIGN_OR_RETURN(flags.start_from, StageFromName(value));
  } else if (name == "--disable") {
    return Disable(value, flags.disabled);
  } else if (name == "--target") {
    flags.target = std::string(value);
  } else if (name == "--arch") {
    flags.arch = std::string(value);
  } else if (name == "--features") {
    flags.features = absl::StrSplit(value, ',', absl::SkipEmpty());
  } else if (name == "--prepare") {
    if (!absl::SimpleAtoi(value, &flags.prepare_bytes) || flags.prepare_bytes < 0) {
      return absl::InvalidArgumentError(absl::StrCat("--prepare: '", value, "' is no size"));
    }
  } else if (name == "--windows") {
    if (!absl::SimpleAtoi(value, &flags.window_bytes) || flags.window_bytes < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--windows: '", value, "' is no size"));
    }
  } else if (name == "--seed") {
    if (!absl::SimpleAtoi(value, &flags.run_options.seed)) {
      return absl::InvalidArgumentError(absl::StrCat("--seed: '", value, "' is no number"));
    }
  } else if (name == "--symbols") {
    return SetSymbols(value, flags.run_options);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("there is no flag '", name, "'; see --help"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  bool has_file = false;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--run") {
      flags.run = true;
    } else if (argument == "--decisions") {
      flags.decisions = true;
    } else if (argument == "--verify-only") {
      flags.verify_only = true;
    } else if (argument == "--help") {
      flags.help = true;
    } else if (absl::StartsWith(argument, "--")) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(argument, absl::MaxSplits('=', 1));
      KILN_RETURN_IF_ERROR(SetFlag(parts.first, parts.second, flags));
    } else if (has_file) {
      return absl::InvalidArgumentError("one file at a time");
    } else {
      flags.file = std::string(argument);
      has_file = true;
    }
  }
  if (flags.start_from > flags.stop_after) {
    return absl::InvalidArgumentError("--start-from names a stage after that of --stop-after");
  }
  return flags;
}

absl::StatusOr<std::string> ReadText(const std::string& file) {
  if (file == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read '", file, "'"));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) return absl::DataLossError(absl::StrCat("reading '", file, "' failed"));
  return text;
}

std::string Size(ir::IntExpr size, const ir::Module& module) {
  return ir::ToString(size, [&](ir::IntExpr leaf) {
    return leaf.kind() == ir::IntKind::kSymbol ? module.ints->symbols()[leaf.id()].name
                                               : std::string("?");
  });
}

absl::Status RunMemory(bool print, ir::Module& module) {
  KILN_ASSIGN_OR_RETURN(memory::Plan plan, memory::PlanMemory(module));
  KILN_RETURN_IF_ERROR(memory::CheckPlan(module, plan));
  if (!print) return absl::OkStatus();
  std::cout << "// workspace " << Size(plan.workspace_bytes, module) << " bytes\n";
  for (size_t i = 0; i < module.buffers.size(); ++i) {
    const bool taken_over = plan.in_place_of[i] >= 0;
    if (!plan.offsets[i] && !taken_over) continue;
    std::cout << "// @" << module.buffers[i].name;
    if (plan.offsets[i]) std::cout << " at " << Size(plan.offsets[i], module);
    if (taken_over) std::cout << ", in place of @" << module.buffers[plan.in_place_of[i]].name;
    std::cout << "\n";
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<codegen::Target>> MakeTarget(const Flags& flags) {
  KILN_ASSIGN_OR_RETURN(const codegen::TargetKind* kind, codegen::FindTarget(flags.target));
  DeviceInfo device;
  device.arch = flags.arch.empty() ? kind->sample_device.arch : flags.arch;
  device.features = flags.features;
  std::sort(device.features.begin(), device.features.end());
  return kind->make(std::move(device));
}

absl::Status RunFusion(const Flags& flags, ir::Module& module) {
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<codegen::Target> target, MakeTarget(flags));
  std::vector<fusion::Decision> decisions;
  fusion::FuseOptions options;
  options.costly_launches = target->HasCostlyLaunches();
  options.plain_operands = target->TakesPlainOperands();
  options.lanes_beside_windows = target->HasLanesBesideWindows();
  options.takes_operands = [&](ir::Module& of, const ir::Kernel& kernel) {
    return target->TakesOperands(of, kernel);
  };
  for (const std::string& pass : flags.disabled) {
    if (pass == "fusion") options.enabled = false;
  }
  options.disabled_passes = flags.disabled;
  options.verify_passes = true;
  KILN_RETURN_IF_ERROR(fusion::Fuse(module, options, &decisions));
  KILN_RETURN_IF_ERROR(ir::Verify(module));
  if (!flags.decisions) return absl::OkStatus();
  for (const fusion::Decision& d : decisions) {
    std::cout << "// " << (d.fused ? "fused " : "kept ") << d.producer << " and " << d.consumer
              << ": " << d.reason << "\n";
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<schedule::Tree>> RunSchedule(const Flags& flags, ir::Module& module) {
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<codegen::Target> target, MakeTarget(flags));
  std::vector<schedule::Tree> trees;
  for (const ir::Operation& operation : module.operations) {
    if (std::holds_alternative<ir::Library>(operation)) continue;
    KILN_ASSIGN_OR_RETURN(schedule::Tree tree, target->Schedule(module, operation));
    KILN_RETURN_IF_ERROR(schedule::Verify(module, tree));
    trees.push_back(std::move(tree));
  }
  return trees;
}

absl::Status RunEmit(const Flags& flags, const std::vector<schedule::Tree>& trees,
                     ir::Module& module) {
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<codegen::Target> target, MakeTarget(flags));
  size_t number = 0;
  for (const ir::Operation& operation : module.operations) {
    if (std::holds_alternative<ir::Library>(operation)) continue;
    KILN_ASSIGN_OR_RETURN(codegen::EmittedKernel emitted, target->Print(module, trees[number++]));
    const auto name = [&](std::string* out, ir::BufferId id) {
      absl::StrAppend(out, "@", module.buffers[id].name);
    };
    // The prelude is the same for all kernels and long.
    std::cout << "// kernel @" << NameOf(operation) << " ("
              << absl::StrJoin(emitted.buffers, ", ", name) << ")\n"
              << emitted.source << "\n";
  }
  return absl::OkStatus();
}

// Of a text that has schedules already.
absl::Status RunSchedules(const Flags& flags, schedule::Scheduled& parsed) {
  for (const schedule::Tree& tree : parsed.trees) {
    KILN_RETURN_IF_ERROR(schedule::Verify(parsed.module, tree));
  }
  if (flags.run) {
    KILN_ASSIGN_OR_RETURN(std::string report,
                          tools::RunModule(parsed.module, parsed.trees, flags.run_options));
    std::cout << report;
  } else if (!flags.verify_only && flags.stop_after == Stage::kEmit) {
    return RunEmit(flags, parsed.trees, parsed.module);
  } else if (!flags.verify_only) {
    std::cout << schedule::Print(parsed.module, parsed.trees);
  }
  return absl::OkStatus();
}

absl::Status RunStages(const Flags& flags) {
  KILN_ASSIGN_OR_RETURN(std::string text, ReadText(flags.file));
  KILN_ASSIGN_OR_RETURN(schedule::Scheduled parsed, schedule::Parse(text));
  ir::Module& module = parsed.module;
  std::vector<schedule::Tree>& trees = parsed.trees;
  if (!trees.empty()) return RunSchedules(flags, parsed);
  KILN_RETURN_IF_ERROR(ir::Verify(module));
  const auto runs = [&](Stage stage) {
    return flags.start_from <= stage && stage <= flags.stop_after;
  };
  const bool prints = !flags.run && !flags.verify_only;
  if (runs(Stage::kFusion)) KILN_RETURN_IF_ERROR(RunFusion(flags, module));
  if (runs(Stage::kPrepare) && flags.prepare_bytes > 0) {
    KILN_ASSIGN_OR_RETURN(const std::unique_ptr<codegen::Target> target, MakeTarget(flags));
    KILN_RETURN_IF_ERROR(prepare::Prepare(*target, flags.prepare_bytes, module));
    KILN_RETURN_IF_ERROR(ir::Verify(module));
  }
  if (runs(Stage::kTile) && !absl::c_linear_search(flags.disabled, "tile")) {
    KILN_ASSIGN_OR_RETURN(const std::unique_ptr<codegen::Target> target, MakeTarget(flags));
    if (flags.window_bytes > 0) {
      schedule::TileByWindows(module, flags.window_bytes);
    } else {
      target->Tile(module);
    }
    KILN_RETURN_IF_ERROR(ir::Verify(module));
  }
  if (runs(Stage::kMemory)) {
    KILN_RETURN_IF_ERROR(RunMemory(prints && flags.stop_after == Stage::kMemory, module));
  }
  if (runs(Stage::kSchedule)) {
    KILN_ASSIGN_OR_RETURN(trees, RunSchedule(flags, module));
  }
  if (flags.run) {
    KILN_ASSIGN_OR_RETURN(std::string report, tools::RunModule(module, trees, flags.run_options));
    std::cout << report;
  } else if (prints && runs(Stage::kEmit)) {
    return RunEmit(flags, trees, module);
  } else if (prints && runs(Stage::kSchedule)) {
    std::cout << schedule::Print(module, trees);
  } else if (prints) {
    std::cout << ir::Print(module);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  absl::StatusOr<Flags> flags = ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::cerr << "kiln-opt: " << flags.status().message() << "\n";
    return 2;
  }
  if (flags->help) {
    std::cout << kUsage;
    return 0;
  }
  if (absl::Status status = RunStages(*flags); !status.ok()) {
    std::cout.flush();
    std::cerr << "kiln-opt: " << status.message() << "\n";
    return 1;
  }
  std::cout.flush();
  if (!std::cout) {
    std::cerr << "kiln-opt: writing to standard output failed\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) {
  return kiln::Main(argc, argv);
}
