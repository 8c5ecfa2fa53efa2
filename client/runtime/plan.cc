#include "client/runtime/plan.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "client/runtime/strided_copy.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/random_inputs.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

// Far above any machine, far below an overflow of later sums.
constexpr int64_t kMaxBytes = int64_t{1} << 50;

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the artifact's program is unsound: ", where, " ", what));
}

int64_t RoundUp64(int64_t bytes) {
  return (bytes + 63) & ~int64_t{63};
}

class Planner {
 public:
  Planner(const v1::Program& program, absl::Span<const Kernel> kernels,
          absl::Span<const int64_t> symbols)
      : program_(program), kernels_(kernels), symbols_(symbols) {}

  absl::StatusOr<Plan> Make() {
    static std::atomic<uint64_t> next_id{1};
    plan_.id = next_id.fetch_add(1);
    plan_.symbols.assign(symbols_.begin(), symbols_.end());
    KILN_RETURN_IF_ERROR(CheckSymbolRanges());
    KILN_ASSIGN_OR_RETURN(plan_.workspace_bytes,
                          Bytes("the workspace", program_.workspace_bytes()));
    plan_.prepare_steps = static_cast<int>(program_.prepare_steps());
    plan_.prepared_bytes = program_.prepared_bytes();
    if (plan_.prepared_bytes < 0 || plan_.prepared_bytes > kMaxBytes) {
      return Bad("the prepared block", absl::StrCat("has ", plan_.prepared_bytes, " bytes"));
    }
    for (int i = 0; i < program_.inputs_size(); ++i) KILN_RETURN_IF_ERROR(AddInput(i));
    for (int i = 0; i < program_.buffers_size(); ++i) KILN_RETURN_IF_ERROR(AddBuffer(i));
    for (int i = 0; i < program_.steps_size(); ++i) KILN_RETURN_IF_ERROR(AddStep(i));
    for (int i = 0; i < program_.outputs_size(); ++i) KILN_RETURN_IF_ERROR(AddOutput(i));
    return std::move(plan_);
  }

 private:
  absl::Status CheckSymbolRanges() {
    for (int s = 0; s < program_.symbols_size(); ++s) {
      const v1::Symbol& symbol = program_.symbols(s);
      if (symbols_[s] < symbol.min() || symbols_[s] > symbol.max()) {
        return absl::InvalidArgumentError(
            absl::StrCat("size '", symbol.name(), "' is ", symbols_[s],
                         "; the program was compiled for ", symbol.min(), " to ", symbol.max()));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Int(const v1::SymInt& value) { return EvaluateSymInt(value, symbols_); }

  absl::StatusOr<int64_t> Bytes(absl::string_view where, const v1::SymInt& value) {
    KILN_ASSIGN_OR_RETURN(int64_t bytes, Int(value));
    if (bytes < 0 || bytes > kMaxBytes) return Bad(where, absl::StrCat("has ", bytes, " bytes"));
    return bytes;
  }

  template <typename Sizes>
  absl::StatusOr<PlanTensor> Type(absl::string_view where, int dtype, const Sizes& sizes,
                                  const Sizes& strides) {
    PlanTensor out;
    KILN_ASSIGN_OR_RETURN(out.dtype, DTypeFromProto(dtype));
    for (int d = 0; d < sizes.size(); ++d) {
      KILN_ASSIGN_OR_RETURN(int64_t size, Int(sizes[d]));
      KILN_ASSIGN_OR_RETURN(int64_t stride, Int(strides[d]));
      out.sizes.push_back(size);
      out.strides.push_back(stride);
    }
    std::optional<int64_t> reach = ReachElements(out.sizes, out.strides);
    if (!reach || *reach > kMaxBytes / 16) return Bad(where, "has impossible sizes or strides");
    out.reach_bytes = *reach * DTypeSize(out.dtype);
    return out;
  }

  absl::Status AddInput(int i) {
    const v1::ValueType& type = program_.inputs(i).type();
    PlanInput input;
    if (type.has_tensor()) {
      const v1::TensorType& t = type.tensor();
      KILN_ASSIGN_OR_RETURN(input.type,
                            Type(absl::StrCat("input ", i), t.dtype(), t.sizes(), t.strides()));
    } else {
      input.is_tensor = false;
      input.type.dtype = DType::kI64;
      KILN_ASSIGN_OR_RETURN(input.value, Int(type.sym_int()));
    }
    plan_.inputs.push_back(std::move(input));
    return absl::OkStatus();
  }

  absl::Status AddBuffer(int i) {
    const v1::Buffer& in = program_.buffers(i);
    std::string where = absl::StrCat("buffer ", i);
    PlanBuffer out;
    KILN_ASSIGN_OR_RETURN(out.type, Type(where, in.dtype(), in.sizes(), in.strides()));
    KILN_ASSIGN_OR_RETURN(int64_t size_bytes, Bytes(where, in.size_bytes()));
    int64_t available = out.type.reach_bytes;
    switch (in.kind()) {
      case v1::Buffer::KIND_INPUT:
        out.kind = BufferKind::kInput;
        out.index = static_cast<int>(in.index());
        available = plan_.inputs[out.index].type.reach_bytes;
        break;
      case v1::Buffer::KIND_CONSTANT:
        out.kind = BufferKind::kConstant;
        out.index = static_cast<int>(in.index());
        available = static_cast<int64_t>(program_.constants(out.index).data().size());
        break;
      case v1::Buffer::KIND_WORKSPACE:
      case v1::Buffer::KIND_PREPARED: {
        const bool is_prepared = in.kind() == v1::Buffer::KIND_PREPARED;
        const int64_t block = is_prepared ? plan_.prepared_bytes : plan_.workspace_bytes;
        out.kind = is_prepared ? BufferKind::kPrepared : BufferKind::kWorkspace;
        KILN_ASSIGN_OR_RETURN(out.workspace_offset, Int(in.workspace_offset()));
        if (out.workspace_offset < 0 || out.workspace_offset % 64 != 0 ||
            out.workspace_offset > block) {
          return Bad(where, absl::StrCat("lies at offset ", out.workspace_offset));
        }
        available = block - out.workspace_offset;
        break;
      }
      case v1::Buffer::KIND_OUTPUT:
        out.kind = BufferKind::kOutput;
        out.index = static_cast<int>(plan_.output_buffers.size());
        plan_.output_buffers.push_back(i);
        break;
      default:
        out.kind = BufferKind::kLibrary;  // AddLibrary sets the index
        break;
    }
    if (size_bytes > available || out.type.reach_bytes > available) {
      return Bad(where, absl::StrCat("needs ", std::max(size_bytes, out.type.reach_bytes),
                                     " bytes of ", available));
    }
    plan_.buffers.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Status AddStep(int i) {
    const v1::Step& step = program_.steps(i);
    std::string where = absl::StrCat("step ", i);
    switch (step.kind_case()) {
      case v1::Step::kLaunch:
        return AddLaunch(where, i, step.launch());
      case v1::Step::kLibrary:
        return AddLibrary(where, step.library());
      default:
        return AddCopy(where, step.copy());
    }
  }

  absl::Status AddLaunch(absl::string_view where, int step, const v1::LaunchStep& in) {
    PlanLaunch out;
    const Kernel& kernel = kernels_[plan_.launches.size()];
    out.kernel = kernel.entry;
    out.function = kernel.function;
    out.name = step;
    out.first_buffer = static_cast<int>(plan_.launch_buffers.size());
    out.num_buffers = in.buffers_size();
    plan_.launch_buffers.insert(plan_.launch_buffers.end(), in.buffers().begin(),
                                in.buffers().end());
    for (const v1::SymInt& s : in.symbols()) {
      KILN_ASSIGN_OR_RETURN(int64_t value, Int(s));
      out.symbols.push_back(static_cast<long>(value));
    }
    KILN_ASSIGN_OR_RETURN(int64_t scratch, Bytes(where, in.scratch_bytes()));
    KILN_ASSIGN_OR_RETURN(int64_t thread_scratch, Bytes(where, in.thread_scratch_bytes()));
    KILN_RETURN_IF_ERROR(CheckInterface(where, in, *kernel.interface, out.symbols));
    KILN_RETURN_IF_ERROR(
        AsStated(where, "its scratch", kernel.interface->scratch_bytes(), out.symbols, scratch));
    KILN_RETURN_IF_ERROR(AsStated(where, "a thread's scratch",
                                  kernel.interface->thread_scratch_bytes(), out.symbols,
                                  thread_scratch));
    if (in.has_grid()) KILN_RETURN_IF_ERROR(SetGrid(where, in.grid(), kernel, out));
    for (const v1::KernelInterface::TensorMap& map : kernel.interface->tensor_maps()) {
      KILN_RETURN_IF_ERROR(AddTensorMap(where, in, map, out));
    }
    const auto& zeroed = kernel.interface->zeroed();
    out.zeroed.assign(zeroed.begin(), zeroed.end());
    const auto is_only_read = [&](uint32_t argument) {
      const uint32_t buffer = in.buffers(static_cast<int>(argument));
      const BufferKind kind = plan_.buffers[buffer].kind;
      return (kind == BufferKind::kInput || kind == BufferKind::kConstant) && !IsWritten(buffer);
    };
    const auto& early = kernel.interface->read_early();
    out.begins_early =
        kernel.interface->waits() && std::all_of(early.begin(), early.end(), is_only_read);
    out.scratch_bytes = RoundUp64(scratch);
    out.thread_scratch_bytes = RoundUp64(thread_scratch);
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, out.scratch_bytes);
    plan_.thread_scratch_bytes = std::max(plan_.thread_scratch_bytes, out.thread_scratch_bytes);
    out.repeats = Repeats(in, *kernel.interface);
    plan_.steps.push_back({PlanStep::Kind::kLaunch, static_cast<int>(plan_.launches.size()),
                           static_cast<int>(in.alternatives())});
    plan_.launches.push_back(std::move(out));
    return absl::OkStatus();
  }

  // As PlanLaunch has it.
  bool Repeats(const v1::LaunchStep& launch, const v1::KernelInterface& interface) const {
    const auto buffer = [&](int argument) -> const PlanBuffer& {
      return plan_.buffers[launch.buffers(argument)];
    };
    const auto overlap = [](const PlanBuffer& a, const PlanBuffer& b) {
      if (a.kind != BufferKind::kWorkspace || b.kind != BufferKind::kWorkspace) return &a == &b;
      return a.workspace_offset < b.workspace_offset + b.type.reach_bytes &&
             b.workspace_offset < a.workspace_offset + a.type.reach_bytes;
    };
    for (int to = 0; to < launch.buffers_size(); ++to) {
      if (!interface.buffers(to).written()) continue;
      if (interface.buffers(to).read() || buffer(to).kind == BufferKind::kInput) return false;
      for (int from = 0; from < launch.buffers_size(); ++from) {
        if (interface.buffers(from).read() && overlap(buffer(to), buffer(from))) return false;
      }
    }
    return true;
  }

  // Whether some step writes the buffer, or another one of the same input.
  bool IsWritten(uint32_t number) const {
    const PlanBuffer& buffer = plan_.buffers[number];
    const auto is_it = [&](uint32_t other) {
      return plan_.buffers[other].kind == buffer.kind && plan_.buffers[other].index == buffer.index;
    };
    size_t launches = 0;
    for (const v1::Step& step : program_.steps()) {
      if (step.has_copy() && is_it(step.copy().to().buffer())) return true;
      if (!step.has_launch()) continue;
      const v1::KernelInterface& interface = *kernels_[launches++].interface;
      for (int i = 0; i < interface.buffers_size(); ++i) {
        if (interface.buffers(i).written() && is_it(step.launch().buffers(i))) return true;
      }
    }
    return false;
  }

  // The launch gives the kernel just what that states: not less, which it would reach beyond, and
  // not more, of which it would leave a part as it is.
  absl::Status CheckInterface(absl::string_view where, const v1::LaunchStep& in,
                              const v1::KernelInterface& interface,
                              absl::Span<const int64_t> sizes) {
    for (size_t s = 0; s < sizes.size(); ++s) {
      const v1::KernelInterface::Size& range = interface.sizes(static_cast<int>(s));
      if (sizes[s] < range.min() || sizes[s] > range.max()) {
        return Bad(where, absl::StrCat("gives its kernel size ", sizes[s], "; expected ",
                                       range.min(), " to ", range.max()));
      }
    }
    for (int i = 0; i < in.buffers_size(); ++i) {
      const int64_t available = plan_.buffers[in.buffers(i)].type.reach_bytes;
      KILN_RETURN_IF_ERROR(AsStated(where, absl::StrCat("buffer ", in.buffers(i)),
                                    interface.buffers(i).bytes(), sizes, available));
    }
    return absl::OkStatus();
  }

  absl::Status AsStated(absl::string_view where, absl::string_view what, const v1::SymInt& stated,
                        absl::Span<const int64_t> sizes, int64_t given) {
    const absl::StatusOr<int64_t> bytes = EvaluateSymInt(stated, sizes);
    if (bytes.ok() && *bytes == given) return absl::OkStatus();
    return Bad(where, absl::StrCat("gives its kernel ", given, " bytes as ", what, "; expected ",
                                   bytes.ok() ? absl::StrCat(*bytes) : "more than can be told"));
  }

  // A map lies in its buffer, and is one that the driver makes. REQUIRES: CheckLaunches passed.
  absl::Status AddTensorMap(absl::string_view where, const v1::LaunchStep& in,
                            const v1::KernelInterface::TensorMap& map, PlanLaunch& launch) {
    const PlanTensor& tensor = plan_.buffers[in.buffers(static_cast<int>(map.buffer()))].type;
    const int64_t element_bytes = DTypeSize(tensor.dtype), whole = 16 / element_bytes;
    constexpr int64_t kMostSize = int64_t{1} << 31, kMostStride = int64_t{1} << 38;
    const auto number = [&](const v1::SymInt& size, int64_t least, int64_t most,
                            int64_t unit) -> absl::StatusOr<int64_t> {
      const absl::StatusOr<int64_t> value = EvaluateSymInt(size, launch.symbols);
      if (value.ok() && *value >= least && *value <= most && *value % unit == 0) return *value;
      return Bad(where, absl::StrCat("has a tensor map with ",
                                     value.ok() ? absl::StrCat(*value) : "too many",
                                     " elements; expected ", least, " to ", most,
                                     unit > 1 ? absl::StrCat(", a multiple of ", unit) : ""));
    };
    PlanTensorMap out;
    out.argument = static_cast<int>(map.buffer());
    out.dtype = tensor.dtype;
    out.rank = static_cast<uint32_t>(map.sizes_size());
    KILN_ASSIGN_OR_RETURN(int64_t last, number(map.offset(), 0, kMostStride, whole));
    out.offset_bytes = last * element_bytes;
    for (int i = 0; i < map.sizes_size(); ++i) {
      KILN_ASSIGN_OR_RETURN(const int64_t size, number(map.sizes(i), 1, kMostSize, 1));
      int64_t stride = 1;
      if (i > 0) {
        KILN_ASSIGN_OR_RETURN(stride, number(map.strides(i - 1), whole, kMostStride, whole));
        out.stride_bytes[i - 1] = static_cast<uint64_t>(stride * element_bytes);
      }
      int64_t more = 0;
      if (__builtin_mul_overflow(size - 1, stride, &more) ||
          __builtin_add_overflow(last, more, &last)) {
        return Bad(where, "has a tensor map that reaches too far");
      }
      out.sizes[i] = static_cast<uint64_t>(size);
      out.box[i] = map.box(i);
    }
    if (last >= tensor.reach_bytes / element_bytes) {
      return Bad(where, absl::StrCat("has a tensor map that reaches element ", last, " of ",
                                     tensor.reach_bytes / element_bytes));
    }
    launch.tensor_maps.push_back(out);
    return absl::OkStatus();
  }

  absl::Status SetGrid(absl::string_view where, const v1::Grid& in, const Kernel& kernel,
                       PlanLaunch& out) {
    const v1::Grid& stated = kernel.interface->grid();
    for (int d = 0; d < in.blocks_size(); ++d) {
      KILN_RETURN_IF_ERROR(SetGridSize(where, "blocks", in.blocks(d), stated.blocks(d), out.symbols,
                                       out.grid.blocks[d]));
    }
    for (int d = 0; d < in.threads_size(); ++d) {
      KILN_RETURN_IF_ERROR(SetGridSize(where, "threads", in.threads(d), stated.threads(d),
                                       out.symbols, out.grid.threads[d]));
    }
    return SetGridSize(where, "bytes of shared memory", in.shared_bytes(), stated.shared_bytes(),
                       out.symbols, out.grid.shared_bytes);
  }

  absl::Status SetGridSize(absl::string_view where, absl::string_view what, const v1::SymInt& given,
                           const v1::SymInt& stated, absl::Span<const int64_t> sizes,
                           uint32_t& out) {
    KILN_ASSIGN_OR_RETURN(const int64_t value, Int(given));
    const absl::StatusOr<int64_t> expected = EvaluateSymInt(stated, sizes);
    if (value < 0 || value > INT32_MAX || !expected.ok() || *expected != value) {
      return Bad(where, absl::StrCat("launches ", value, " ", what, "; its kernel expects ",
                                     expected.ok() ? absl::StrCat(*expected) : "too many"));
    }
    out = static_cast<uint32_t>(value);
    return absl::OkStatus();
  }

  absl::Status AddLibrary(absl::string_view where, const v1::LibraryStep& in) {
    PlanLibrary out;
    out.step = static_cast<int>(plan_.libraries.size());
    for (const auto& arg : in.args()) KILN_RETURN_IF_ERROR(AddArg(where, arg, out));
    for (const auto& arg : in.kwargs()) KILN_RETURN_IF_ERROR(AddArg(where, arg.value(), out));
    for (uint32_t result : in.results()) {
      plan_.buffers[result].index = plan_.num_library_results++;
      out.results.push_back(static_cast<int>(result));
    }
    plan_.steps.push_back({PlanStep::Kind::kLibrary, out.step});
    plan_.libraries.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Status AddArg(absl::string_view where, const v1::LibraryStep::Arg& arg, PlanLibrary& out) {
    if (arg.has_tensor()) {
      KILN_ASSIGN_OR_RETURN(PlanView view, View(where, arg.tensor()));
      out.tensors.push_back(std::move(view));
    } else if (arg.has_scalar()) {
      return AddScalar(arg.scalar(), out);
    }
    for (const auto& item : arg.list().items()) KILN_RETURN_IF_ERROR(AddArg(where, item, out));
    return absl::OkStatus();
  }

  absl::Status AddScalar(const v1::Argument& arg, PlanLibrary& out) {
    if (arg.has_sym_int()) {
      KILN_ASSIGN_OR_RETURN(int64_t value, Int(arg.sym_int()));
      out.ints.push_back(value);
    }
    for (const v1::Argument& item : arg.list().items()) KILN_RETURN_IF_ERROR(AddScalar(item, out));
    return absl::OkStatus();
  }

  absl::Status AddCopy(absl::string_view where, const v1::CopyStep& in) {
    PlanCopy out;
    KILN_ASSIGN_OR_RETURN(out.from, View(where, in.from()));
    KILN_ASSIGN_OR_RETURN(out.to, View(where, in.to()));
    if (out.from.type.sizes != out.to.type.sizes) return Bad(where, "copies between two sizes");
    // Elements that share places would be copied over each other, however many there are.
    int64_t bytes = DTypeSize(out.to.type.dtype);
    for (const int64_t size : out.to.type.sizes) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) return Bad(where, "copies too much");
    }
    if (bytes > out.to.type.reach_bytes) return Bad(where, "copies more than there is room for");
    plan_.steps.push_back({PlanStep::Kind::kCopy, static_cast<int>(plan_.copies.size())});
    plan_.copies.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Status AddOutput(int i) {
    const v1::ProgramOutput& in = program_.outputs(i);
    PlanOutput out;
    if (in.has_tensor()) {
      out.kind = KILN_TENSOR;
      KILN_ASSIGN_OR_RETURN(out.view, View(absl::StrCat("output ", i), in.tensor()));
    } else if (in.has_sym_int()) {
      out.kind = KILN_INT;
      KILN_ASSIGN_OR_RETURN(out.value, Int(in.sym_int()));
    }
    plan_.outputs.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::StatusOr<PlanView> View(absl::string_view where, const v1::BufferView& in) {
    PlanView out;
    out.buffer = static_cast<int>(in.buffer());
    KILN_ASSIGN_OR_RETURN(out.type, Type(where, in.dtype(), in.sizes(), in.strides()));
    KILN_ASSIGN_OR_RETURN(out.offset, Int(in.offset()));
    int64_t available = plan_.buffers[out.buffer].type.reach_bytes;
    if (out.offset < 0 || out.offset > kMaxBytes / 16 ||
        (out.type.reach_bytes > 0 &&
         out.offset * DTypeSize(out.type.dtype) + out.type.reach_bytes > available)) {
      return Bad(where, absl::StrCat("views elements outside of buffer ", out.buffer));
    }
    // A view without elements may stand anywhere; its pointer must not.
    if (out.type.reach_bytes == 0) out.offset = 0;
    return out;
  }

  const v1::Program& program_;
  absl::Span<const Kernel> kernels_;
  absl::Span<const int64_t> symbols_;
  Plan plan_;
};

}  // namespace

absl::StatusOr<Plan> MakePlan(const v1::Program& program, absl::Span<const Kernel> kernels,
                              absl::Span<const int64_t> symbols) {
  return Planner(program, kernels, symbols).Make();
}

}  // namespace kiln::runtime
