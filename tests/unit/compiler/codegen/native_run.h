// Compiles a module's kernels for this machine and runs them, for tests of code generators.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/interpret.h"
#include "compiler/ir/module.h"
#include "proto/base/random_inputs.h"
#include "tests/unit/compiler/codegen/gcu_device.h"

namespace kiln::codegen {

// An NVIDIA GPU, whose kernels are emulated here (gpu_emulator.h).
inline constexpr absl::string_view kPtxIsa = "ptx";
// A GCU, which is simulated.
inline constexpr absl::string_view kGcuIsa = "gcu";
// A CPU with tiles of bfloat16.
inline constexpr absl::string_view kAmxIsa = "amx";
// "x86-64", "avx2", "avx512", "avx512bf16", kAmxIsa, kPtxIsa or kGcuIsa, as a client would describe
// it.
DeviceInfo TestDevice(absl::string_view isa);
// The target that is for it.
std::unique_ptr<Target> TestTarget(const DeviceInfo& device);
// Those that this machine can run; KILN_TEST_ISA names one, for developers.
std::vector<std::string> RunnableIsas();

// Loads a shared object from memory. The caller has the handle.
absl::StatusOr<void*> LoadLibrary(const std::string& bytes);

class NativeModule {
 public:
  // Emits, compiles and links every kernel. `module` must outlive the result.
  // `together`: as one kernel, of operations that are equal, by Target::PrintTogether.
  static absl::StatusOr<std::unique_ptr<NativeModule>> Build(ir::Module& module,
                                                             const DeviceInfo& device,
                                                             bool together = false);
  ~NativeModule();

  // As ir::Interpret. INTERNAL if a kernel writes outside its buffers, OUT_OF_RANGE if it reports
  // an index outside its dimension.
  absl::StatusOr<std::vector<ir::ReferenceTensor>> Run(absl::Span<const HostTensor> inputs,
                                                       absl::Span<const int64_t> symbols,
                                                       int threads);
  // Runs kernel number `kernel` once more on the buffers of the last Run.
  int Rerun(size_t kernel);

  const std::vector<EmittedKernel>& kernels() const { return kernels_; }

 private:
  struct Storage;
  explicit NativeModule(ir::Module& module);
  absl::Status Allocate(absl::Span<const HostTensor> inputs, absl::Span<const int64_t> symbols);
  absl::StatusOr<int> RunKernel(size_t number, int threads);
  absl::StatusOr<int> RunOnGrid(size_t number);
  absl::StatusOr<int> RunOnGcu(size_t number);
  absl::Status CheckGuards() const;
  ir::ReferenceTensor ReadWindow(const ir::BufferWindow& window) const;
  int64_t Value(ir::IntExpr expr) const;

  ir::Module& module_;
  std::vector<EmittedKernel> kernels_;
  std::vector<void*> entries_;  // by kernel; null for a GCU's
  std::vector<bool> on_gcu_;    // by kernel
  std::unique_ptr<GcuDevice> gcu_;
  void* library_ = nullptr;
  std::vector<int64_t> symbols_;
  std::vector<std::unique_ptr<Storage>> buffers_;
  int threads_ = 1;
};

}  // namespace kiln::codegen
