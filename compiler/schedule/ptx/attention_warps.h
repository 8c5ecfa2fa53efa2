// Attention of many queries by mma.sync, on the tensor cores of sm_80 and later: of devices for
// which there is no code of sm_90a.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/ptx/attention_form.h"
#include "compiler/schedule/ptx/attention_kernels.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// How it runs: the constants of a Micro of kAttendWarps; prelude_attention_warps.inc.h says what
// each is. `blocks`: so many a multiprocessor has room for.
struct AttentionWarps : AttentionForm {
  int rows = 0, warp_rows = 0, keys = 0, stages = 0, blocks = 0;
  bool is_kept = false;

  int Threads() const;  // of a block
  int64_t SharedBytes() const;
  std::vector<int> Constants() const;
  static AttentionWarps FromConstants(const std::vector<int>& constants);
};

// Whether it runs so on that device.
bool AttendsByWarps(const ir::Module& module, const Attention& attention, const DeviceInfo& device);

// Whether that takes less time than a library, by the cost model. REQUIRES: AttendsByWarps.
bool AreWarpsFaster(const ir::Module& module, const Attention& attention, const DeviceInfo& device);

// By the shape of that rank (DeviceInfo::rank). A task is a tile of queries of one head. The
// repeat's kernels are the attention's. REQUIRES: AttendsByWarps.
Tree ScheduleAttentionByWarps(ir::Module& module, const ir::Repeat& repeat,
                              const Attention& attention, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
