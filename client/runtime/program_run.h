// One run of a program: its steps in order, its memory, its outputs. A device adds how it launches,
// copies and allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/runtime/executor.h"
#include "client/runtime/memory.h"
#include "client/runtime/plan.h"
#include "kiln/kiln.h"

namespace kiln::runtime {

class ProgramRun {
 public:
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

 protected:
  // A window of memory.
  struct Window {
    void* data = nullptr;
    absl::Span<const int64_t> strides;  // elements
  };

  // `pointers` has an entry for each buffer; those of workspace and constants are set. All
  // arguments outlive the run; `options` may be null.
  ProgramRun(const Executor& executor, const Plan& plan, absl::Span<const kiln_tensor> inputs,
             const kiln_run_options* options, absl::Span<void*> pointers);
  virtual ~ProgramRun();  // gives back this run's references to its allocations

  // Points the buffers of inputs and of what is prepared.
  void SetPointers(char* prepared);
  // Allocates outputs, runs the steps from `first_step` on and describes the outputs.
  absl::Status Run(size_t first_step, absl::Span<kiln_output> outputs);
  absl::Status RunSteps(size_t first, size_t end);

  const Plan& plan() const { return plan_; }
  const v1::Program& program() const { return program_; }
  absl::Span<const kiln_tensor> inputs() const { return inputs_; }
  const kiln_run_options* options() const { return options_; }
  // Whether the pointer of a constant is now that of an output.
  bool constant_moved() const { return constant_moved_; }
  void* pointer(int buffer) const { return pointers_[static_cast<size_t>(buffer)]; }
  // "kernel NAME"
  std::string KernelName(const PlanLaunch& launch) const;

 private:
  struct Allocation {
    int number = 0;
    int buffer = 0;
    SharedMemory* memory = nullptr;  // null where the caller allocated
  };

  virtual absl::Status Launch(const PlanLaunch& launch) = 0;
  // Whether TimeLaunch can be called in this run.
  virtual bool MayTime() const { return true; }
  // Launches, waits for its end and returns the microseconds that it took.
  virtual absl::StatusOr<double> TimeLaunch(const PlanLaunch& launch) = 0;
  // Copies every element; sizes are those of both windows, not empty.
  virtual absl::Status CopyWindow(const Window& to, const Window& from,
                                  absl::Span<const int64_t> sizes, int64_t element_bytes) = 0;
  // Memory with one reference.
  virtual absl::StatusOr<SharedMemory*> AllocateOwn(int64_t bytes) = 0;
  // What tensors of a library step have as their device.
  virtual void SetDevice(kiln_tensor& tensor) const = 0;
  // Before a library step, a copy or the caller uses the buffer here.
  virtual absl::Status BeforeUse(int, bool /*writes*/) { return absl::OkStatus(); }
  // After each call of the caller's code. OK where the run can go on.
  virtual absl::Status AfterCallback() = 0;

  absl::Status RunStep(const PlanStep& step);
  // Of step `i`, which has alternatives, the one that is chosen.
  const PlanStep& ChosenOf(size_t i);
  absl::Status AllocateOutputs();
  // Storage for a buffer's contents that outputs view; sets the buffer's pointer.
  absl::Status Allocate(int number, int buffer);
  absl::Status CallLibrary(const PlanLibrary& step);
  absl::Status TakeResult(const PlanLibrary& step, int result, const kiln_tensor& tensor);
  absl::Status Copy(const PlanCopy& copy);
  absl::Status FillOutput(const PlanOutput& from, kiln_output& to);
  absl::Status StoreConstant(int buffer);
  const Allocation* FindAllocation(int buffer) const;
  kiln_tensor Describe(const PlanTensor& type, void* data) const;
  char* Address(const PlanView& view) const;

  const v1::Program& program_;
  LaunchChoices& choices_;
  const Plan& plan_;
  const absl::Span<const kiln_tensor> inputs_;
  const kiln_run_options* const options_;
  const absl::Span<void*> pointers_;
  absl::InlinedVector<Allocation, 4> allocations_;
  bool constant_moved_ = false;
};

// The number of the allocation that holds a copy of a buffer: output buffers come first, then
// copied constants, then copied library results.
int AllocationNumber(const Plan& plan, const PlanBuffer& buffer);

}  // namespace kiln::runtime
