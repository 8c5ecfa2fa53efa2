#include "compiler/codegen/gcu/gcu_target.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/cpp/cpp_target.h"
#include "compiler/codegen/gcu/launch.h"
#include "compiler/codegen/gcu/source_hash.h"
#include "compiler/codegen/kernel_archive.h"
#include "compiler/schedule/gcu/groups.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/picture.h"
#include "compiler/schedule/gcu/tiling.h"
#include "compiler/toolchain/gcu/assembly.h"
#include "compiler/toolchain/gcu/binary.h"
#include "proto/base/device_cpu_names.h"
#include "proto/base/digest.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {
namespace {

constexpr int kBinary = 1;
constexpr absl::string_view kFirstLine = ".gcu ";
constexpr absl::string_view kInterfaceMark = "; interface ";

constexpr absl::string_view kSampleSource =
    ".gcu 1\n"
    ".profile gcu-16m\n"
    ".kernel kiln_sample\n"
    ".l1 0\n"
    ".l2 0\n"
    "  halt\n"
    ".end\n"
    "; interface \n";

class GcuTarget : public Target {
 public:
  GcuTarget(schedule::gcu::Machine machine, std::unique_ptr<Target> host)
      : machine_(std::move(machine)), host_(std::move(host)) {}

  absl::string_view name() const override { return "gcu"; }

  void Tile(ir::Module& module) const override {
    schedule::gcu::Group(module, machine_, {}, [&](const ir::Operation& operation) {
      return gcu::MakeLaunch(module, operation, machine_).status();
    });
  }

  std::string Picture(ir::Module& module) const override {
    std::vector<schedule::gcu::PicturedLaunch> launches;
    for (const ir::Operation& operation : module.operations) {
      if (!std::holds_alternative<ir::Repeat>(operation)) continue;
      absl::StatusOr<gcu::Launch> launch = gcu::MakeLaunch(module, operation, machine_);
      if (!launch.ok()) continue;
      for (gcu::LaunchVersion& version : launch->versions) {
        schedule::gcu::PicturedLaunch& pictured = launches.emplace_back();
        pictured.name = std::string(NameOf(operation));
        if (launch->versions.size() > 1) {
          absl::StrAppend(&pictured.name, " for ", SizesOf(module, operation, version));
        }
        for (const ir::Kernel& kernel : version.plan.kernels) {
          pictured.kernels.push_back(kernel.name);
        }
        pictured.costs = std::move(version.stages);
        pictured.plan = std::move(version.l2);
      }
    }
    return schedule::gcu::PictureL2(module, launches, machine_);
  }

  absl::StatusOr<std::optional<ir::Kernel>> PackOperand(ir::Module&, ir::Kernel&, int64_t,
                                                        int64_t) const override {
    return std::nullopt;
  }

  // A tree without nodes is a launch of the device, whose program follows from the operation.
  absl::StatusOr<EmittedKernel> Print(ir::Module& module,
                                      const schedule::Tree& tree) const override {
    if (!tree.body.empty()) return host_->Print(module, tree);
    const auto operation = absl::c_find_if(module.operations, [&](const ir::Operation& candidate) {
      return !std::holds_alternative<ir::Library>(candidate) && NameOf(candidate) == tree.name;
    });
    if (operation == module.operations.end()) {
      return absl::InternalError(absl::StrCat("there is no operation @", tree.name));
    }
    KILN_ASSIGN_OR_RETURN(gcu::Launch launch, gcu::MakeLaunch(module, *operation, machine_));
    launch.kernel.name = std::string(kSymbolPlaceholder);
    kiln::gcu::Module program;
    program.profile = machine_.profile;
    program.kernels.push_back(std::move(launch.kernel));
    KILN_RETURN_IF_ERROR(kiln::gcu::Verify(program));
    EmittedKernel emitted;
    emitted.source = kiln::gcu::Disassemble(program);
    emitted.buffers = std::move(launch.buffers);
    emitted.symbols = std::move(launch.symbols);
    emitted.scratch_bytes = module.ints->Const(0);
    emitted.thread_scratch_bytes = module.ints->Const(0);
    emitted.binary = kBinary;
    return emitted;
  }

  std::string InterfaceText(absl::string_view interface, int binary) const override {
    if (binary != kBinary) return host_->InterfaceText(interface, binary);
    return absl::StrCat(kInterfaceMark, interface, "\n");
  }

  Digest KeyOf(const KernelJob& job) const override {
    if (!IsProgram(job.source)) return host_->KeyOf(job);
    return KernelKey(absl::StrCat("gcu ", gcu::kSourceHash), {}, {job.source});
  }

  absl::StatusOr<CompiledKernel> Compile(const KernelJob& job) const override {
    if (!IsProgram(job.source)) return host_->Compile(job);
    const size_t at = job.source.rfind(kInterfaceMark);
    if (at == absl::string_view::npos) {
      return absl::InternalError("the source states no interface");
    }
    const absl::string_view text = job.source.substr(at + kInterfaceMark.size());
    absl::StatusOr<kiln::gcu::Module> program = kiln::gcu::Assemble(job.source);
    if (!program.ok()) return absl::InternalError(program.status().message());
    if (program->kernels.size() != 1) return absl::InternalError("the source is not of one kernel");
    if (program->profile != machine_.profile) {
      return absl::InternalError("the source is for another profile");
    }
    KILN_ASSIGN_OR_RETURN(const std::string binary, kiln::gcu::Encode(*program));
    CompiledKernel compiled;
    compiled.object =
        KernelObject(program->kernels[0].name, text.substr(0, text.find('\n')), binary);
    if (job.want_assembly) compiled.assembly = kiln::gcu::Disassemble(*program);
    return compiled;
  }

  absl::Status PrepareToCompile(const KernelJob& like) const override {
    return host_->PrepareToCompile(like);
  }

  absl::string_view SampleSource() const override { return host_->SampleSource(); }

  // A shared object of the host's kernels, and an archive of the programs.
  absl::StatusOr<std::vector<Binary>> Link(absl::Span<const std::string> objects) const override {
    std::vector<std::string> of_host, programs;
    for (const std::string& object : objects) {
      (IsKernelObject(object) ? programs : of_host).push_back(object);
    }
    std::vector<Binary> binaries;
    if (!of_host.empty()) {
      KILN_ASSIGN_OR_RETURN(binaries, host_->Link(of_host));
    }
    if (!programs.empty()) {
      KILN_ASSIGN_OR_RETURN(std::string archive, KernelArchive(programs));
      binaries.push_back({.number = kBinary, .kind = BinaryKind::kGcu, .data = std::move(archive)});
    }
    return binaries;
  }

 private:
  static bool IsProgram(absl::string_view source) { return absl::StartsWith(source, kFirstLine); }

  absl::StatusOr<schedule::Tree> ScheduleKernel(ir::Module& module,
                                                const ir::Kernel& kernel) const override {
    absl::StatusOr<schedule::Tree> tree = TreeOf(module, kernel);
    if (tree.ok() || !absl::IsUnimplemented(tree.status())) return tree;
    // The host's: a declared step.
    const absl::Status why = tree.status();
    KILN_ASSIGN_OR_RETURN(tree, host_->Schedule(module, kernel));
    tree->reasons.insert(tree->reasons.begin(), absl::StrCat("on the host: ", why.message()));
    return tree;
  }
  absl::StatusOr<schedule::Tree> ScheduleRepeat(ir::Module& module,
                                                const ir::Repeat& repeat) const override {
    return TreeOf(module, repeat);
  }

  absl::StatusOr<schedule::Tree> TreeOf(ir::Module& module, const ir::Operation& operation) const {
    KILN_ASSIGN_OR_RETURN(gcu::Launch launch, gcu::MakeLaunch(module, operation, machine_));
    schedule::Tree tree;
    tree.name = std::string(NameOf(operation));
    for (const ir::Kernel& kernel : KernelsOf(operation)) {
      for (const std::string& origin : kernel.origins) {
        if (!absl::c_linear_search(tree.origins, origin)) tree.origins.push_back(origin);
      }
    }
    bool found_typical = false;
    for (gcu::LaunchVersion& version : launch.versions) {
      schedule::LaunchPlan& plan = tree.plans.emplace_back(PlanOf(module, operation, version));
      plan.typical = !found_typical && HasHints(module, operation, version);
      found_typical = found_typical || plan.typical;
      if (launch.versions.size() > 1) plan.sizes = SizesOf(module, operation, version);
      if (std::holds_alternative<ir::Repeat>(operation)) {
        const std::string sizes =
            plan.sizes.empty() ? "" : absl::StrCat("DAFE, for ", plan.sizes, ": ");
        tree.reasons.push_back(absl::StrCat(sizes, ReasonOf(version.plan, plan)));
      }
      absl::c_move(version.reasons, std::back_inserter(tree.reasons));
    }
    return tree;
  }

  static std::string SizesOf(const ir::Module& module, const ir::Operation& operation,
                             const gcu::LaunchVersion& version) {
    return TextOf(*module.ints, schedule::gcu::SymbolsOf(operation), version.plan.bucket);
  }

  // Whether the symbols' hints are within the version's limits.
  static bool HasHints(const ir::Module& module, const ir::Operation& operation,
                       const gcu::LaunchVersion& version) {
    const std::vector<ir::IntExpr> symbols = schedule::gcu::SymbolsOf(operation);
    const std::vector<int64_t>& most = version.plan.bucket.most;
    for (size_t i = 0; i < most.size(); ++i) {
      if (module.ints->symbols()[symbols[i].id()].hint > most[i]) return false;
    }
    return true;
  }

  schedule::LaunchPlan PlanOf(ir::Module& module, const ir::Operation& operation,
                              const gcu::LaunchVersion& version) const {
    const std::vector<ir::Kernel>& kernels = version.plan.kernels;
    schedule::LaunchPlan plan;
    plan.kernels = static_cast<int>(kernels.size() - version.plan.before - version.plan.after);
    plan.l2_peak_bytes = version.l2.bytes;
    plan.l2_bytes = machine_.l2_bytes;
    plan.predicted_seconds = version.seconds;
    if (!std::holds_alternative<ir::Repeat>(operation)) {
      plan.strategy = "one kernel";
      plan.unfused_seconds = version.seconds;
      return plan;
    }
    const std::vector<ir::IntExpr> symbols = schedule::gcu::SymbolsOf(operation);
    plan.strategy = version.plan.step > 0 ? "TLF" : "AFE";
    plan.unfused_seconds = gcu::UnfusedSeconds(module, symbols, version.plan, machine_);
    if (version.plan.step == 0) return plan;
    const schedule::gcu::AtTypicalSizes sizes(*module.ints, symbols, version.plan.bucket);
    const size_t before = version.plan.before;
    const ir::Kernel& tiled = before > 0 ? kernels[before] : kernels.back();
    const ir::IntExpr loop = tiled.outer[0];
    const int64_t extent = schedule::gcu::TypicalOf(*module.ints, loop.extent());
    plan.tile = version.plan.step;
    plan.tiles = (extent + plan.tile - 1) / plan.tile;
    ir::ForEachInst(tiled, [&](const ir::Inst& inst) {
      if (inst.op != ir::ScalarOp::kStore) return;
      const ir::Buffer& buffer = module.buffers[inst.buffer];
      std::vector<int64_t> extents;
      for (ir::IntExpr size : buffer.sizes) {
        extents.push_back(schedule::gcu::TypicalOf(*module.ints, size));
      }
      plan.split_dimension =
          static_cast<int>(absl::c_find(inst.indices, loop) - inst.indices.begin());
      plan.split_buffer = absl::StrCat(buffer.name, " ", DTypeName(buffer.dtype), "[",
                                       absl::StrJoin(extents, ", "), "]");
    });
    return plan;
  }

  // Which dimension is split, and by how much.
  static std::string TilesText(const schedule::gcu::Version& version,
                               const schedule::LaunchPlan& plan) {
    std::string how = absl::StrCat("TLF: tiles of ", plan.tile, ", ");
    if (schedule::gcu::TileLoop(version).extent().is_const()) {
      absl::StrAppend(&how, plan.tiles, " of them");
    } else {
      absl::StrAppend(&how, "as many as the size at run time needs");
    }
    absl::StrAppend(&how, ", of dimension ", plan.split_dimension, " of ", plan.split_buffer);
    if (version.before > 0) {
      absl::StrAppend(&how, "; sums over tiles, of ", version.before, " kernels");
    }
    if (version.overlaps.empty()) return how;
    const auto carried = absl::c_count_if(
        version.overlaps, [](const schedule::gcu::Overlap& kernel) { return kernel.carried; });
    const auto twice = absl::c_count_if(version.overlaps, [](const schedule::gcu::Overlap& kernel) {
      return !kernel.carried && schedule::gcu::StaysOf(kernel.window) > 0;
    });
    if (carried > 0) absl::StrAppend(&how, "; rows that two tiles need stay, of ", carried);
    if (twice > 0) absl::StrAppend(&how, "; rows that two tiles need are run twice, by ", twice);
    return absl::StrCat(how, carried + twice > 0 ? " kernels" : "");
  }

  // How a group runs, and what it gains.
  static std::string ReasonOf(const schedule::gcu::Version& version,
                              const schedule::LaunchPlan& plan) {
    const std::string how =
        plan.tile > 0 ? TilesText(version, plan) : "AFE: everything in one launch";
    constexpr double kMiB = 1 << 20;
    return absl::StrFormat(
        "%s; %d kernels; L2 peak %.2f of %.0f MiB; predicted %.1f us, unfused %.1f us", how,
        plan.kernels, static_cast<double>(plan.l2_peak_bytes) / kMiB,
        static_cast<double>(plan.l2_bytes) / kMiB, plan.predicted_seconds * 1e6,
        plan.unfused_seconds * 1e6);
  }

  const schedule::gcu::Machine machine_;
  const std::unique_ptr<Target> host_;
};

// A GCU's features name what its host's processor is: "x86-64-v3".
absl::StatusOr<std::unique_ptr<Target>> MakeGcuTarget(DeviceInfo device) {
  std::optional<schedule::gcu::Machine> machine = schedule::gcu::FindMachine(device.arch);
  if (!machine) {
    return absl::InvalidArgumentError(
        absl::StrCat("target gcu has no architecture '", device.arch, "'; known are ",
                     absl::StrJoin(schedule::gcu::KnownProfiles(), ", ")));
  }
  DeviceInfo host;
  host.arch = device.features.empty() ? "x86-64-v2" : device.features[0];
  const CpuModel* model = FindCpuModel(host.arch);
  if (model == nullptr || device.features.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a GCU's one feature is its host's processor, as x86-64-v3, not '", host.arch, "'"));
  }
  host.features = ExtensionsOf(*model);
  return std::make_unique<GcuTarget>(*std::move(machine), MakeCppTarget(std::move(host)));
}

}  // namespace

TargetKind GcuTargetKind() {
  const TargetKind host = CppTargetKind();
  TargetKind kind;
  kind.name = "gcu";
  kind.toolchain = host.toolchain;
  // The host's sources and toolchain are this target's, too.
  kind.build =
      absl::StrCat(Sha256(absl::StrCat(gcu::kSourceHash, host.build)).ToHex().substr(0, 16), " ",
                   kind.toolchain);
  kind.make = &MakeGcuTarget;
  kind.after_fork = [] {};
  kind.sample_device.arch = "gcu-16m";
  kind.sample_source = kSampleSource;
  return kind;
}

}  // namespace kiln::codegen
