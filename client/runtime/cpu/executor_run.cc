#include "client/runtime/cpu/executor_run.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/runtime/cpu/thread_pool.h"
#include "client/runtime/strided_copy.h"
#include "client/status_bridge.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

kiln_tensor Describe(const PlanTensor& type, void* data) {
  kiln_tensor out{};
  out.data = data;
  out.sizes = type.sizes.data();
  out.strides = type.strides.data();
  out.ndim = static_cast<int32_t>(type.sizes.size());
  out.dtype = DTypeToProto(type.dtype);
  out.device_type = KILN_CPU;
  return out;
}

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

Executor::OneRun::OneRun(const Executor& executor, const Plan& plan, Workspace& workspace,
                         absl::Span<const kiln_tensor> inputs, const kiln_run_options* options)
    : executor_(executor), plan_(plan), workspace_(workspace), inputs_(inputs), options_(options) {
  context_.parallel_for = &ContextParallelFor;
  context_.threads = 1;
  context_.scratch = workspace.scratch;
  context_.thread_scratch = workspace.thread_scratch;
  if (executor.threads() > 1 && !plan.launches.empty()) {
    ThreadPool& pool = executor.Pool();
    pool_run_ = pool.Acquire();
    if (pool_run_ != nullptr) {
      context_.pool = pool_run_;
      context_.threads = pool.threads();
    }
  }
}

Executor::OneRun::~OneRun() {
  if (pool_run_ != nullptr) pool_run_->Release();
  for (const Allocation& allocation : allocations_) Unreference(allocation.block);
}

void Executor::OneRun::SetPointers(char* prepared) {
  for (size_t i = 0; i < plan_.buffers.size(); ++i) {
    const PlanBuffer& buffer = plan_.buffers[i];
    if (buffer.kind == BufferKind::kInput) {
      workspace_.pointers[i] = inputs_[buffer.index].data;
    } else if (buffer.kind == BufferKind::kPrepared) {
      workspace_.pointers[i] = prepared + buffer.workspace_offset;
    }
  }
}

absl::Status Executor::OneRun::Prepare(char* block) {
  SetPointers(block);
  return RunSteps(0, static_cast<size_t>(plan_.prepare_steps));
}

absl::Status Executor::OneRun::Run(absl::Span<kiln_output> outputs) {
  const kiln_prepared* kept = options_ != nullptr ? options_->prepared : nullptr;
  Block& own = workspace_.prepared;
  if (kept == nullptr && own.capacity() < plan_.prepared_bytes) {
    own = Block();
    KILN_ASSIGN_OR_RETURN(own, Block::Allocate(plan_.prepared_bytes));
  }
  SetPointers(kept != nullptr ? kept->block.data() : own.data());
  KILN_RETURN_IF_ERROR(AllocateOutputs());
  const size_t first = kept != nullptr ? static_cast<size_t>(plan_.prepare_steps) : 0;
  KILN_RETURN_IF_ERROR(RunSteps(first, plan_.steps.size()));
  for (const PlanOutput& output : plan_.outputs) {
    if (output.kind == KILN_TENSOR) KILN_RETURN_IF_ERROR(StoreConstant(output.view.buffer));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    KILN_RETURN_IF_ERROR(FillOutput(plan_.outputs[i], outputs[i]));
  }
  return absl::OkStatus();
}

absl::Status Executor::OneRun::RunSteps(size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    const PlanStep& step = plan_.steps[i];
    switch (step.kind) {
      case PlanStep::Kind::kLaunch:
        KILN_RETURN_IF_ERROR(Launch(plan_.launches[step.index]));
        break;
      case PlanStep::Kind::kLibrary:
        KILN_RETURN_IF_ERROR(CallLibrary(plan_.libraries[step.index]));
        break;
      case PlanStep::Kind::kCopy:
        Copy(plan_.copies[step.index]);
        break;
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::OneRun::AllocateOutputs() {
  for (int buffer : plan_.output_buffers) {
    KILN_RETURN_IF_ERROR(Allocate(AllocationNumber(plan_, plan_.buffers[buffer]), buffer));
  }
  return absl::OkStatus();
}

absl::Status Executor::OneRun::Allocate(int number, int buffer) {
  const PlanTensor& type = plan_.buffers[buffer].type;
  void* data = nullptr;
  SharedBlock* block = nullptr;
  if (options_ != nullptr && options_->allocate_output != nullptr) {
    KILN_RETURN_IF_ERROR(FromCStatus(options_->allocate_output(
        options_->user, number, DTypeToProto(type.dtype), static_cast<int32_t>(type.sizes.size()),
        type.sizes.data(), type.strides.data(), &data)));
    if (type.reach_bytes > 0 &&
        (data == nullptr || reinterpret_cast<uintptr_t>(data) % DTypeSize(type.dtype) != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("allocate_output gave no aligned memory for allocation ", number));
    }
  } else {
    KILN_ASSIGN_OR_RETURN(block, AllocateShared(type.reach_bytes));
    data = block->block.data();
  }
  allocations_.push_back({number, buffer, block});
  workspace_.pointers[buffer] = data;
  return absl::OkStatus();
}

absl::Status Executor::OneRun::Launch(const PlanLaunch& launch) {
  const int* buffers = plan_.launch_buffers.data() + launch.first_buffer;
  for (int i = 0; i < launch.num_buffers; ++i) {
    workspace_.arguments[i] = workspace_.pointers[buffers[i]];
  }
  context_.thread_scratch_bytes = static_cast<long>(launch.thread_scratch_bytes);
  int result = launch.kernel(&context_, workspace_.arguments.data(), launch.symbols.data());
  if (result == KILN_CPU_OK) return absl::OkStatus();
  const std::string& kernel = executor_.program_.steps(launch.name).launch().kernel();
  if (result == KILN_CPU_INDEX_OUT_OF_RANGE) {
    return absl::OutOfRangeError(
        absl::StrCat("kernel ", kernel, ": an index is outside of its dimension"));
  }
  return absl::InternalError(absl::StrCat("kernel ", kernel, " returned ", result));
}

absl::Status Executor::OneRun::CallLibrary(const PlanLibrary& step) {
  if (options_ == nullptr || options_->library_step == nullptr) {
    return LibraryError(executor_.program_, step.step, absl::StatusCode::kFailedPrecondition,
                        "needs a library that this program does not have");
  }
  absl::InlinedVector<kiln_tensor, 8> tensors;
  for (const PlanView& view : step.tensors) {
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
    return LibraryError(executor_.program_, step.step, status.code(),
                        absl::StrCat("failed: ", status.message()));
  }
  for (size_t i = 0; i < step.results.size(); ++i) {
    KILN_RETURN_IF_ERROR(TakeResult(step, static_cast<int>(i), results[i]));
  }
  return absl::OkStatus();
}

absl::Status Executor::OneRun::TakeResult(const PlanLibrary& step, int result,
                                          const kiln_tensor& tensor) {
  const int buffer = step.results[result];
  const PlanTensor& type = plan_.buffers[buffer].type;
  auto bad = [&](absl::string_view what) {
    return LibraryError(
        executor_.program_, step.step, absl::StatusCode::kInternal,
        absl::StrCat("gave result ", result, " with another ", what, " than the graph has"));
  };
  if (tensor.dtype != DTypeToProto(type.dtype)) return bad("dtype");
  if (tensor.ndim != static_cast<int>(type.sizes.size()) ||
      (tensor.ndim > 0 && (tensor.sizes == nullptr || tensor.strides == nullptr)) ||
      !std::equal(type.sizes.begin(), type.sizes.end(), tensor.sizes)) {
    return bad("size");
  }
  if (type.reach_bytes > 0 && tensor.data == nullptr) return bad("address (none)");
  if (SameLayout(type.sizes, type.strides.data(), tensor.strides)) {
    workspace_.pointers[buffer] = tensor.data;
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
    KILN_ASSIGN_OR_RETURN(SharedBlock * block, AllocateShared(type.reach_bytes));
    allocations_.push_back({-1, buffer, block});
    workspace_.pointers[buffer] = block->block.data();
  }
  CopyStrided(static_cast<char*>(workspace_.pointers[buffer]), type.strides,
              static_cast<const char*>(tensor.data), strides, type.sizes, DTypeSize(type.dtype));
  return absl::OkStatus();
}

void Executor::OneRun::Copy(const PlanCopy& copy) {
  if (copy.from.type.reach_bytes == 0) return;
  CopyStrided(Address(copy.to), copy.to.type.strides, Address(copy.from), copy.from.type.strides,
              copy.from.type.sizes, DTypeSize(copy.from.type.dtype));
}

// An output that views a constant gets a copy: callers may write to outputs.
absl::Status Executor::OneRun::StoreConstant(int buffer) {
  const PlanBuffer& info = plan_.buffers[buffer];
  if (info.kind != BufferKind::kConstant || FindAllocation(buffer) != nullptr) {
    return absl::OkStatus();
  }
  void* constant = workspace_.pointers[buffer];
  absl::Status status = Allocate(AllocationNumber(plan_, info), buffer);
  if (status.ok()) {
    std::memcpy(workspace_.pointers[buffer], constant, info.type.reach_bytes);
    workspace_.plan_id = 0;  // the pointer is no longer the constant's
  }
  return status;
}

absl::Status Executor::OneRun::FillOutput(const PlanOutput& from, kiln_output& to) {
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
    if (allocation->block != nullptr) {
      allocation->block->references.fetch_add(1, std::memory_order_relaxed);
      to.owner = allocation->block;
    }
  } else {
    to.storage = buffer.kind == BufferKind::kInput ? KILN_STORAGE_INPUT : KILN_STORAGE_LIBRARY;
    to.storage_index = buffer.index;
  }
  return absl::OkStatus();
}

const Executor::OneRun::Allocation* Executor::OneRun::FindAllocation(int buffer) const {
  // Output buffers are allocated first and in order.
  const PlanBuffer& info = plan_.buffers[buffer];
  if (info.kind == BufferKind::kOutput) return &allocations_[info.index];
  for (const Allocation& allocation : allocations_) {
    if (allocation.buffer == buffer) return &allocation;
  }
  return nullptr;
}

char* Executor::OneRun::Address(const PlanView& view) const {
  return static_cast<char*>(workspace_.pointers[view.buffer]) +
         view.offset * DTypeSize(view.type.dtype);
}

}  // namespace kiln::runtime
