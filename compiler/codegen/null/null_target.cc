#include "compiler/codegen/null/null_target.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/codegen/null/source_hash.h"
#include "compiler/schedule/parse.h"
#include "compiler/schedule/plain.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/verify.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {
namespace {

constexpr absl::string_view kArch = "loop-ir";
constexpr absl::string_view kObjectPrefix = "// kernel ";
constexpr int kBinary = 1;

// One kernel's schedule as a module of its own, which kiln-opt can run. Buffers are named in order
// of first use, which is that of the arguments, so that equal kernels have equal text; those that
// are read first are inputs.
class KernelModule {
 public:
  KernelModule(const ir::Module& module, const schedule::Tree& tree)
      : module_(module), tree_(tree) {
    tree_.name = std::string(kSymbolPlaceholder);
    tree_.origins.clear();
    schedule::ForEachNode(tree_.body, [&](schedule::Node& node) {
      auto* compute = std::get_if<schedule::Compute>(&node.value);
      if (compute != nullptr && compute->inst.buffer >= 0) Add(compute->inst);
    });
  }

  const std::vector<ir::BufferId>& buffers() const { return buffers_; }

  // `ints` is the kernel's, and is given back.
  std::string Text(std::unique_ptr<ir::IntContext>& ints) {
    ir::Module out;
    std::swap(out.ints, ints);
    const absl::Cleanup give_back = [&] { std::swap(out.ints, ints); };
    int inputs = 0;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      ir::Buffer buffer = module_.buffers[buffers_[i]];
      buffer.name = absl::StrCat("b", i);
      buffer.kind = is_input_[i] ? ir::BufferKind::kInput : ir::BufferKind::kOutput;
      buffer.index = is_input_[i] ? inputs++ : -1;
      buffer.parameter = false;
      if (!is_input_[i]) {
        out.outputs.push_back({ir::BufferWindow{.buffer = static_cast<ir::BufferId>(i),
                                                .sizes = buffer.sizes,
                                                .strides = buffer.strides,
                                                .offset = out.ints->Const(0)}});
      }
      out.buffers.push_back(std::move(buffer));
    }
    out.operations.emplace_back(ir::Kernel{.name = tree_.name});
    return schedule::Print(out, std::vector<schedule::Tree>{tree_});
  }

 private:
  void Add(ir::Inst& inst) {
    const auto known = std::find(buffers_.begin(), buffers_.end(), inst.buffer);
    const auto number = static_cast<size_t>(known - buffers_.begin());
    if (known == buffers_.end()) {
      buffers_.push_back(inst.buffer);
      is_input_.push_back(inst.op == ir::ScalarOp::kLoad);
    }
    inst.buffer = static_cast<ir::BufferId>(number);
  }

  const ir::Module& module_;
  schedule::Tree tree_;
  std::vector<ir::BufferId> buffers_;
  std::vector<bool> is_input_;  // by argument
};

constexpr absl::string_view kSampleSource =
    "module {\n"
    "  buffer @b0 f32[8] strides[1] output\n"
    "  schedule @kiln_sample {\n"
    "    for d0 < 8, task {\n"
    "      %0 = const f32 1\n"
    "      store f32 @b0[d0], %0\n"
    "    }\n"
    "  }\n"
    "  output @b0 sizes[8] strides[1] offset 0\n"
    "}\n";

class NullTarget : public Target {
 public:
  absl::string_view name() const override { return "null"; }

  absl::StatusOr<std::optional<ir::Kernel>> PackOperand(ir::Module&, ir::Kernel&, int64_t,
                                                        int64_t) const override {
    return std::nullopt;
  }

  absl::StatusOr<EmittedKernel> Print(ir::Module& module,
                                      const schedule::Tree& tree) const override {
    KernelModule text(module, tree);
    EmittedKernel emitted;
    emitted.buffers = text.buffers();
    emitted.source = text.Text(module.ints);
    for (size_t i = 0; i < module.ints->symbols().size(); ++i) {
      emitted.symbols.push_back(static_cast<int>(i));
    }
    emitted.scratch_bytes = module.ints->Const(0);
    emitted.thread_scratch_bytes = module.ints->Const(0);
    emitted.binary = kBinary;
    return emitted;
  }

  std::string InterfaceText(absl::string_view interface, int) const override {
    return absl::StrCat("// interface: ", interface, "\n");
  }

  // Of the job, Compile reads the source alone.
  Digest KeyOf(const KernelJob& job) const override {
    return KernelKey(absl::StrCat("null ", null::kSourceHash), {}, {job.source});
  }

  absl::StatusOr<CompiledKernel> Compile(const KernelJob& job) const override {
    absl::StatusOr<schedule::Scheduled> parsed = schedule::Parse(job.source);
    if (!parsed.ok()) return absl::InternalError(parsed.status().message());
    if (parsed->trees.size() != 1) return absl::InternalError("the source is not of one kernel");
    KILN_RETURN_IF_ERROR(schedule::Verify(parsed->module, parsed->trees[0]));
    return CompiledKernel{
        .object = absl::StrCat(kObjectPrefix, parsed->trees[0].name, "\n", job.source),
        .assembly = ""};
  }

  absl::Status PrepareToCompile(const KernelJob&) const override { return absl::OkStatus(); }

  absl::string_view SampleSource() const override { return kSampleSource; }

  // An index, "// NAME OFFSET SIZE" for each object, an empty line, and the objects. Offsets count
  // from the empty line's end.
  absl::StatusOr<std::vector<Binary>> Link(absl::Span<const std::string> objects) const override {
    std::string index, all;
    for (absl::string_view object : objects) {
      absl::string_view rest = object;
      if (!absl::ConsumePrefix(&rest, kObjectPrefix)) {
        return absl::InternalError("an object to link does not name its kernel");
      }
      absl::StrAppend(&index, "// ", rest.substr(0, rest.find('\n')), " ", all.size(), " ",
                      object.size(), "\n");
      absl::StrAppend(&all, object);
    }
    return std::vector<Binary>{
        {.number = kBinary, .kind = BinaryKind::kLoopIr, .data = absl::StrCat(index, "\n", all)}};
  }

 private:
  absl::StatusOr<schedule::Tree> ScheduleKernel(ir::Module& module,
                                                const ir::Kernel& kernel) const override {
    return schedule::SchedulePlainly(module, kernel);
  }
};

absl::StatusOr<std::unique_ptr<Target>> MakeNullTarget(DeviceInfo device) {
  if (device.arch == kArch) return std::make_unique<NullTarget>();
  return absl::InvalidArgumentError(
      absl::StrCat("target null has the architecture ", kArch, " and no '", device.arch, "'"));
}

}  // namespace

TargetKind NullTargetKind() {
  TargetKind kind;
  kind.name = "null";
  kind.build = null::kSourceHash;
  kind.make = &MakeNullTarget;
  kind.after_fork = [] {};
  kind.sample_device.arch = std::string(kArch);
  kind.sample_source = kSampleSource;
  return kind;
}

}  // namespace kiln::codegen
