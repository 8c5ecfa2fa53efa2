#include "client/cli/gpu_tensors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "client/loader.h"
#include "client/runtime/cuda/device.h"
#include "client/runtime/executor.h"
#include "client/runtime/strided_copy.h"
#include "client/status_bridge.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/dtype.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

// From the first to past the last byte of a tensor of a known dtype.
int64_t ReachBytes(int dtype, int ndim, const int64_t* sizes, const int64_t* strides) {
  const auto count = static_cast<size_t>(ndim);
  return runtime::ReachElements({sizes, count}, {strides, count}).value_or(0) *
         DTypeSize(static_cast<DType>(dtype));
}

cuda::DevicePointer Pointer(const void* data) {
  return reinterpret_cast<cuda::DevicePointer>(data);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuTensors>> GpuTensors::Upload(const Program& program,
                                                               const RunInputs& inputs) {
  KILN_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Get());
  KILN_ASSIGN_OR_RETURN(const int ordinal,
                        cuda::FindGpuFor(*driver, program.artifact().header().arch()));
  KILN_ASSIGN_OR_RETURN(const cuda::Gpu* gpu, cuda::Gpu::Get(ordinal));
  const cuda::ContextScope context(*driver, gpu->context);
  KILN_RETURN_IF_ERROR(context.status());
  std::unique_ptr<GpuTensors> out(new GpuTensors(*gpu));
  KILN_ASSIGN_OR_RETURN(out->stream_, cuda::OwnStream::Make(*driver));
  out->inputs_ = inputs.all;
  for (size_t i = 0; i < out->inputs_.size(); ++i) {
    if (!program.artifact().program().inputs(static_cast<int>(i)).type().has_tensor()) continue;
    kiln_tensor& tensor = out->inputs_[i];
    const int64_t bytes = ReachBytes(tensor.dtype, tensor.ndim, tensor.sizes, tensor.strides);
    KILN_ASSIGN_OR_RETURN(cuda::DeviceBlock block, cuda::DeviceBlock::Allocate(*gpu, bytes));
    if (bytes > 0) {
      KILN_RETURN_IF_ERROR(
          driver->Check(driver->copy_to_device(Pointer(block.data()), tensor.data,
                                               static_cast<size_t>(bytes), out->stream_->get()),
                        absl::StrCat("cannot copy input ", i, " to the GPU")));
    }
    tensor.data = block.data();
    tensor.device_type = KILN_CUDA;
    tensor.device_index = ordinal;
    out->input_blocks_.push_back(std::move(block));
  }
  KILN_RETURN_IF_ERROR(out->stream_->Synchronize());
  return out;
}

absl::StatusOr<void*> GpuTensors::OutputMemory(int32_t allocation, int64_t bytes) {
  OutputBlock& kept = output_blocks_[allocation];
  if (kept.bytes < bytes) {
    KILN_ASSIGN_OR_RETURN(kept.block, cuda::DeviceBlock::Allocate(gpu_, bytes));
    kept.bytes = bytes;
  }
  return kept.block.data();
}

absl::Status GpuTensors::Run(const Program& program, absl::Span<kiln_output> outputs) {
  const cuda::ContextScope context(gpu_.driver, gpu_.context);
  KILN_RETURN_IF_ERROR(context.status());
  kiln_run_options options = KILN_RUN_OPTIONS_INIT;
  options.user = this;
  options.stream = stream_->get();
  options.allocate_output = [](void* user, int32_t allocation, int32_t dtype, int32_t ndim,
                               const int64_t* sizes, const int64_t* strides,
                               void** data) -> kiln_status* {
    const absl::StatusOr<void*> memory = static_cast<GpuTensors*>(user)->OutputMemory(
        allocation, ReachBytes(dtype, ndim, sizes, strides));
    if (memory.ok()) *data = *memory;
    return ToCStatus(memory.status());
  };
  KILN_RETURN_IF_ERROR(program.Run(inputs_, outputs, &options));
  KILN_RETURN_IF_ERROR(stream_->Synchronize());
  return program.loaded().executor().TakeError();
}

absl::Status GpuTensors::Download(absl::Span<kiln_output> results) {
  const cuda::ContextScope context(gpu_.driver, gpu_.context);
  KILN_RETURN_IF_ERROR(context.status());
  for (kiln_output& result : results) {
    if (result.kind != KILN_TENSOR) continue;
    const int64_t bytes = ReachBytes(result.dtype, result.ndim, result.sizes, result.strides);
    char* data = results_.emplace_back(new char[static_cast<size_t>(bytes) + 1]).get();
    if (bytes > 0) {
      KILN_RETURN_IF_ERROR(
          gpu_.driver.Check(gpu_.driver.copy_to_host(data, Pointer(result.data),
                                                     static_cast<size_t>(bytes), stream_->get()),
                            "cannot copy a result from the GPU"));
    }
    result.data = data;
  }
  return stream_->Synchronize();
}

}  // namespace kiln::cli
