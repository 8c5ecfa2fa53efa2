// The gradients of attention on the tensor cores of sm_90a, in one kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/ptx/gradient_kernels.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// How a tile of keys runs: the constants of a Micro of kAttendGradients
// (compiler/schedule/micro.h).
struct GradientsTile {
  int width = 0;    // elements of a head
  int queries = 0;  // of a step
  int stages = 2;   // steps of queries and their gradients that are loaded ahead
  int of_key = 1;   // heads that share the keys
  bool is_causal = false;
  float scale = 1;

  // Two warpgroups multiply, with 64 keys each.
  static constexpr int kGroups = 2, kKeys = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  int64_t SharedBytes() const;
  std::vector<int> Constants() const;
  static GradientsTile FromConstants(const std::vector<int>& constants);
};

// Whether the tensor memory accelerator and the tensor cores take them, of sm_90a: bfloat16 or
// float16, heads of 64 or 128 elements, contiguous, at multiples of 16 bytes. Not where results
// have to be the same bits in every run: tiles add to the queries' gradient as they come.
bool IsOfTensorCores(const ir::Module& module, const AttentionGradients& gradients,
                     const DeviceInfo& device);

// Whether they take no more time than a library's, with the kernels before and after, by what was
// measured. REQUIRES: IsOfTensorCores.
bool IsFasterThanLibraries(const ir::Module& module, const AttentionGradients& gradients);

// A task is a tile of keys of one head. The repeat's kernels are the gradients'.
// REQUIRES: IsOfTensorCores.
Tree ScheduleGradients(ir::Module& module, const ir::Repeat& repeat,
                       const AttentionGradients& gradients, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
