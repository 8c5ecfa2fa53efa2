#include "compiler/codegen/ptx/ptx_target.h"

#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/kernel_archive.h"
#include "compiler/codegen/ptx/attention_printer.h"
#include "compiler/codegen/ptx/gradients_printer.h"
#include "compiler/codegen/ptx/kernel_launch.h"
#include "compiler/codegen/ptx/kernel_printer.h"
#include "compiler/codegen/ptx/product_printer.h"
#include "compiler/codegen/ptx/queries_printer.h"
#include "compiler/codegen/ptx/source_hash.h"
#include "compiler/schedule/ptx/pad_rows.h"
#include "compiler/schedule/ptx/schedule.h"
#include "compiler/schedule/ptx/separate_phases.h"
#include "compiler/schedule/ptx/split_reductions.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/toolchain/clang.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {
namespace {

constexpr absl::string_view kArchitectures[] = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"};
constexpr int kBinary = 1;

constexpr absl::string_view kSampleSource =
    "// kiln kernel kiln_sample\n"
    "// kiln threads 256\n"
    "extern \"C\" __attribute__((nvptx_kernel)) void kiln_sample(float* x, long n) {\n"
    "  const long i = __nvvm_read_ptx_sreg_tid_x();\n"
    "  if (i < n) x[i] = x[i] * 2.0f + 1.0f;\n"
    "}\n"
    "// kiln interface \n";

// The rest of the line after `mark`, which stands at a line's beginning; nothing where it is not
// there.
absl::string_view Marked(absl::string_view source, absl::string_view mark) {
  const size_t at = source.rfind(mark);
  if (at == absl::string_view::npos) return {};
  const absl::string_view rest = source.substr(at + mark.size());
  return rest.substr(0, rest.find('\n'));
}

// The PTX with what C++ does not say: how many threads a block has, so that their registers fit,
// how many blocks a multiprocessor has to hold and a cluster has.
absl::StatusOr<std::string> WithThreads(std::string ptx, absl::string_view threads,
                                        absl::string_view resident, absl::string_view cluster) {
  const size_t entry = ptx.find(".entry ");
  const size_t body = entry == std::string::npos ? entry : ptx.find("\n{", entry);
  if (body == std::string::npos) return absl::InternalError("the PTX of a kernel has no entry");
  std::string text = absl::StrCat("\n.maxntid ", threads, ", 1, 1");
  if (!resident.empty()) absl::StrAppend(&text, "\n.minnctapersm ", resident);
  if (!cluster.empty() && cluster != "1") {
    absl::StrAppend(&text, "\n.explicitcluster\n.reqnctapercluster ", cluster, ", 1, 1");
  }
  ptx.insert(body, text);
  return ptx;
}

// Whether more than a few iterations of the kernel run one after another, as those of scatters and
// scans do: not so where a token goes to its place in a cache of keys.
bool HasManyOrdered(const ir::Kernel& kernel) {
  constexpr int64_t kFew = 4;
  return absl::c_any_of(kernel.phases, [](const ir::Phase& phase) {
    if (!ir::IsOrdered(phase)) return false;
    int64_t iterations = 1;
    for (const ir::IntExpr var : phase.inner) {
      if (!var.extent().is_const() || var.extent().value() > kFew) return true;
      iterations *= var.extent().value();
    }
    return iterations > kFew;
  });
}

class PtxTarget : public Target {
 public:
  explicit PtxTarget(DeviceInfo device) : device_(std::move(device)) {}

  absl::string_view name() const override { return "ptx"; }

  bool HasCostlyLaunches() const override { return true; }
  // What multiplies on tensor cores copies them as they are.
  bool TakesPlainOperands() const override { return true; }
  bool ContractsFewRows() const override { return device_.arch == "sm_90a"; }
  bool TakesOperands(ir::Module& module, const ir::Kernel& kernel) const override {
    return schedule::ptx::IsProductOfFewRows(module, kernel, device_);
  }
  // Products go to tensor cores: by a library where nothing is done with the result in one kernel
  // with it, but for few rows. Sorts, scans and scatters would run one after another here: but for
  // those of a few values.
  bool LeavesToLibraries(ir::Module& module, const ir::Kernel& kernel,
                         bool goes_on) const override {
    if (kernel.schedule == ir::Schedule::kContraction) {
      return !schedule::ptx::TakesProduct(module, kernel, goes_on, device_);
    }
    return kernel.schedule == ir::Schedule::kSorting || HasManyOrdered(kernel) ||
           !schedule::ptx::Lacks(kernel).empty();
  }

  bool LeavesCopiesToLibraries() const override { return true; }
  bool LeavesAttentionToLibraries() const override { return true; }
  bool TakesTogether(ir::Module& module, const std::vector<const ir::Kernel*>& kernels,
                     bool by_libraries) const override {
    return schedule::ptx::TakesAttention(module, kernels, by_libraries, device_);
  }

  void Tile(ir::Module& module) const override {
    schedule::ptx::PadRows(module);
    schedule::ptx::SeparatePhases(module, device_);
    schedule::ptx::SplitReductions(module, device_);
  }

  absl::StatusOr<std::optional<ir::Kernel>> PackOperand(ir::Module&, ir::Kernel&, int64_t,
                                                        int64_t) const override {
    return std::nullopt;
  }

  absl::StatusOr<EmittedKernel> Print(ir::Module& module,
                                      const schedule::Tree& tree) const override {
    const int units = schedule::ptx::ComputeUnits(device_);
    KILN_ASSIGN_OR_RETURN(EmittedKernel emitted,
                          ptx::IsOfFewQueries(tree) ? ptx::PrintFewQueries(module, tree)
                          : ptx::IsProduct(tree) ? ptx::PrintProduct(module, tree, units, CanWait())
                          : ptx::IsAttention(tree)
                              ? ptx::PrintAttention(module, tree, units, CanWait())
                          : ptx::IsGradients(tree) ? ptx::PrintGradients(module, tree, units)
                                                   : ptx::PrintKernel(module, tree, CanWait()));
    emitted.prelude = PtxPrelude();
    return emitted;
  }

  // Some parameters are left for symbols, and the last two are scratch memory and the error.
  int MostBuffersTogether() const override { return static_cast<int>(ptx::kMostParameters) - 32; }

  absl::StatusOr<std::optional<EmittedKernel>> PrintTogether(
      ir::Module& module, const schedule::Tree& tree,
      absl::Span<const BufferMap> copies) const override {
    if (HasMicro(tree)) return std::nullopt;
    KILN_ASSIGN_OR_RETURN(std::optional<EmittedKernel> emitted,
                          ptx::PrintKernels(module, tree, CanWait(), copies));
    if (emitted) emitted->prelude = PtxPrelude();
    return emitted;
  }

  bool NamesAllSizes() const override { return true; }
  std::string InterfaceText(absl::string_view interface, int) const override {
    return absl::StrCat(ptx::kInterfaceMark, interface, "\n");
  }

  Digest KeyOf(const KernelJob& job) const override {
    // The object has the text already, but what is kept of a kernel has it once more where asked.
    return KernelKey(
        absl::StrCat("ptx ", ptx::kSourceHash, job.want_assembly ? " and its assembly" : ""), {},
        {toolchain::KeyOf(Invocation(job)).ToHex()});
  }

  absl::StatusOr<CompiledKernel> Compile(const KernelJob& job) const override {
    const absl::string_view text = job.source;
    const absl::string_view kernel = Marked(text, ptx::kKernelMark);
    const absl::string_view threads = Marked(text, ptx::kThreadsMark);
    if (kernel.empty() || threads.empty()) {
      return absl::InternalError("the source does not name its kernel");
    }
    KILN_ASSIGN_OR_RETURN(toolchain::ClangOutput output, toolchain::CompileCpp(Invocation(job)));
    KILN_ASSIGN_OR_RETURN(const std::string ptx, WithThreads(std::move(output.object), threads,
                                                             Marked(text, ptx::kResidentMark),
                                                             Marked(text, ptx::kClusterMark)));
    CompiledKernel compiled;
    compiled.object = KernelObject(kernel, Marked(text, ptx::kInterfaceMark), ptx);
    if (job.want_assembly) compiled.assembly = ptx;
    return compiled;
  }

  absl::Status PrepareToCompile(const KernelJob& like) const override {
    return toolchain::PrecompilePrelude(Invocation(like));
  }

  absl::string_view SampleSource() const override { return kSampleSource; }

  absl::StatusOr<std::vector<Binary>> Link(absl::Span<const std::string> objects) const override {
    return Archive(objects, {}, BinaryKind::kPtx);
  }

  absl::StatusOr<std::vector<Binary>> LinkAssembled(
      absl::Span<const std::string> objects, absl::Span<const std::string> codes) const override {
    if (objects.size() != codes.size()) {
      return absl::InternalError("there is not one cubin for each object");
    }
    return Archive(objects, codes, BinaryKind::kCubin);
  }

 private:
  static absl::StatusOr<std::vector<Binary>> Archive(absl::Span<const std::string> objects,
                                                     absl::Span<const std::string> codes,
                                                     BinaryKind kind) {
    KILN_ASSIGN_OR_RETURN(std::string archive, KernelArchive(objects, codes));
    return std::vector<Binary>{{.number = kBinary, .kind = kind, .data = std::move(archive)}};
  }

  absl::StatusOr<schedule::Tree> ScheduleKernel(ir::Module& module,
                                                const ir::Kernel& kernel) const override {
    return schedule::ptx::ScheduleKernel(module, kernel, device_);
  }

  absl::StatusOr<schedule::Tree> ScheduleRepeat(ir::Module& module,
                                                const ir::Repeat& repeat) const override {
    return schedule::ptx::ScheduleRepeat(module, repeat, device_);
  }

  // Else PrintKernel prints it.
  static bool HasMicro(const schedule::Tree& tree) {
    bool has = false;
    ForEachNode(tree.body, [&](const schedule::Node& node) {
      has |= std::holds_alternative<schedule::Micro>(node.value);
    });
    return has;
  }

  // Whether a kernel can wait for the launch before it.
  bool CanWait() const { return device_.arch == "sm_90" || device_.arch == "sm_90a"; }

  toolchain::ClangInvocation Invocation(const KernelJob& job) const {
    static const auto* const prelude = new toolchain::Prelude(PtxPrelude());
    return toolchain::Prepare({.machine = toolchain::Machine::kNvptx,
                               .prelude = job.has_prelude ? prelude : nullptr,
                               .source = job.source,
                               .arch = device_.arch,
                               .optimization_level = job.optimization_level,
                               .fast_math = job.fast_math,
                               .want_assembly = job.want_assembly,
                               .early_loads = Marked(job.source, ptx::kLoadsMark) == "early"});
  }

  const DeviceInfo device_;
};

absl::StatusOr<std::unique_ptr<Target>> MakePtxTarget(DeviceInfo device) {
  if (absl::c_linear_search(kArchitectures, device.arch)) {
    return std::make_unique<PtxTarget>(std::move(device));
  }
  return absl::InvalidArgumentError(absl::StrCat("target ptx has no architecture '", device.arch,
                                                 "'; known are ",
                                                 absl::StrJoin(kArchitectures, ", ")));
}

}  // namespace

TargetKind PtxTargetKind() {
  TargetKind kind;
  kind.name = "ptx";
  kind.toolchain = toolchain::ToolchainVersion();
  kind.build = absl::StrCat(ptx::kSourceHash, " ", kind.toolchain);
  kind.make = &MakePtxTarget;
  kind.after_fork = [] {};
  kind.sample_device.arch = "sm_80";
  kind.sample_source = kSampleSource;
  return kind;
}

}  // namespace kiln::codegen
