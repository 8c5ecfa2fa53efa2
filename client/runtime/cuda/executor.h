// Runs a program on NVIDIA GPUs.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/runtime/archive.h"
#include "client/runtime/cuda/driver.h"
#include "client/runtime/executor.h"

namespace kiln::cuda {

// A run only puts its steps into its stream. What it needs of a GPU besides memory (machine code,
// constants) is made by the first run there; later ones take no lock.
class CudaExecutor final : public runtime::Executor {
 public:
  // `archives` hold the same kernels, the best kind first; `kernels` are FindKernels' of them. Uses
  // no GPU yet. Errors as Executor::Prepare.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(
      const v1::Program& program, std::vector<runtime::Kernel> kernels,
      std::vector<std::unique_ptr<const runtime::Archive>> archives, std::string arch,
      std::unique_ptr<const runtime::Contract> contract, const Driver& driver);
  // Waits for the GPUs that it was used on. What graphs have captured of its runs stays with them.
  ~CudaExecutor() override;

  absl::Status Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                   const kiln_run_options* options) const override;
  // Waits for the GPU before, for whoever has written the parameters, and after.
  absl::StatusOr<std::unique_ptr<kiln_prepared>> PrepareWeights(
      absl::Span<const kiln_tensor> inputs) const override;
  absl::Status TakeError() const override;
  int threads() const override { return 1; }

 private:
  struct OnGpu;
  class OneRun;
  static constexpr int kMostGpus = 64;

  CudaExecutor(const v1::Program& program, std::vector<runtime::Kernel> kernels,
               std::vector<std::unique_ptr<const runtime::Archive>> archives, std::string arch,
               std::unique_ptr<const runtime::Contract> contract, const Driver& driver);
  // The GPU of the inputs; of the context that is current, else the first, where there are none.
  int OrdinalOf(const runtime::Plan& plan, absl::Span<const kiln_tensor> inputs) const;
  absl::StatusOr<const OnGpu*> Use(int ordinal) const;
  absl::StatusOr<std::shared_ptr<const OnGpu>> Load(int ordinal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<std::unique_ptr<const runtime::Archive>> archives_;
  const std::string arch_;
  const Driver& driver_;
  const bool checks_launches_;  // KILN_CHECK_LAUNCHES=1: wait for each and name the one that fails
  mutable std::array<std::atomic<const OnGpu*>, kMostGpus> on_gpus_{};  // of loaded_
  // What kernels store 1 to where an index is outside of its dimension: error_memory_'s.
  mutable std::atomic<int*> error_{nullptr};
  mutable absl::Mutex mutex_;  // of who loads
  // Memory of the host that all GPUs see, made with the first of loaded_.
  mutable std::shared_ptr<int> error_memory_ ABSL_GUARDED_BY(mutex_);
  mutable std::vector<std::shared_ptr<const OnGpu>> loaded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln::cuda
