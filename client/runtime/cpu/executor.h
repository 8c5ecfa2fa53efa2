// Runs a program on this machine's CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/runtime/memory.h"
#include "client/runtime/plan.h"
#include "client/runtime/symbols.h"
#include "kiln/kiln.h"

namespace kiln {
namespace v1 {
class Program;
}
}  // namespace kiln

// What the prepare steps of one program made of one state of its parameters.
struct kiln_prepared {
  uint64_t executor = 0;  // Executor::id_ of the program
  kiln::runtime::Block block;
};

namespace kiln::runtime {

class Contract;
class ThreadPool;

// Thread-safe: runs may overlap. A run takes a workspace that no other run uses (kept for later
// runs), and the process's threads where nobody else holds them.
class Executor {
 public:
  // `kernels` has the kernel of each launch step, in order, and stays valid. `contract` is that of
  // the graph, or null where there is none: an artifact alone must agree with itself only.
  // `program` must outlive the executor. Errors as CheckLaunches, MakePlan and Contract::CheckPlan.
  // REQUIRES: CheckProgram(program) passed.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const v1::Program& program,
                                                          std::vector<Kernel> kernels,
                                                          std::unique_ptr<const Contract> contract,
                                                          int threads);
  ~Executor();

  // See kiln_program_run. `options` may be null.
  absl::Status Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                   const kiln_run_options* options) const;

  // See kiln_program_prepare.
  absl::StatusOr<std::unique_ptr<kiln_prepared>> PrepareWeights(
      absl::Span<const kiln_tensor> inputs) const;
  // Whether that reads the input.
  bool PreparesInput(size_t input) const { return prepared_inputs_[input]; }

  int threads() const { return threads_; }
  bool dynamic() const { return dynamic_; }
  // Whether a run stores into that input.
  bool WritesInput(size_t input) const { return written_inputs_[input]; }
  // At the symbols' hints where the program is dynamic.
  const Plan& typical_plan() const { return *typical_plan_; }

 private:
  struct Workspace;
  class OneRun;

  Executor(const v1::Program& program, std::vector<Kernel> kernels,
           std::unique_ptr<const Contract> contract, int threads);
  absl::Status Prepare();
  absl::StatusOr<std::shared_ptr<const Plan>> MakeSoundPlan(
      absl::Span<const int64_t> symbols) const;
  absl::StatusOr<std::shared_ptr<const Plan>> PlanForInputs(
      absl::Span<const kiln_tensor> inputs) const;
  // The plan for these inputs, which are the program's: dtypes, sizes, strides. `made` keeps it.
  absl::StatusOr<const Plan*> Guard(absl::Span<const kiln_tensor> inputs,
                                    std::shared_ptr<const Plan>& made) const;
  absl::StatusOr<std::unique_ptr<Workspace>> TakeWorkspace(const Plan& plan) const;
  void ReturnWorkspace(std::unique_ptr<Workspace> workspace) const;
  ThreadPool& Pool() const;

  const uint64_t id_;  // unique in the process
  const v1::Program& program_;
  const std::vector<Kernel> kernels_;
  const std::unique_ptr<const Contract> contract_;  // may be null
  const int threads_;
  bool dynamic_ = false;
  std::vector<bool> written_inputs_;
  std::vector<bool> prepared_inputs_;
  std::vector<SymbolSource> symbol_sources_;
  std::vector<Block> constants_;
  std::shared_ptr<const Plan> typical_plan_;

  // What most runs need, without a lock: the process's threads, once some run asked for them, and a
  // workspace that no run has.
  mutable std::atomic<ThreadPool*> pool_{nullptr};
  mutable std::atomic<Workspace*> spare_{nullptr};
  mutable absl::Mutex mutex_;
  // Most recently used last; only of dynamic programs.
  mutable std::vector<std::shared_ptr<const Plan>> plans_ ABSL_GUARDED_BY(mutex_);
  mutable std::vector<std::unique_ptr<Workspace>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln::runtime
