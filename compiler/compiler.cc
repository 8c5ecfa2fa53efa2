#include "compiler/compiler.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/assemble.h"
#include "compiler/build_id.h"
#include "compiler/codegen/cpp/cpp_target.h"
#include "compiler/fusion/fuse.h"
#include "compiler/graph/import.h"
#include "compiler/kernel_interface.h"
#include "compiler/lowering/lower.h"
#include "compiler/memory/plan_memory.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/verify.h"
#include "compiler/stage_runner.h"
#include "compiler/toolchain/clang.h"
#include "compiler/toolchain/lld.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/digest.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

DeviceInfo MakeDeviceInfo(const v1::Device& device) {
  DeviceInfo info;
  info.arch = device.arch();
  info.features.assign(device.features().begin(), device.features().end());
  std::sort(info.features.begin(), info.features.end());
  info.features.erase(std::unique(info.features.begin(), info.features.end()), info.features.end());
  if (device.l1_bytes() > 0) info.l1_bytes = device.l1_bytes();
  if (device.l2_bytes() > 0) info.l2_bytes = device.l2_bytes();
  if (device.l3_bytes() > 0) info.l3_bytes = device.l3_bytes();
  return info;
}

absl::StatusOr<std::unique_ptr<codegen::Target>> MakeTarget(const v1::Device& device) {
  switch (device.target()) {
    case v1::TARGET_CPP:
      return codegen::MakeCppTarget(MakeDeviceInfo(device));
    case v1::TARGET_UNSPECIFIED:
      return absl::InvalidArgumentError("the device names no target; expected TARGET_CPP");
    default:
      return absl::UnimplementedError(absl::StrCat(
          "this build has no target ", v1::Target_Name(device.target()), "; it has TARGET_CPP"));
  }
}

fusion::FuseOptions MakeFuseOptions(const v1::PlanRequest& request) {
  const v1::CompileOptions& options = request.options();
  return {.enabled = !options.disable_fusion(),
          .disabled_passes = {options.disabled_passes().begin(), options.disabled_passes().end()}};
}

lowering::LoweringOptions MakeLoweringOptions(const v1::Device& device) {
  const auto& libraries = device.libraries();
  return {.library_steps =
              std::find(libraries.begin(), libraries.end(), "torch") != libraries.end()};
}

// A tree for each kernel of the module, in order.
absl::StatusOr<std::vector<schedule::Tree>> ScheduleKernels(const codegen::Target& target,
                                                            ir::Module& module,
                                                            const StopCheck& stop) {
  std::vector<schedule::Tree> trees;
  for (const ir::Operation& operation : module.operations) {
    const auto* kernel = std::get_if<ir::Kernel>(&operation);
    if (kernel == nullptr) continue;
    if (stop) KILN_RETURN_IF_ERROR(stop());
    KILN_ASSIGN_OR_RETURN(schedule::Tree tree, target.Schedule(module, *kernel));
    KILN_RETURN_IF_ERROR(schedule::Verify(module, tree));
    trees.push_back(std::move(tree));
  }
  return trees;
}

// Prints every kernel and names it by its text, so that equal kernels are one. A name is unique
// among the kernels of a device and options: it is no cache key.
absl::StatusOr<std::vector<NamedKernel>> EmitKernels(const codegen::Target& target,
                                                     ir::Module& module,
                                                     const std::vector<schedule::Tree>& trees,
                                                     const StopCheck& stop, size_t most_bytes,
                                                     v1::PlanResponse& response) {
  absl::flat_hash_set<std::string> known;
  size_t source_bytes = 0;
  std::vector<NamedKernel> kernels(module.operations.size());
  size_t number = 0;
  for (size_t i = 0; i < module.operations.size(); ++i) {
    const auto* kernel = std::get_if<ir::Kernel>(&module.operations[i]);
    if (kernel == nullptr) continue;
    if (stop) KILN_RETURN_IF_ERROR(stop());
    NamedKernel& named = kernels[i];
    KILN_ASSIGN_OR_RETURN(named.emitted, target.Print(module, trees[number++]));
    KILN_RETURN_IF_ERROR(StateInterface(module, *kernel, named.emitted));
    named.symbol = absl::StrCat("kiln_", Sha256(named.emitted.source).ToHex().substr(0, 24));
    if (!known.insert(named.symbol).second) continue;
    source_bytes += named.emitted.source.size();
    if (source_bytes > most_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the graph's kernels have more than ", most_bytes,
                       " bytes of source, which is the limit for a graph of its length"));
    }
    v1::KernelSource& source = *response.add_kernels();
    source.set_symbol(named.symbol);
    source.set_source(absl::StrCat(
        named.emitted.prelude,
        absl::StrReplaceAll(named.emitted.source, {{codegen::kSymbolPlaceholder, named.symbol}})));
    for (const std::string& origin : kernel->origins) source.add_ops(origin);
  }
  return kernels;
}

// Views the request's source.
absl::StatusOr<toolchain::ClangInvocation> PrepareKernel(const v1::CompileKernelRequest& request) {
  const v1::CompileOptions options = KeyedOptions(request.options());
  if (options.optimization_level() < 1 || options.optimization_level() > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimization_level is ", options.optimization_level(), "; expected 0 to 3"));
  }
  const DeviceInfo device = MakeDeviceInfo(request.device());
  const absl::string_view prelude = codegen::CppPrelude();
  return toolchain::Prepare(
      {.source = request.source(),
       .prelude_bytes = absl::StartsWith(request.source(), prelude) ? prelude.size() : 0,
       .arch = device.arch,
       .features = device.features,
       .optimization_level = options.optimization_level(),
       .fast_math = options.fast_math(),
       .want_assembly = options.debug()});
}

// The planner's work may grow with the graph, and no faster than it.
constexpr int64_t kPlanSteps = 2'000'000, kPlanStepsPerByte = 500;  // models take 1 to 3 a byte
constexpr size_t kSourceBytes = 4 << 20, kSourceBytesPerByte = 256;

void AddReport(const StageRunner& stages, const std::vector<fusion::Decision>& decisions,
               bool debug, v1::PlanResponse& response) {
  for (const StageRunner::Timing& timing : stages.timings()) {
    v1::StageTime& out = *response.add_stages();
    out.set_stage(timing.stage);
    out.set_duration_ns(timing.duration_ns);
  }
  if (!debug) return;
  for (const StageRunner::Dump& dump : stages.dumps()) {
    v1::Debug::StageIr& out = *response.mutable_debug()->add_ir();
    out.set_stage(dump.stage);
    out.set_text(dump.text);
  }
  for (const fusion::Decision& decision : decisions) {
    v1::FusionDecision& out = *response.mutable_debug()->add_decisions();
    out.set_producer(decision.producer);
    out.set_consumer(decision.consumer);
    out.set_fused(decision.fused);
    out.set_reason(decision.reason);
  }
}

}  // namespace

std::string CompilerBuildId() {
  return absl::StrCat(kSourceHash, " ", toolchain::ToolchainVersion());
}

std::string ToolchainVersion() {
  return toolchain::ToolchainVersion();
}

absl::Status CheckGraphSize(const v1::Graph& graph) {
  return graph::CheckCounts(graph);
}

absl::StatusOr<v1::PlanResponse> PlanGraph(const v1::PlanRequest& request, const StopCheck& stop) {
  KILN_ASSIGN_OR_RETURN(auto target, MakeTarget(request.device()));
  v1::PlanResponse response;
  ir::Module module;
  graph::Graph graph;
  std::vector<schedule::Tree> trees;
  memory::Plan plan;
  std::vector<fusion::Decision> decisions;
  std::vector<NamedKernel> kernels;
  const size_t graph_bytes = request.graph().ByteSizeLong();
  module.ints->set_budget(kPlanSteps + kPlanStepsPerByte * static_cast<int64_t>(graph_bytes));
  StageRunner stages(module, stop, request.options().debug());

  KILN_RETURN_IF_ERROR(stages.Run("import", [&]() -> absl::Status {
    KILN_ASSIGN_OR_RETURN(graph, graph::Import(request.graph(), *module.ints));
    return absl::OkStatus();
  }));
  KILN_RETURN_IF_ERROR(stages.RunOnIr("lower", [&] {
    return lowering::Lower(graph, MakeLoweringOptions(request.device()), module);
  }));
  KILN_RETURN_IF_ERROR(stages.RunOnIr(
      "fuse", [&] { return fusion::Fuse(module, MakeFuseOptions(request), &decisions); }));
  KILN_RETURN_IF_ERROR(stages.Run("schedule", [&]() -> absl::Status {
    KILN_ASSIGN_OR_RETURN(trees, ScheduleKernels(*target, module, stop));
    return absl::OkStatus();
  }));
  stages.Keep("schedule", [&] { return schedule::Print(module, trees); });
  KILN_RETURN_IF_ERROR(stages.Run("plan_memory", [&]() -> absl::Status {
    KILN_ASSIGN_OR_RETURN(plan, memory::PlanMemory(module));
    return memory::CheckPlan(module, plan);
  }));
  KILN_RETURN_IF_ERROR(stages.Run("emit", [&]() -> absl::Status {
    const size_t most_bytes = kSourceBytes + kSourceBytesPerByte * graph_bytes;
    KILN_ASSIGN_OR_RETURN(kernels, EmitKernels(*target, module, trees, stop, most_bytes, response));
    return absl::OkStatus();
  }));
  KILN_RETURN_IF_ERROR(stages.Run("assemble", [&]() -> absl::Status {
    KILN_ASSIGN_OR_RETURN(*response.mutable_program(),
                          Assemble(request.graph(), module, plan, kernels));
    return absl::OkStatus();
  }));
  AddReport(stages, decisions, request.options().debug(), response);
  return response;
}

absl::StatusOr<Digest> KernelKeyOf(const v1::CompileKernelRequest& request) {
  KILN_ASSIGN_OR_RETURN(toolchain::ClangInvocation invocation, PrepareKernel(request));
  return toolchain::KeyOf(invocation);
}

absl::StatusOr<v1::CompileKernelResponse> CompileKernel(const v1::CompileKernelRequest& request) {
  KILN_ASSIGN_OR_RETURN(toolchain::ClangInvocation invocation, PrepareKernel(request));
  KILN_ASSIGN_OR_RETURN(toolchain::ClangOutput output, toolchain::CompileCpp(invocation));
  v1::CompileKernelResponse response;
  response.set_object(std::move(output.object));
  response.set_assembly(std::move(output.assembly));
  return response;
}

absl::Status PrepareForKernels(const v1::CompileKernelRequest& like) {
  v1::CompileKernelRequest request;
  *request.mutable_device() = like.device();
  *request.mutable_options() = like.options();
  request.set_source(std::string(codegen::CppPrelude()));
  KILN_ASSIGN_OR_RETURN(toolchain::ClangInvocation invocation, PrepareKernel(request));
  return toolchain::PrecompilePrelude(invocation);
}

absl::StatusOr<std::string> LinkKernels(absl::Span<const std::string> objects) {
  return toolchain::LinkSharedObject(objects);
}

void TakeOwnLinkerFiles() {
  toolchain::MakeOwnMemoryFiles();
}

}  // namespace kiln
