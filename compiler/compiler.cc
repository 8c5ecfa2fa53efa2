#include "compiler/compiler.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/assemble.h"
#include "compiler/build_id.h"
#include "compiler/codegen/targets.h"
#include "compiler/device_info.h"
#include "compiler/fusion/fuse.h"
#include "compiler/graph/import.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/ir/identity.h"
#include "compiler/joint_launches.h"
#include "compiler/kernel_interface.h"
#include "compiler/lowering/lower.h"
#include "compiler/memory/plan_memory.h"
#include "compiler/prepare/prepare.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/verify.h"
#include "compiler/stage_runner.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/digest.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"

namespace kiln {
namespace {

absl::StatusOr<const codegen::TargetKind*> FindTarget(const v1::Device& device) {
  if (device.target() == v1::TARGET_UNSPECIFIED) {
    return absl::InvalidArgumentError("the device names no target");
  }
  return codegen::FindTarget(TargetName(device.target()));
}

absl::StatusOr<std::unique_ptr<codegen::Target>> MakeTarget(const v1::Device& device,
                                                            bool deterministic = false,
                                                            int rank = 0) {
  KILN_ASSIGN_OR_RETURN(const codegen::TargetKind* kind, FindTarget(device));
  DeviceInfo info = ReadDevice(device);
  info.rank = rank;
  info.deterministic = deterministic;
  return kind->make(std::move(info));
}

// Doubles the time of fusion, so it is for developers and tests.
#ifdef KILN_VERIFY_PASSES
constexpr bool kVerifyPasses = true;
#else
constexpr bool kVerifyPasses = false;
#endif

fusion::FuseOptions MakeFuseOptions(const v1::PlanRequest& request, const codegen::Target& target) {
  const v1::CompileOptions& options = request.options();
  return {.enabled = !options.disable_fusion(),
          .disabled_passes = {options.disabled_passes().begin(), options.disabled_passes().end()},
          .costly_launches = target.HasCostlyLaunches(),
          .plain_operands = target.TakesPlainOperands(),
          .takes_operands =
              [&target](ir::Module& module, const ir::Kernel& kernel) {
                return target.TakesOperands(module, kernel);
              },
          .lanes_beside_windows = target.HasLanesBesideWindows(),
          .verify_passes = kVerifyPasses || options.debug()};
}

bool IsDisabled(const v1::PlanRequest& request, absl::string_view pass) {
  return absl::c_linear_search(request.options().disabled_passes(), pass);
}

// `scatters`: whether kernels may, however few values there are.
lowering::LoweringOptions MakeLoweringOptions(const v1::PlanRequest& request,
                                              const codegen::Target& target, bool scatters) {
  const bool by_libraries = absl::c_linear_search(request.device().libraries(), "torch");
  return {.library_steps = by_libraries,
          .mark_parameters = request.options().prepare_memory() > 0,
          .contracts_few_rows = target.ContractsFewRows(),
          .left_to_libraries =
              [&target, scatters](ir::Module& module, const ir::Kernel& kernel, bool goes_on) {
                return (!scatters && ir::HasScatter(kernel)) ||
                       target.LeavesToLibraries(module, kernel, goes_on);
              },
          .taken_together =
              [&target, by_libraries](ir::Module& module,
                                      const std::vector<const ir::Kernel*>& kernels) {
                return target.TakesTogether(module, kernels, by_libraries);
              },
          .checks_divisors = target.ChecksDivisors(),
          .lanes_beside_windows = target.HasLanesBesideWindows(),
          .attention_by_libraries = target.LeavesAttentionToLibraries()};
}

// Whether some kernel makes a copy of what it scatters to.
bool CopiesToScatter(const ir::Module& module) {
  return absl::c_any_of(module.operations, [](const ir::Operation& operation) {
    const auto* kernel = std::get_if<ir::Kernel>(&operation);
    return kernel != nullptr && kernel->phases.size() > 1 && ir::HasScatter(*kernel);
  });
}

// A tree for each kernel and repeat of the module that none before it equals, in order.
absl::StatusOr<std::vector<schedule::Tree>> ScheduleKernels(
    const codegen::Target& target, ir::Module& module, const std::vector<ir::Identity>& identities,
    const StopCheck& stop) {
  std::vector<schedule::Tree> trees;
  for (size_t i = 0; i < module.operations.size(); ++i) {
    const ir::Operation& operation = module.operations[i];
    if (std::holds_alternative<ir::Library>(operation) || identities[i].first != i) continue;
    if (stop) KILN_RETURN_IF_ERROR(stop());
    KILN_ASSIGN_OR_RETURN(schedule::Tree tree, target.Schedule(module, operation));
    KILN_RETURN_IF_ERROR(schedule::Verify(module, tree));
    trees.push_back(std::move(tree));
  }
  return trees;
}

// The kernel of `to` is that of `from`, for other buffers.
NamedKernel ForBuffersOf(const NamedKernel& kernel, const ir::Identity& from,
                         const ir::Identity& to) {
  NamedKernel out = kernel;
  for (ir::BufferId& buffer : out.emitted.buffers) {
    buffer = to.buffers[absl::c_find(from.buffers, buffer) - from.buffers.begin()];
  }
  for (NamedKernel& other : out.alternatives) other = ForBuffersOf(other, from, to);
  return out;
}

void AddPlan(const schedule::LaunchPlan& plan, v1::KernelSource& source) {
  v1::LaunchPlan& out = *source.add_plans();
  out.set_strategy(plan.strategy);
  out.set_sizes(plan.sizes);
  out.set_typical(plan.typical);
  out.set_kernels(plan.kernels);
  out.set_l2_peak_bytes(plan.l2_peak_bytes);
  out.set_l2_bytes(plan.l2_bytes);
  out.set_tiles(plan.tiles);
  out.set_tile(plan.tile);
  out.set_split_dimension(plan.split_dimension);
  out.set_split_buffer(plan.split_buffer);
  out.set_predicted_us(plan.predicted_seconds * 1e6);
  out.set_unfused_us(plan.unfused_seconds * 1e6);
}

// Prints kernels and names each by its text, so that equal kernels are one. A name is unique among
// the kernels of a device and options: it is no cache key.
class Emitter {
 public:
  Emitter(const codegen::Target& target, ir::Module& module, size_t most_bytes, bool debug,
          v1::PlanResponse& response)
      : target_(target),
        module_(module),
        most_bytes_(most_bytes),
        debug_(debug),
        response_(response) {}

  absl::StatusOr<NamedKernel> Emit(const ir::Operation& operation, const schedule::Tree& tree) {
    KILN_ASSIGN_OR_RETURN(codegen::EmittedKernel emitted, target_.Print(module_, tree));
    return Name(KernelsOf(operation), tree, tree.origins, std::move(emitted));
  }

  // One for all of the operations, which are equal to that of `tree`: Target::PrintTogether.
  absl::StatusOr<std::optional<NamedKernel>> EmitTogether(
      const std::vector<const ir::Operation*>& operations, const schedule::Tree& tree,
      absl::Span<const codegen::BufferMap> copies) {
    KILN_ASSIGN_OR_RETURN(std::optional<codegen::EmittedKernel> emitted,
                          target_.PrintTogether(module_, tree, copies));
    if (!emitted) return std::nullopt;
    std::vector<ir::Kernel> kernels;
    std::vector<std::string> origins;
    for (const ir::Operation* operation : operations) {
      for (const ir::Kernel& kernel : KernelsOf(*operation)) {
        kernels.push_back(kernel);
        origins.insert(origins.end(), kernel.origins.begin(), kernel.origins.end());
      }
    }
    return Name(kernels, tree, origins, *std::move(emitted));
  }

 private:
  absl::StatusOr<NamedKernel> Name(absl::Span<const ir::Kernel> kernels, const schedule::Tree& tree,
                                   const std::vector<std::string>& origins,
                                   codegen::EmittedKernel emitted) {
    NamedKernel named{.emitted = std::move(emitted)};
    const size_t num_named = named.emitted.symbols.size();
    KILN_ASSIGN_OR_RETURN(const std::string interface,
                          InterfaceOf(module_, kernels, named.emitted));
    if (target_.NamesAllSizes() && named.emitted.symbols.size() > num_named) {
      return absl::InternalError(
          absl::StrCat("kernel @", tree.name, " does not name all of its sizes"));
    }
    named.emitted.source += target_.InterfaceText(interface, named.emitted.binary);
    named.symbol = absl::StrCat("kiln_", Sha256(named.emitted.source).ToHex().substr(0, 24));
    if (known_.insert(named.symbol).second) KILN_RETURN_IF_ERROR(Add(named, tree, origins));
    // Nobody reads them any more, and equal kernels copy the rest.
    named.emitted.source.clear();
    named.emitted.routines.clear();
    return named;
  }

  absl::Status Add(const NamedKernel& named, const schedule::Tree& tree,
                   const std::vector<std::string>& origins) {
    source_bytes_ += named.emitted.source.size();
    if (source_bytes_ > most_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the graph's kernels have more than ", most_bytes_,
                       " bytes of source, which is the limit for a graph of its length"));
    }
    v1::KernelSource& source = *response_.add_kernels();
    source.set_symbol(named.symbol);
    source.set_source(
        absl::StrReplaceAll(named.emitted.source, {{codegen::kSymbolPlaceholder, named.symbol}}));
    if (debug_) source.set_prelude(std::string(named.emitted.prelude));
    for (const codegen::Routine& routine : named.emitted.routines) {
      if (!routines_.insert(routine.name).second) continue;
      v1::KernelSource& out = *response_.add_routines();
      out.set_symbol(routine.name);
      out.set_source(routine.source);
      if (debug_) out.set_prelude(std::string(named.emitted.prelude));
    }
    for (const std::string& origin : origins) source.add_ops(origin);
    if (!debug_) return absl::OkStatus();
    for (const std::string& reason : tree.reasons) source.add_schedule(reason);
    for (const schedule::LaunchPlan& plan : tree.plans) AddPlan(plan, source);
    return absl::OkStatus();
  }

  const codegen::Target& target_;
  ir::Module& module_;
  const size_t most_bytes_;
  const bool debug_;
  v1::PlanResponse& response_;
  absl::flat_hash_set<std::string> known_, routines_;
  size_t source_bytes_ = 0;
};

// Schedules that a client times of one kernel, at most.
constexpr int kMostSchedules = 5;

// Other schedules of the operation, which is scheduled as `named`.
absl::Status AddAlternatives(const std::vector<std::unique_ptr<codegen::Target>>& others,
                             ir::Module& module, const ir::Operation& operation, Emitter& emitter,
                             NamedKernel& named) {
  if (ir::StoresPrepared(module, KernelsOf(operation))) return absl::OkStatus();
  absl::flat_hash_set<std::string> symbols = {named.symbol};
  for (const auto& other : others) {
    KILN_ASSIGN_OR_RETURN(const schedule::Tree tree, other->Schedule(module, operation));
    KILN_RETURN_IF_ERROR(schedule::Verify(module, tree));
    KILN_ASSIGN_OR_RETURN(NamedKernel alternative, emitter.Emit(operation, tree));
    if (!symbols.insert(alternative.symbol).second) continue;
    named.alternatives.push_back(std::move(alternative));
  }
  return absl::OkStatus();
}

// Makes the kernels of a module's operations, library steps aside.
class KernelMaker {
 public:
  // By operation: its tree, where none before it equals the operation; and the operations whose
  // launches are one with its own, as FindJointLaunches gives them.
  KernelMaker(ir::Module& module, const std::vector<ir::Identity>& identities,
              const std::vector<schedule::Tree>& trees,
              const std::vector<std::vector<size_t>>& together,
              const std::vector<std::unique_ptr<codegen::Target>>& others, Emitter& emitter)
      : module_(module),
        identities_(identities),
        together_(together),
        others_(others),
        emitter_(emitter),
        trees_(module.operations.size(), nullptr) {
    size_t number = 0;
    for (size_t i = 0; i < trees_.size(); ++i) {
      if (std::holds_alternative<ir::Library>(module.operations[i])) continue;
      if (identities[i].first == i && number < trees.size()) trees_[i] = &trees[number++];
    }
  }

  // One for each operation; `others` have other schedules. Nothing for library steps, and for
  // operations that another one's launch runs.
  absl::StatusOr<std::vector<NamedKernel>> Run(const StopCheck& stop) {
    std::vector<NamedKernel> kernels(module_.operations.size());
    std::vector<bool> is_made(kernels.size(), false);
    for (size_t i = 0; i < kernels.size(); ++i) {
      const ir::Operation& operation = module_.operations[i];
      if (is_made[i] || std::holds_alternative<ir::Library>(operation)) continue;
      if (stop) KILN_RETURN_IF_ERROR(stop());
      const schedule::Tree* tree = trees_[identities_[i].first];
      if (tree == nullptr) {
        return absl::InternalError(absl::StrCat("kernel @", NameOf(operation), " has no schedule"));
      }
      if (!together_.empty() && !together_[i].empty()) {
        KILN_ASSIGN_OR_RETURN(std::optional<NamedKernel> joint, MakeJoint(together_[i], *tree));
        if (joint) {
          kernels[i] = *std::move(joint);
          for (const size_t other : together_[i]) is_made[other] = true;
          continue;
        }
      }
      KILN_ASSIGN_OR_RETURN(kernels[i], Make(i, *tree));
    }
    return kernels;
  }

 private:
  absl::StatusOr<NamedKernel> Make(size_t number, const schedule::Tree& tree) {
    const size_t first = identities_[number].first;
    auto made = made_.find(first);
    if (made == made_.end()) {
      KILN_ASSIGN_OR_RETURN(NamedKernel kernel, emitter_.Emit(module_.operations[first], tree));
      KILN_RETURN_IF_ERROR(
          AddAlternatives(others_, module_, module_.operations[first], emitter_, kernel));
      made = made_.emplace(first, std::move(kernel)).first;
    }
    if (first == number) return made->second;
    return ForBuffersOf(made->second, identities_[first], identities_[number]);
  }

  absl::StatusOr<std::optional<NamedKernel>> MakeJoint(const std::vector<size_t>& numbers,
                                                       const schedule::Tree& tree) {
    const ir::Identity& from = identities_[identities_[numbers[0]].first];
    std::vector<codegen::BufferMap> copies(numbers.size());
    std::vector<const ir::Operation*> operations;
    for (size_t copy = 0; copy < numbers.size(); ++copy) {
      operations.push_back(&module_.operations[numbers[copy]]);
      for (size_t i = 0; i < from.buffers.size(); ++i) {
        copies[copy][from.buffers[i]] = identities_[numbers[copy]].buffers[i];
      }
    }
    return emitter_.EmitTogether(operations, tree, copies);
  }

  ir::Module& module_;
  const std::vector<ir::Identity>& identities_;
  const std::vector<std::vector<size_t>>& together_;
  const std::vector<std::unique_ptr<codegen::Target>>& others_;
  Emitter& emitter_;
  std::vector<const schedule::Tree*> trees_;       // by operation
  absl::flat_hash_map<size_t, NamedKernel> made_;  // by the first operation that it is for
};

// Views the request's source.
absl::StatusOr<codegen::KernelJob> MakeJob(const v1::CompileKernelRequest& request) {
  const v1::CompileOptions options = KeyedOptions(request.options());
  if (options.optimization_level() < 1 || options.optimization_level() > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimization_level is ", options.optimization_level(), "; expected 0 to 3"));
  }
  return codegen::KernelJob{.source = request.source(),
                            .optimization_level = options.optimization_level(),
                            .fast_math = options.fast_math(),
                            .want_assembly = options.debug()};
}

absl::Status WarmUp(const codegen::TargetKind& kind) {
  KILN_ASSIGN_OR_RETURN(auto target, kind.make(kind.sample_device));
  KILN_ASSIGN_OR_RETURN(codegen::CompiledKernel kernel,
                        target->Compile({.source = kind.sample_source, .has_prelude = false}));
  return target->Link({std::move(kernel.object)}).status();
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

std::vector<CompilerTarget> CompilerTargets() {
  std::vector<CompilerTarget> out;
  for (const codegen::TargetKind& kind : codegen::Targets()) {
    out.push_back({.name = std::string(kind.name),
                   .build = absl::StrCat(kSourceHash, " ", kind.build),
                   .toolchain = kind.toolchain});
  }
  return out;
}

absl::Status WarmUpTargets() {
  for (const codegen::TargetKind& kind : codegen::Targets()) {
    if (absl::Status status = WarmUp(kind); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("target ", kind.name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGraphSize(const v1::Graph& graph) {
  return graph::CheckCounts(graph);
}

absl::StatusOr<v1::PlanResponse> PlanGraph(const v1::PlanRequest& request, const StopCheck& stop) {
  const bool deterministic = request.graph().deterministic();
  KILN_ASSIGN_OR_RETURN(auto target, MakeTarget(request.device(), deterministic));
  v1::PlanResponse response;
  ir::Module module;
  graph::Graph graph;
  std::vector<ir::Identity> identities;
  std::vector<schedule::Tree> trees;
  memory::Plan plan;
  std::vector<fusion::Decision> decisions;
  std::vector<NamedKernel> kernels;
  const size_t graph_bytes = request.graph().ByteSizeLong();
  StageRunner stages(module, stop, request.options().debug());
  const auto plan_all = [&](bool scatters) -> absl::Status {
    module = ir::Module();
    module.ints->set_budget(kPlanSteps + kPlanStepsPerByte * static_cast<int64_t>(graph_bytes));
    KILN_RETURN_IF_ERROR(stages.Run("import", [&]() -> absl::Status {
      KILN_ASSIGN_OR_RETURN(graph, graph::Import(request.graph(), *module.ints));
      return absl::OkStatus();
    }));
    KILN_RETURN_IF_ERROR(stages.RunOnIr("lower", [&] {
      return lowering::Lower(graph, MakeLoweringOptions(request, *target, scatters), module);
    }));
    KILN_RETURN_IF_ERROR(stages.RunOnIr("fuse", [&] {
      return fusion::Fuse(module, MakeFuseOptions(request, *target), &decisions);
    }));
    if (request.options().prepare_memory() > 0) {
      KILN_RETURN_IF_ERROR(stages.RunOnIr("prepare", [&] {
        return prepare::Prepare(*target, request.options().prepare_memory(), module);
      }));
    }
    KILN_RETURN_IF_ERROR(stages.RunOnIr("tile", [&] {
      if (!request.options().disable_fusion() && !IsDisabled(request, "tile")) target->Tile(module);
      return absl::OkStatus();
    }));
    return stages.Run("plan_memory", [&]() -> absl::Status {
      KILN_ASSIGN_OR_RETURN(plan, memory::PlanMemory(module));
      return memory::CheckPlan(module, plan);
    });
  };
  KILN_RETURN_IF_ERROR(plan_all(/*scatters=*/true));
  // A few values stored in place are worth a kernel there, and a copy of the rest is not.
  if (target->LeavesCopiesToLibraries() && CopiesToScatter(module)) {
    decisions.clear();
    KILN_RETURN_IF_ERROR(plan_all(/*scatters=*/false));
  }
  KILN_RETURN_IF_ERROR(stages.Run("schedule", [&]() -> absl::Status {
    identities = ir::Identify(module);
    KILN_ASSIGN_OR_RETURN(trees, ScheduleKernels(*target, module, identities, stop));
    return absl::OkStatus();
  }));
  stages.Keep("schedule", [&] { return schedule::Print(module, trees); });
  if (request.options().debug()) {
    const std::string picture = target->Picture(module);
    if (!picture.empty()) stages.Keep("picture", [&] { return picture; });
  }
  KILN_RETURN_IF_ERROR(stages.Run("emit", [&]() -> absl::Status {
    const size_t most_bytes = kSourceBytes + kSourceBytesPerByte * graph_bytes;
    std::vector<std::unique_ptr<codegen::Target>> others;
    for (int rank = 1; request.options().autotune() && rank < kMostSchedules; ++rank) {
      KILN_ASSIGN_OR_RETURN(others.emplace_back(),
                            MakeTarget(request.device(), deterministic, rank));
    }
    Emitter emitter(*target, module, most_bytes * (1 + others.size()), request.options().debug(),
                    response);
    // A launch that has alternatives stays alone.
    std::vector<std::vector<size_t>> together;
    if (target->MostBuffersTogether() > 0 && others.empty()) {
      together = FindJointLaunches(module, plan, identities, target->MostBuffersTogether());
    }
    KILN_ASSIGN_OR_RETURN(
        kernels, KernelMaker(module, identities, trees, together, others, emitter).Run(stop));
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
  KILN_ASSIGN_OR_RETURN(auto target, MakeTarget(request.device()));
  KILN_ASSIGN_OR_RETURN(codegen::KernelJob job, MakeJob(request));
  return target->KeyOf(job);
}

absl::StatusOr<v1::CompileKernelResponse> CompileKernel(const v1::CompileKernelRequest& request) {
  KILN_ASSIGN_OR_RETURN(auto target, MakeTarget(request.device()));
  KILN_ASSIGN_OR_RETURN(codegen::KernelJob job, MakeJob(request));
  KILN_ASSIGN_OR_RETURN(codegen::CompiledKernel kernel, target->Compile(job));
  v1::CompileKernelResponse response;
  response.set_object(std::move(kernel.object));
  response.set_assembly(std::move(kernel.assembly));
  return response;
}

absl::Status PrepareForKernels(const v1::CompileKernelRequest& like) {
  KILN_ASSIGN_OR_RETURN(auto target, MakeTarget(like.device()));
  KILN_ASSIGN_OR_RETURN(codegen::KernelJob job, MakeJob(like));
  return target->PrepareToCompile(job);
}

absl::Status WarmUpForKernels(const v1::CompileKernelRequest& like) {
  KILN_ASSIGN_OR_RETURN(auto target, MakeTarget(like.device()));
  KILN_ASSIGN_OR_RETURN(codegen::KernelJob job, MakeJob(like));
  job.source = target->SampleSource();
  return target->Compile(job).status();
}

absl::StatusOr<v1::LinkResponse> LinkKernels(const v1::LinkRequest& request) {
  KILN_ASSIGN_OR_RETURN(auto target, MakeTarget(request.device()));
  const std::vector<std::string> objects(request.objects().begin(), request.objects().end());
  std::vector<codegen::Binary> binaries;
  if (request.cubins_size() > 0) {  // before the objects, as clients take the first that they can
    const std::vector<std::string> cubins(request.cubins().begin(), request.cubins().end());
    KILN_ASSIGN_OR_RETURN(binaries, target->LinkAssembled(objects, cubins));
  }
  KILN_ASSIGN_OR_RETURN(std::vector<codegen::Binary> linked, target->Link(objects));
  for (codegen::Binary& binary : linked) binaries.push_back(std::move(binary));
  v1::LinkResponse response;
  for (codegen::Binary& binary : binaries) {
    if (binary.number == 0) {
      response.set_binary(std::move(binary.data));
      continue;
    }
    v1::Binary& out = *response.add_binaries();
    out.set_number(static_cast<uint32_t>(binary.number));
    out.set_kind(static_cast<v1::BinaryKind>(binary.kind));
    out.set_data(std::move(binary.data));
  }
  return response;
}

void TakeOwnToolchainFiles() {
  for (const codegen::TargetKind& kind : codegen::Targets()) kind.after_fork();
}

}  // namespace kiln
