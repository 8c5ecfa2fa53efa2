// Runs a program: what all devices share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/runtime/contract.h"
#include "client/runtime/launch_choices.h"
#include "client/runtime/plan.h"
#include "client/runtime/symbols.h"
#include "kiln/kiln.h"

namespace kiln {
namespace v1 {
class Program;
}
}  // namespace kiln

// What the prepare steps of one program made of one state of its parameters; each device has its
// own kind.
struct kiln_prepared {
  explicit kiln_prepared(uint64_t id) : executor(id) {}
  virtual ~kiln_prepared() = default;
  const uint64_t executor;  // Executor::id of the program
};

namespace kiln::runtime {

// A run's launches on a device that tells, in order.
struct DeviceRun {
  struct Launch {
    std::string kernel;
    double microseconds = 0;
    int64_t l2_peak_bytes = 0;
  };
  std::string device;            // its name; "" of devices that do not tell
  std::vector<int64_t> symbols;  // of the run's plan
  std::vector<Launch> launches;
};

// Thread-safe: runs may overlap.
class Executor {
 public:
  virtual ~Executor();

  // See kiln_program_run. `options` may be null.
  virtual absl::Status Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                           const kiln_run_options* options) const = 0;
  // See kiln_program_prepare.
  virtual absl::StatusOr<std::unique_ptr<kiln_prepared>> PrepareWeights(
      absl::Span<const kiln_tensor> inputs) const = 0;
  // See kiln_program_expect_prepare.
  virtual void ExpectPrepare() const {}
  // See kiln_program_check.
  virtual absl::Status TakeError() const = 0;
  virtual int threads() const = 0;  // of the CPU, that a run uses
  // Whether LastRun tells of runs with launches on the device.
  virtual bool TellsRuns() const { return false; }
  // What the last run did on a device that tells.
  virtual DeviceRun LastRun() const { return {}; }

  // Whether runs that are given what PrepareWeights made do without the input as it is then.
  bool PreparesInput(size_t input) const { return prepared_inputs_[input]; }
  // Of memory that what PrepareWeights makes takes; 0: there is nothing to prepare.
  int64_t prepared_bytes() const { return typical_plan_->prepared_bytes + kept_bytes_; }
  bool dynamic() const { return dynamic_; }
  // Whether a run stores into that input.
  bool WritesInput(size_t input) const { return written_inputs_[input]; }
  // At the symbols' hints where the program is dynamic.
  const Plan& typical_plan() const { return *typical_plan_; }
  const v1::Program& program() const { return program_; }
  // Of launches with alternatives; what runs have decided is the caller's to report.
  LaunchChoices& choices() const { return choices_; }

 protected:
  const std::vector<bool>& written_inputs() const { return written_inputs_; }
  // `kernels` has the kernel of each launch step, in order, and stays valid. `contract` is that of
  // the graph, or null where there is none: an artifact alone must agree with itself only.
  // `program` must outlive the executor. REQUIRES: CheckProgram(program) passed.
  Executor(const v1::Program& program, std::vector<Kernel> kernels,
           std::unique_ptr<const Contract> contract, kiln_device_type device);

  // Called once, before anything else. Errors as CheckLaunches, MakePlan and Contract::CheckPlan.
  absl::Status Prepare();

  // The plan for these inputs, which are the program's: number, dtypes, sizes, strides, device.
  // `made` keeps it.
  absl::StatusOr<const Plan*> Guard(absl::Span<const kiln_tensor> inputs, size_t num_outputs,
                                    std::shared_ptr<const Plan>& made) const;
  // Whether `options` has something prepared, and it is this program's.
  absl::StatusOr<const kiln_prepared*> Prepared(const kiln_run_options* options) const;

  uint64_t id() const { return id_; }
  const std::vector<Kernel>& kernels() const { return kernels_; }
  const std::vector<bool>& prepared_inputs() const { return prepared_inputs_; }
  // Of a device with memory of its own: parameters that launches read there, and none writes, are
  // prepared as well, by lying there. After Prepare.
  void KeepParameters();

 private:
  absl::StatusOr<std::shared_ptr<const Plan>> MakeSoundPlan(
      absl::Span<const int64_t> symbols) const;
  absl::StatusOr<std::shared_ptr<const Plan>> PlanForInputs(
      absl::Span<const kiln_tensor> inputs) const;

  const uint64_t id_;  // unique in the process
  const v1::Program& program_;
  const std::vector<Kernel> kernels_;
  const std::unique_ptr<const Contract> contract_;  // may be null
  const kiln_device_type device_;
  bool dynamic_ = false;
  std::vector<bool> written_inputs_;
  std::vector<bool> prepared_inputs_;
  int64_t kept_bytes_ = 0;  // of parameters on the device
  std::vector<SymbolSource> symbol_sources_;
  std::shared_ptr<const Plan> typical_plan_;
  mutable LaunchChoices choices_;

  mutable absl::Mutex mutex_;
  // Most recently used last; only of dynamic programs.
  mutable std::vector<std::shared_ptr<const Plan>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln::runtime
