// Runs a program on this machine's CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/runtime/executor.h"
#include "client/runtime/memory.h"

namespace kiln::runtime {

class ThreadPool;

// What runs those launches of a program that are no calls of this machine's: a device that has
// memory of its own, and tensors that lie on the host. Thread-safe.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // One run; it knows of each buffer where what was last stored is: on the host, the device or
  // both. Of one thread at a time.
  class Run {
   public:
    virtual ~Run() = default;
    // `data` is where the host has the buffer; `kernel` that of the launch.
    virtual absl::Status Launch(const PlanLaunch& launch, const Kernel& kernel,
                                absl::Span<void* const> data) = 0;
    // Before the host uses a buffer at `data`, all of which it then has; where it `writes`, only
    // the host has it.
    virtual absl::Status ToHost(int buffer, void* data, bool writes) = 0;
    virtual bool OnlyOnDevice(int buffer) const = 0;
    // Waits until everything is done; then nothing of the run can fail any more.
    virtual absl::Status Finish() = 0;
  };
  // What stays on the device from run to run, which may overlap: buffers that are given to it once,
  // when the first run needs them there.
  class Kept {
   public:
    virtual ~Kept() = default;
  };
  virtual std::unique_ptr<Kept> Keep() const = 0;
  // `kept`, which may be null, takes what is prepared and the inputs of `keeps_input`, of Keep; it
  // must outlive the run.
  virtual absl::StatusOr<std::unique_ptr<Run>> Begin(
      const Plan& plan, Kept* kept, const std::vector<bool>& keeps_input) const = 0;
  // What the last run did there.
  virtual DeviceRun LastRun() const = 0;
};

// A run takes a workspace that no other run uses (kept for later runs), and the process's threads
// where nobody else holds them.
class CpuExecutor final : public Executor {
 public:
  // As Executor's constructor and Prepare; `kernels` have their entries, but for those of
  // `accelerator`, which may be null.
  static absl::StatusOr<std::unique_ptr<CpuExecutor>> Create(
      const v1::Program& program, std::vector<Kernel> kernels,
      std::unique_ptr<const Contract> contract, int threads,
      std::unique_ptr<const Accelerator> accelerator = nullptr);
  ~CpuExecutor() override;

  absl::Status Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                   const kiln_run_options* options) const override;
  absl::StatusOr<std::unique_ptr<kiln_prepared>> PrepareWeights(
      absl::Span<const kiln_tensor> inputs) const override;
  void ExpectPrepare() const override;
  absl::Status TakeError() const override { return absl::OkStatus(); }  // a run has told it
  int threads() const override { return threads_; }
  bool TellsRuns() const override { return accelerator_ != nullptr; }
  DeviceRun LastRun() const override {
    return accelerator_ == nullptr ? DeviceRun() : accelerator_->LastRun();
  }

 private:
  struct Workspace;
  class OneRun;

  CpuExecutor(const v1::Program& program, std::vector<Kernel> kernels,
              std::unique_ptr<const Contract> contract, int threads,
              std::unique_ptr<const Accelerator> accelerator);
  absl::StatusOr<std::unique_ptr<Workspace>> TakeWorkspace(const Plan& plan) const;
  void ReturnWorkspace(std::unique_ptr<Workspace> workspace) const;
  ThreadPool& Pool() const;
  // For what is prepared, of `bytes`: what ExpectPrepare has made, where that is still there.
  absl::StatusOr<std::shared_ptr<TakenBlock>> BlockForPrepared(int64_t bytes) const;

  const int threads_;
  const std::unique_ptr<const Accelerator> accelerator_;
  std::vector<Block> constants_;

  // What most runs need, without a lock: the process's threads, once some run asked for them, and a
  // workspace that no run has.
  mutable std::atomic<ThreadPool*> pool_{nullptr};
  mutable std::atomic<Workspace*> spare_{nullptr};
  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln::runtime
