// Attention of many queries on the tensor cores of sm_90a, in one kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/ptx/attention_form.h"
#include "compiler/schedule/ptx/attention_kernels.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// How a tile runs: the constants of a Micro of kAttendTile (compiler/schedule/micro.h).
struct AttentionTile : AttentionForm {
  int groups = 2;     // warpgroups that multiply, with 64 queries each
  int keys = 128;     // of a step
  int stages = 2;     // steps of keys and values that are loaded ahead
  bool turns = true;  // warpgroups begin to multiply one after another
  int places = 2;     // in shared memory, for a tile's queries, where its result takes theirs
  // Blocks take tiles in turn, as many as run at a time; else each has one. Takes two places.
  bool is_persistent = true;

  int Queries() const { return 64 * groups; }
  int Threads() const { return 128 * (groups + 1); }
  int64_t SharedBytes() const;
  std::vector<int> Constants() const;
  static AttentionTile FromConstants(const std::vector<int>& constants);
};

// Whether the tensor memory accelerator and the tensor cores of sm_90a take it.
bool IsOfTensorCores(const ir::Module& module, const Attention& attention,
                     const DeviceInfo& device);

// Whether it takes no more time than the fastest of a library's, by what was measured.
// REQUIRES: IsOfTensorCores.
bool IsFasterThanLibraries(const ir::Module& module, const Attention& attention,
                           const DeviceInfo& device);

// A task is a tile of queries of one head. The repeat's kernels are the attention's.
// REQUIRES: IsOfTensorCores.
Tree ScheduleAttention(ir::Module& module, const ir::Repeat& repeat, const Attention& attention,
                       const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
