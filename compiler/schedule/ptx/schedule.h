// How kernels run on an NVIDIA GPU: the schedules that target ptx chooses.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// What the target has no code for, in words: sorting, elementary functions of float64; empty where
// it has all of the kernel.
std::string Lacks(const ir::Kernel& kernel);

// Whether a contraction runs on the tensor cores, and faster so than by a library and, where it
// `goes_on`, a kernel for more work on its result.
bool TakesProduct(ir::Module& module, const ir::Kernel& kernel, bool goes_on,
                  const DeviceInfo& device);

// Whether it is one of few rows on sm_90a (few_rows.h).
bool IsProductOfFewRows(ir::Module& module, const ir::Kernel& kernel, const DeviceInfo& device);

// Whether the kernels are attention, or its gradients, that run as one there (few_queries.h,
// attention.h, attention_warps.h, gradients.h), and faster so than by a library. Attention is taken
// however fast that is where no library could run it, `by_libraries`.
bool TakesAttention(ir::Module& module, const std::vector<const ir::Kernel*>& kernels,
                    bool by_libraries, const DeviceInfo& device);

// REQUIRES: a kernel of the verified module. UNIMPLEMENTED for complex types and for what it Lacks.
absl::StatusOr<Tree> ScheduleKernel(ir::Module& module, const ir::Kernel& kernel,
                                    const DeviceInfo& device);

// UNIMPLEMENTED for kernels that are neither and that the tensor cores do not take.
absl::StatusOr<Tree> ScheduleRepeat(ir::Module& module, const ir::Repeat& repeat,
                                    const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
