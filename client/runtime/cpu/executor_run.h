// The parts of one run of an Executor; included by executor*.cc only.
#pragma once

#include <vector>

#include "absl/container/inlined_vector.h"
#include "client/runtime/cpu/executor.h"
#include "client/runtime/cpu/thread_pool.h"

namespace kiln::runtime {

// What a run writes to apart from outputs; belongs to one run at a time.
struct Executor::Workspace {
  absl::Status Prepare(const Plan& plan, int threads, absl::Span<const Block> constants);

  uint64_t plan_id = 0;  // the plan that the pointers below are for; 0 for none
  Block block;
  Block prepared;  // of runs that are given nothing prepared
  char* scratch = nullptr;
  char* thread_scratch = nullptr;
  std::vector<void*> pointers;   // by buffer
  std::vector<void*> arguments;  // of the launch in progress
};

class Executor::OneRun {
 public:
  OneRun(const Executor& executor, const Plan& plan, Workspace& workspace,
         absl::Span<const kiln_tensor> inputs, const kiln_run_options* options);
  ~OneRun();  // gives back the threads and this run's references to its allocations

  absl::Status Run(absl::Span<kiln_output> outputs);
  // Runs the prepare steps alone, into a block of the plan's prepared_bytes.
  absl::Status Prepare(char* block);

 private:
  struct Allocation {
    int number = 0;
    int buffer = 0;
    SharedBlock* block = nullptr;  // null where the caller allocated
  };

  void SetPointers(char* prepared);
  absl::Status RunSteps(size_t first, size_t end);
  absl::Status AllocateOutputs();
  // Storage for a buffer's contents that outputs view; sets the buffer's pointer.
  absl::Status Allocate(int number, int buffer);
  absl::Status Launch(const PlanLaunch& launch);
  absl::Status CallLibrary(const PlanLibrary& step);
  absl::Status TakeResult(const PlanLibrary& step, int result, const kiln_tensor& tensor);
  void Copy(const PlanCopy& copy);
  absl::Status FillOutput(const PlanOutput& from, kiln_output& to);
  absl::Status StoreConstant(int buffer);
  const Allocation* FindAllocation(int buffer) const;
  char* Address(const PlanView& view) const;

  const Executor& executor_;
  const Plan& plan_;
  Workspace& workspace_;
  const absl::Span<const kiln_tensor> inputs_;
  const kiln_run_options* const options_;
  ThreadPool::Run* pool_run_ = nullptr;  // its place, where it has one
  KilnCpuContext context_{};
  absl::InlinedVector<Allocation, 4> allocations_;
};

// The number of the allocation that holds a copy of a buffer: output buffers come first, then
// copied constants, then copied library results.
int AllocationNumber(const Plan& plan, const PlanBuffer& buffer);

absl::Status CheckCounts(const v1::Program& program, absl::Span<const kiln_tensor> inputs,
                         size_t num_outputs);
absl::Status CheckInputs(const v1::Program& program, const Plan& plan,
                         absl::Span<const kiln_tensor> inputs);

}  // namespace kiln::runtime
