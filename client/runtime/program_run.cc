#include "client/runtime/program_run.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/runtime/strided_copy.h"
#include "client/status_bridge.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

const v1::LibraryStep& LibraryStepNumber(const v1::Program& program, int number) {
  for (const v1::Step& step : program.steps()) {
    if (step.has_library() && number-- == 0) return step.library();
  }
  return v1::LibraryStep::default_instance();
}

absl::Status LibraryError(const v1::Program& program, int number, absl::StatusCode code,
                          absl::string_view what) {
  const v1::LibraryStep& step = LibraryStepNumber(program, number);
  v1::ErrorDetail detail;
  detail.set_node(step.node());
  detail.set_op(step.op());
  return WithDetail(absl::Status(code, absl::StrCat("library step ", step.op(), " (node '",
                                                    step.node(), "') ", what)),
                    detail);
}

}  // namespace

int AllocationNumber(const Plan& plan, const PlanBuffer& buffer) {
  const int outputs = static_cast<int>(plan.output_buffers.size());
  switch (buffer.kind) {
    case BufferKind::kOutput:
      return buffer.index;
    case BufferKind::kLibrary:
      return outputs + static_cast<int>(plan.buffers.size()) + buffer.index;
    default:
      return outputs + static_cast<int>(&buffer - plan.buffers.data());
  }
}

ProgramRun::ProgramRun(const Executor& executor, const Plan& plan,
                       absl::Span<const kiln_tensor> inputs, const kiln_run_options* options,
                       absl::Span<void*> pointers)
    : program_(executor.program()),
      choices_(executor.choices()),
      plan_(plan),
      inputs_(inputs),
      options_(options),
      pointers_(pointers) {}

ProgramRun::~ProgramRun() {
  for (const Allocation& allocation : allocations_) Unreference(allocation.memory);
}

void ProgramRun::SetPointers(char* prepared) {
  for (size_t i = 0; i < plan_.buffers.size(); ++i) {
    const PlanBuffer& buffer = plan_.buffers[i];
    if (buffer.kind == BufferKind::kInput) {
      pointers_[i] = inputs_[buffer.index].data;
    } else if (buffer.kind == BufferKind::kPrepared) {
      pointers_[i] = prepared + buffer.workspace_offset;
    }
  }
}

absl::Status ProgramRun::Run(size_t first_step, absl::Span<kiln_output> outputs) {
  KILN_RETURN_IF_ERROR(AllocateOutputs());
  KILN_RETURN_IF_ERROR(RunSteps(first_step, plan_.steps.size()));
  for (const PlanOutput& output : plan_.outputs) {
    if (output.kind == KILN_TENSOR) KILN_RETURN_IF_ERROR(StoreConstant(output.view.buffer));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    KILN_RETURN_IF_ERROR(FillOutput(plan_.outputs[i], outputs[i]));
  }
  return absl::OkStatus();
}

absl::Status ProgramRun::RunSteps(size_t first, size_t end) {
  const auto told = options_ == nullptr ? nullptr : options_->step;
  for (size_t i = first; i < end; ++i) {
    if (told != nullptr) told(options_->user, static_cast<int32_t>(i), 1);
    const int alternatives = plan_.steps[i].alternatives;
    KILN_RETURN_IF_ERROR(RunStep(alternatives > 0 ? ChosenOf(i) : plan_.steps[i]));
    if (told != nullptr) told(options_->user, static_cast<int32_t>(i), 0);
    i += static_cast<size_t>(alternatives);
  }
  return absl::OkStatus();
}

const PlanStep& ProgramRun::ChosenOf(size_t i) {
  const PlanStep* const steps = plan_.steps.data() + i;
  const auto launch_of = [&](int candidate) -> const PlanLaunch& {
    return plan_.launches[static_cast<size_t>(steps[candidate].index)];
  };
  bool repeats = true;
  for (int n = 0; n <= steps->alternatives; ++n) repeats &= launch_of(n).repeats;
  return steps[choices_.Choose(static_cast<int>(i), repeats, MayTime(),
                               [&](int candidate) { return TimeLaunch(launch_of(candidate)); })];
}

absl::Status ProgramRun::RunStep(const PlanStep& step) {
  switch (step.kind) {
    case PlanStep::Kind::kLaunch:
      return Launch(plan_.launches[step.index]);
    case PlanStep::Kind::kLibrary:
      return CallLibrary(plan_.libraries[step.index]);
    case PlanStep::Kind::kCopy:
      return Copy(plan_.copies[step.index]);
  }
  return absl::OkStatus();
}

absl::Status ProgramRun::AllocateOutputs() {
  for (int buffer : plan_.output_buffers) {
    KILN_RETURN_IF_ERROR(Allocate(AllocationNumber(plan_, plan_.buffers[buffer]), buffer));
  }
  return absl::OkStatus();
}

absl::Status ProgramRun::Allocate(int number, int buffer) {
  const PlanTensor& type = plan_.buffers[buffer].type;
  void* data = nullptr;
  SharedMemory* memory = nullptr;
  if (options_ != nullptr && options_->allocate_output != nullptr) {
    KILN_RETURN_IF_ERROR(FromCStatus(options_->allocate_output(
        options_->user, number, DTypeToProto(type.dtype), static_cast<int32_t>(type.sizes.size()),
        type.sizes.data(), type.strides.data(), &data)));
    KILN_RETURN_IF_ERROR(AfterCallback());
    if (type.reach_bytes > 0 &&
        (data == nullptr || reinterpret_cast<uintptr_t>(data) % DTypeSize(type.dtype) != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("allocate_output gave no aligned memory for allocation ", number));
    }
  } else {
    KILN_ASSIGN_OR_RETURN(memory, AllocateOwn(type.reach_bytes));
    data = memory->data;
  }
  allocations_.push_back({number, buffer, memory});
  pointers_[buffer] = data;
  return absl::OkStatus();
}

std::string ProgramRun::KernelName(const PlanLaunch& launch) const {
  return absl::StrCat("kernel ", program_.steps(launch.name).launch().kernel());
}

kiln_tensor ProgramRun::Describe(const PlanTensor& type, void* data) const {
  kiln_tensor out{};
  out.data = data;
  out.sizes = type.sizes.data();
  out.strides = type.strides.data();
  out.ndim = static_cast<int32_t>(type.sizes.size());
  out.dtype = DTypeToProto(type.dtype);
  SetDevice(out);
  return out;
}

absl::Status ProgramRun::CallLibrary(const PlanLibrary& step) {
  if (options_ == nullptr || options_->library_step == nullptr) {
    return LibraryError(program_, step.step, absl::StatusCode::kFailedPrecondition,
                        "needs a library that this program does not have");
  }
  absl::InlinedVector<kiln_tensor, 8> tensors;
  for (const PlanView& view : step.tensors) {
    KILN_RETURN_IF_ERROR(BeforeUse(view.buffer, false));
    tensors.push_back(Describe(view.type, Address(view)));
  }
  absl::InlinedVector<kiln_tensor, 4> results;
  for (int result : step.results) {
    results.push_back(Describe(plan_.buffers[result].type, nullptr));
  }
  absl::Status status = FromCStatus(
      options_->library_step(options_->user, step.step, tensors.data(), tensors.size(),
                             step.ints.data(), step.ints.size(), results.data(), results.size()));
  if (!status.ok()) {
    return LibraryError(program_, step.step, status.code(),
                        absl::StrCat("failed: ", status.message()));
  }
  KILN_RETURN_IF_ERROR(AfterCallback());
  for (size_t i = 0; i < step.results.size(); ++i) {
    KILN_RETURN_IF_ERROR(BeforeUse(step.results[i], true));
    KILN_RETURN_IF_ERROR(TakeResult(step, static_cast<int>(i), results[i]));
  }
  return absl::OkStatus();
}

absl::Status ProgramRun::TakeResult(const PlanLibrary& step, int result,
                                    const kiln_tensor& tensor) {
  const int buffer = step.results[result];
  const PlanTensor& type = plan_.buffers[buffer].type;
  auto bad = [&](absl::string_view what) {
    return LibraryError(
        program_, step.step, absl::StatusCode::kInternal,
        absl::StrCat("gave result ", result, " with another ", what, " than the graph has"));
  };
  if (tensor.dtype != DTypeToProto(type.dtype)) return bad("dtype");
  if (tensor.ndim != static_cast<int>(type.sizes.size()) ||
      (tensor.ndim > 0 && (tensor.sizes == nullptr || tensor.strides == nullptr)) ||
      !std::equal(type.sizes.begin(), type.sizes.end(), tensor.sizes)) {
    return bad("size");
  }
  if (type.reach_bytes > 0 && tensor.data == nullptr) return bad("address (none)");
  const kiln_tensor expected = Describe(type, tensor.data);
  if (tensor.device_type != expected.device_type ||
      (tensor.device_type != KILN_CPU && tensor.device_index != expected.device_index)) {
    return bad("device");
  }
  if (SameLayout(type.sizes, type.strides.data(), tensor.strides)) {
    pointers_[buffer] = tensor.data;
    return absl::OkStatus();
  }
  absl::Span<const int64_t> strides(tensor.strides, type.sizes.size());
  if (!ReachElements(type.sizes, strides)) return bad("sign of strides");
  bool in_output = std::any_of(plan_.outputs.begin(), plan_.outputs.end(), [&](const auto& o) {
    return o.kind == KILN_TENSOR && o.view.buffer == buffer;
  });
  if (in_output) {
    KILN_RETURN_IF_ERROR(Allocate(AllocationNumber(plan_, plan_.buffers[buffer]), buffer));
  } else {
    KILN_ASSIGN_OR_RETURN(SharedMemory * memory, AllocateOwn(type.reach_bytes));
    allocations_.push_back({-1, buffer, memory});
    pointers_[buffer] = memory->data;
  }
  return type.reach_bytes == 0
             ? absl::OkStatus()
             : CopyWindow({pointers_[buffer], type.strides}, {tensor.data, strides}, type.sizes,
                          DTypeSize(type.dtype));
}

absl::Status ProgramRun::Copy(const PlanCopy& copy) {
  if (copy.from.type.reach_bytes == 0) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(BeforeUse(copy.from.buffer, false));
  KILN_RETURN_IF_ERROR(BeforeUse(copy.to.buffer, true));
  return CopyWindow({Address(copy.to), copy.to.type.strides},
                    {Address(copy.from), copy.from.type.strides}, copy.from.type.sizes,
                    DTypeSize(copy.from.type.dtype));
}

// An output that views a constant gets a copy: callers may write to outputs.
absl::Status ProgramRun::StoreConstant(int buffer) {
  const PlanBuffer& info = plan_.buffers[buffer];
  if (info.kind != BufferKind::kConstant || FindAllocation(buffer) != nullptr) {
    return absl::OkStatus();
  }
  void* constant = pointers_[buffer];
  constant_moved_ = true;
  KILN_RETURN_IF_ERROR(Allocate(AllocationNumber(plan_, info), buffer));
  static constexpr int64_t kOne = 1;
  const int64_t bytes = info.type.reach_bytes;
  if (bytes == 0) return absl::OkStatus();
  return CopyWindow({pointers_[buffer], {&kOne, 1}}, {constant, {&kOne, 1}}, {&bytes, 1}, 1);
}

absl::Status ProgramRun::FillOutput(const PlanOutput& from, kiln_output& to) {
  to.kind = from.kind;
  to.storage = KILN_STORAGE_NONE;
  to.storage_index = 0;
  to.dtype = KILN_INT64;
  to.ndim = 0;
  to.offset = 0;
  to.value = from.value;
  to.data = nullptr;
  to.owner = nullptr;
  if (from.kind != KILN_TENSOR) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(BeforeUse(from.view.buffer, false));
  const PlanTensor& type = from.view.type;
  to.dtype = DTypeToProto(type.dtype);
  to.ndim = static_cast<int32_t>(type.sizes.size());
  std::copy(type.sizes.begin(), type.sizes.end(), to.sizes);
  std::copy(type.strides.begin(), type.strides.end(), to.strides);
  to.offset = from.view.offset;
  to.data = Address(from.view);
  const PlanBuffer& buffer = plan_.buffers[from.view.buffer];
  if (const Allocation* allocation = FindAllocation(from.view.buffer)) {
    to.storage = KILN_STORAGE_ALLOCATED;
    to.storage_index = allocation->number;
    if (allocation->memory != nullptr) {
      allocation->memory->references.fetch_add(1, std::memory_order_relaxed);
      to.owner = allocation->memory;
    }
  } else {
    const bool is_input = buffer.kind == BufferKind::kInput;
    to.storage = is_input ? KILN_STORAGE_INPUT : KILN_STORAGE_LIBRARY;
    to.storage_index = buffer.index;
    // Not where this run may keep the input's new value until it has come to its end.
    if (is_input) {
      to.data =
          static_cast<char*>(inputs_[buffer.index].data) + from.view.offset * DTypeSize(type.dtype);
    }
  }
  return absl::OkStatus();
}

const ProgramRun::Allocation* ProgramRun::FindAllocation(int buffer) const {
  // Output buffers are allocated first and in order.
  const PlanBuffer& info = plan_.buffers[buffer];
  if (info.kind == BufferKind::kOutput) return &allocations_[info.index];
  for (const Allocation& allocation : allocations_) {
    if (allocation.buffer == buffer) return &allocation;
  }
  return nullptr;
}

char* ProgramRun::Address(const PlanView& view) const {
  return static_cast<char*>(pointers_[view.buffer]) + view.offset * DTypeSize(view.type.dtype);
}

}  // namespace kiln::runtime
