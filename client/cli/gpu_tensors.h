// The tensors of `kiln run` on a GPU: inputs uploaded, results downloaded.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/inputs.h"
#include "client/runtime/cuda/memory.h"
#include "kiln/client.h"

namespace kiln::cli {

class GpuTensors {
 public:
  // Copies the inputs of the program, which is one for GPUs, to the first GPU that runs it.
  // RESOURCE_EXHAUSTED where they have no room there.
  static absl::StatusOr<std::unique_ptr<GpuTensors>> Upload(const Program& program,
                                                            const RunInputs& inputs);

  const std::vector<kiln_tensor>& inputs() const { return inputs_; }

  // Runs the program and waits. Outputs lie in memory that the next run uses again.
  absl::Status Run(const Program& program, absl::Span<kiln_output> outputs);

  // Copies the results, outputs and inputs alike, to this machine, where they stay as long as this.
  absl::Status Download(absl::Span<kiln_output> results);

 private:
  explicit GpuTensors(const cuda::Gpu& gpu) : gpu_(gpu) {}
  absl::StatusOr<void*> OutputMemory(int32_t allocation, int64_t bytes);

  const cuda::Gpu& gpu_;
  std::unique_ptr<cuda::OwnStream> stream_;
  std::vector<cuda::DeviceBlock> input_blocks_;
  std::vector<kiln_tensor> inputs_;
  struct OutputBlock {
    int64_t bytes = 0;
    cuda::DeviceBlock block;
  };
  std::map<int32_t, OutputBlock> output_blocks_;  // by allocation
  std::vector<std::unique_ptr<char[]>> results_;
};

}  // namespace kiln::cli
