// A program with every size known: what one run does, in plain numbers.
//
// MakePlan evaluates a program's expressions for given symbols and proves the result sound: after
// it, no buffer, view or offset reaches outside its memory, whatever bytes the artifact held, and
// every launch gives its kernel what the kernel's interface asks for. (That machine code keeps to
// its interface is beyond a check: it is all that a client believes of an artifact.)
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/runtime/kernel.h"
#include "kiln/kiln.h"
#include "proto/base/cpu_kernel_abi.h"
#include "proto/base/dtype.h"

namespace kiln {
namespace v1 {
class Program;
}
}  // namespace kiln

namespace kiln::runtime {

enum class BufferKind : uint8_t { kInput, kOutput, kWorkspace, kLibrary, kConstant, kPrepared };

struct PlanTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;    // elements
  std::vector<int64_t> strides;  // elements
  int64_t reach_bytes = 0;       // from the first to past the last element
};

struct PlanBuffer {
  BufferKind kind = BufferKind::kWorkspace;
  // kInput: the input's number. kOutput and kLibrary: counted in the order of the program's
  // buffers and of the library steps' results. kConstant: the constant's number.
  int index = 0;
  int64_t workspace_offset = 0;  // bytes; of kPrepared: in the block of those
  PlanTensor type;
};

struct PlanView {
  int buffer = 0;
  int64_t offset = 0;  // elements
  PlanTensor type;
};

struct PlanInput {
  bool is_tensor = true;
  PlanTensor type;
  int64_t value = 0;  // of a size
};

// Blocks of threads that a kernel runs over; without blocks there is nothing to do.
struct PlanGrid {
  uint32_t blocks[3] = {1, 1, 1};
  uint32_t threads[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
};

inline constexpr int kMostMapSizes = 5;

// Of a matrix that a GPU's kernel reads by boxes: what is contiguous first.
struct PlanTensorMap {
  int argument = 0;  // which of the launch's buffers
  DType dtype = DType::kBF16;
  uint32_t rank = 2;
  int64_t offset_bytes = 0;
  uint64_t sizes[kMostMapSizes] = {};         // elements
  uint64_t stride_bytes[kMostMapSizes] = {};  // of all sizes but the first
  uint32_t box[kMostMapSizes] = {};           // elements
};

struct PlanLaunch {
  KilnCpuKernel kernel = nullptr;  // of a CPU
  int function = -1;               // of a GPU, as in Kernel
  PlanGrid grid;                   // of a GPU
  int name = 0;                    // of the step, for messages
  int first_buffer = 0;            // in launch_buffers
  int num_buffers = 0;
  std::vector<long> symbols;
  int64_t scratch_bytes = 0;         // a multiple of 64
  int64_t thread_scratch_bytes = 0;  // a multiple of 64
  std::vector<PlanTensorMap> tensor_maps;
  std::vector<int> zeroed;  // of a GPU: which of its buffers are made zero before it begins
  // On a GPU: whether it may begin before a launch before it has ended. It waits for that before it
  // touches anything that a step of the program writes.
  bool begins_early = false;
  // Whether it can run again and again with the same effect: it reads nothing that it writes, and
  // writes no input.
  bool repeats = false;
};

struct PlanLibrary {
  int step = 0;  // counts library steps
  std::vector<PlanView> tensors;
  std::vector<int64_t> ints;
  std::vector<int> results;  // buffers
};

struct PlanCopy {
  PlanView from, to;
};

struct PlanStep {
  enum class Kind : uint8_t { kLaunch, kLibrary, kCopy } kind = Kind::kLaunch;
  int index = 0;  // into launches, libraries or copies
  // So many steps behind this one, launches both, do the same: one of them all runs.
  int alternatives = 0;
};

struct PlanOutput {
  kiln_value_kind kind = KILN_NONE;
  PlanView view;
  int64_t value = 0;
};

struct Plan {
  uint64_t id = 0;  // unique in the process
  std::vector<int64_t> symbols;
  std::vector<PlanInput> inputs;
  std::vector<PlanBuffer> buffers;
  std::vector<PlanStep> steps;
  std::vector<PlanLaunch> launches;
  std::vector<int> launch_buffers;
  std::vector<PlanLibrary> libraries;
  std::vector<PlanCopy> copies;
  std::vector<PlanOutput> outputs;
  std::vector<int> output_buffers;  // those of kind kOutput
  int num_library_results = 0;
  int64_t workspace_bytes = 0;
  int prepare_steps = 0;             // the first steps, which make the kPrepared buffers
  int64_t prepared_bytes = 0;        // that they take; the same in all plans of a program
  int64_t scratch_bytes = 0;         // the largest of any launch, a multiple of 64
  int64_t thread_scratch_bytes = 0;  // the largest of any launch, a multiple of 64
};

// `kernels` holds the kernel of each launch step, in order. REQUIRES: CheckProgram(program) and
// CheckLaunches(program, kernels) passed; one value for each symbol. DATA_LOSS where the numbers
// make no sense, INVALID_ARGUMENT where a symbol is out of its range.
absl::StatusOr<Plan> MakePlan(const v1::Program& program, absl::Span<const Kernel> kernels,
                              absl::Span<const int64_t> symbols);

// What can be checked without sizes: every number refers to something that exists, types are known,
// library results are made before they are used and once, and every symbol has a source. DATA_LOSS
// with the place; FAILED_PRECONDITION for a launch that says what this client does not know.
absl::Status CheckProgram(const v1::Program& program);

}  // namespace kiln::runtime
