// One kernel, by the way that suits it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {
namespace {

absl::Status Run(const KernelProgram& program, std::vector<Storage>& storage, int64_t free_bytes,
                 const double* result) {
  const int64_t bytes = int64_t{program.num_registers} * kLanes * sizeof(Lane);
  if (bytes > free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a kernel needs ", bytes, " bytes of registers"));
  }
  ProgramRunner runner(program, storage);
  runner.SetResult(result);
  return runner.RunAll();
}

// No phase has inner loops: the outer loops are the lanes, all phases one body.
KernelProgram FlatProgram(const Module& module, const Kernel& kernel,
                          absl::Span<const int64_t> symbols, size_t first_phase) {
  ProgramBuilder builder(module, symbols);
  builder.BeginNest(kernel.outer);
  if (first_phase > 0) {
    const Inst& sum = kernel.phases[0].body.back();
    builder.AddResult(sum.result, sum.dtype);
  }
  for (size_t i = first_phase; i < kernel.phases.size(); ++i) {
    for (const Inst& inst : kernel.phases[i].body) builder.AddInst(inst);
  }
  builder.EndNest(false);
  return builder.Finish();
}

// Point by point, each phase's inner loops as lanes.
KernelProgram NestedProgram(const Module& module, const Kernel& kernel,
                            absl::Span<const int64_t> symbols) {
  ProgramBuilder builder(module, symbols);
  builder.AddPointLoops(kernel.outer);
  for (const Phase& phase : kernel.phases) {
    builder.BeginNest(phase.inner);
    if (kernel.schedule == Schedule::kSorting) {
      for (const Inst& inst : phase.body) {
        if (inst.op != ScalarOp::kStore) builder.AddInst(inst, /*sorted=*/false);
        if (inst.op == ScalarOp::kSort) break;
      }
      builder.EndNest(false);
      builder.BeginNest(phase.inner);
    }
    for (const Inst& inst : phase.body) builder.AddInst(inst, /*sorted=*/true);
    builder.EndNest(phase.inner.empty());
  }
  return builder.Finish();
}

}  // namespace

absl::Status InterpretKernel(const Module& module, const Kernel& kernel,
                             absl::Span<const int64_t> symbols, std::vector<Storage>& storage,
                             const Resources& resources) {
  const int64_t free_bytes = resources.free_bytes;
  const bool is_flat = std::all_of(kernel.phases.begin(), kernel.phases.end(),
                                   [](const Phase& phase) { return phase.inner.empty(); });
  if (is_flat) {
    return Run(FlatProgram(module, kernel, symbols, 0), storage, free_bytes, nullptr);
  }
  if (kernel.schedule == Schedule::kContraction) {
    std::vector<double> result;
    KILN_ASSIGN_OR_RETURN(
        bool done, InterpretContraction(module, kernel, symbols, storage, resources, result));
    if (done) {
      return Run(FlatProgram(module, kernel, symbols, 1), storage, free_bytes, result.data());
    }
  }
  return Run(NestedProgram(module, kernel, symbols), storage, free_bytes, nullptr);
}

}  // namespace kiln::ir
