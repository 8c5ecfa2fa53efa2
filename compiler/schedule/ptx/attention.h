// Attention of many queries on the tensor cores of sm_90a, in one kernel.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/ptx/attention_kernels.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// How a tile runs: the constants of a Micro of kAttendTile (compiler/schedule/micro.h).
struct AttentionTile {
  int width = 0;          // elements of a head
  int groups = 2;         // warpgroups that multiply, with 64 queries each
  int keys = 128;         // of a step
  int stages = 2;         // steps of keys and values that are loaded ahead
  bool turns = true;      // warpgroups begin to multiply one after another
  bool in_place = false;  // the result leaves through the memory of the queries
  // Blocks take tiles in turn, as many as run at a time; else each has one.
  bool is_persistent = true;
  bool is_causal = false;
  int mask = 0;  // 1: bool; 2: added to scores
  bool has_log_sums = false;
  float scale = 1;

  int Queries() const { return 64 * groups; }
  int Threads() const { return 128 * (groups + 1); }
  int64_t SharedBytes() const;
  std::vector<int> Constants() const;
  static AttentionTile FromConstants(const std::vector<int>& constants);
};

// Whether boxes of an operand of 16 bits can be loaded or stored. What there is one of has any
// stride.
bool HasLines(ir::IntContext& ints, const AttentionOperand& operand, ir::IntExpr batches,
              ir::IntExpr heads, ir::IntExpr rows);
// Whether coordinates of the tensor memory accelerator, and numbers of tiles, are int.
bool HasIntSizes(ir::IntContext& ints, const Attention& attention);
// Of the bits, the higher half first: constants that schedule::ScaleOf reads.
std::pair<int, int> HalvesOf(float x);

// Whether the tensor memory accelerator and the tensor cores take it, of sm_90a: bfloat16 or
// float16, heads of 64, 96, 128 or 256 elements, contiguous, at multiples of 16 bytes.
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
