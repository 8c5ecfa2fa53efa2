// Products of matrices by mma.sync, on the tensor cores of sm_80 and later: of devices for which
// there is no code of sm_90a.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/schedule/device_info.h"
#include "compiler/schedule/ptx/product.h"

namespace kiln::schedule::ptx {

// How such a product runs: prelude_warps.inc.h says what each is. `blocks`: so many a
// multiprocessor has room for.
struct WarpTiles {
  int rows, columns, stages, step, warp_rows, warp_columns, blocks;

  // Of MicroKind::kMultiplyWarps, and back.
  std::vector<int> Constants() const;
  static WarpTiles FromConstants(const std::vector<int>& constants);

  int Threads() const;  // of a block
  int64_t SharedBytes() const;
};

// The tiles of that rank (DeviceInfo::rank) by the cost model; adds them, the runner-up and a
// library's time to `reasons`. REQUIRES: product.by_warps, of that device.
WarpTiles ChooseWarpTiles(const Product& product, const DeviceInfo& device,
                          std::vector<std::string>& reasons);

// Whether that takes less time than a library's product and a kernel after it, by the cost model.
// REQUIRES: the same.
bool AreWarpTilesFaster(const Product& product, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
