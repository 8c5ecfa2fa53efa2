#include "compiler/codegen/cpp/cpp_target.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/cpp/kernel_printer.h"
#include "compiler/codegen/cpp/source_hash.h"
#include "compiler/schedule/cpu/pack_operand.h"
#include "compiler/schedule/cpu/schedule.h"
#include "compiler/toolchain/clang.h"
#include "compiler/toolchain/lld.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {
namespace {

constexpr absl::string_view kSampleSource =
    "extern \"C\" void kiln_sample(float* x, long n) {\n"
    "  for (long i = 0; i < n; ++i) x[i] = x[i] * 2.0f + 1.0f;\n"
    "}\n";

class CppTarget : public Target {
 public:
  explicit CppTarget(DeviceInfo device) : device_(std::move(device)) {}

  absl::string_view name() const override { return "cpp"; }

  bool HasLanesBesideWindows() const override { return true; }

  bool ChecksDivisors() const override { return true; }

  void Tile(ir::Module& module) const override { schedule::cpu::Tile(module, device_); }

  absl::StatusOr<std::optional<ir::Kernel>> PackOperand(ir::Module& module, ir::Kernel& kernel,
                                                        int64_t most_bytes,
                                                        int64_t spare_bytes) const override {
    return schedule::cpu::PackOperand(module, kernel, most_bytes, spare_bytes, device_);
  }

  absl::StatusOr<EmittedKernel> Print(ir::Module& module,
                                      const schedule::Tree& tree) const override {
    EmittedKernel emitted = cpp::PrintKernel(module, tree);
    emitted.prelude = CppPrelude();
    return emitted;
  }

  std::string InterfaceText(absl::string_view interface, int) const override {
    return absl::StrCat("\nextern \"C\" __attribute__((visibility(\"default\"))) const char ",
                        kSymbolPlaceholder, "_interface[] =\n    \"", absl::CEscape(interface),
                        "\";\n");
  }

  Digest KeyOf(const KernelJob& job) const override { return toolchain::KeyOf(Invocation(job)); }

  absl::StatusOr<CompiledKernel> Compile(const KernelJob& job) const override {
    KILN_ASSIGN_OR_RETURN(toolchain::ClangOutput output, toolchain::CompileCpp(Invocation(job)));
    return CompiledKernel{.object = std::move(output.object),
                          .assembly = std::move(output.assembly)};
  }

  absl::Status PrepareToCompile(const KernelJob& like) const override {
    return toolchain::PrecompilePrelude(Invocation(like));
  }

  absl::string_view SampleSource() const override { return kSampleSource; }

  absl::StatusOr<std::vector<Binary>> Link(absl::Span<const std::string> objects) const override {
    std::vector<Binary> binaries(1);
    KILN_ASSIGN_OR_RETURN(binaries[0].data, toolchain::LinkSharedObject(objects));
    return binaries;
  }

 private:
  absl::StatusOr<schedule::Tree> ScheduleKernel(ir::Module& module,
                                                const ir::Kernel& kernel) const override {
    return schedule::cpu::ScheduleKernel(module, kernel, device_);
  }
  absl::StatusOr<schedule::Tree> ScheduleRepeat(ir::Module& module,
                                                const ir::Repeat& repeat) const override {
    return schedule::cpu::ScheduleRepeat(module, repeat, device_);
  }

  // Views the job's source. What Compile and KeyOf are both made of, so that nothing that alters an
  // object is left out of its key.
  toolchain::ClangInvocation Invocation(const KernelJob& job) const {
    static const auto* const prelude = new toolchain::Prelude(CppPrelude());
    return toolchain::Prepare({.prelude = job.has_prelude ? prelude : nullptr,
                               .source = job.source,
                               .arch = device_.arch,
                               .features = device_.features,
                               .optimization_level = job.optimization_level,
                               .fast_math = job.fast_math,
                               .want_assembly = job.want_assembly});
  }

  const DeviceInfo device_;
};

}  // namespace

std::unique_ptr<Target> MakeCppTarget(DeviceInfo device) {
  return std::make_unique<CppTarget>(std::move(device));
}

TargetKind CppTargetKind() {
  TargetKind kind;
  kind.name = "cpp";
  kind.toolchain = toolchain::ToolchainVersion();
  kind.build = absl::StrCat(cpp::kSourceHash, " ", kind.toolchain);
  // An architecture that Clang does not know falls back to baseline x86-64.
  kind.make = [](DeviceInfo device) -> absl::StatusOr<std::unique_ptr<Target>> {
    return MakeCppTarget(std::move(device));
  };
  kind.after_fork = &toolchain::MakeOwnMemoryFiles;
  kind.sample_device.arch = "x86-64-v3";
  kind.sample_source = kSampleSource;
  return kind;
}

}  // namespace kiln::codegen
