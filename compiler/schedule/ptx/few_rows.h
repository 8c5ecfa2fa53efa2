// Products of at most 64 rows on the tensor cores of sm_90a, as in decoding: the time is that of
// reading the other operand, the weights, once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/schedule/device_info.h"
#include "compiler/schedule/ptx/product.h"

namespace kiln::schedule::ptx {

inline constexpr int64_t kMostFewRows = 64;

// How such a product runs: prelude_rows.inc.h says what each is.
struct RowsShape {
  int rows, columns, stages, boxes, of_warp, groups, cluster;
  int inner = 0, group = 0;  // of packed weights

  // Of MicroKind::kMultiplyRows, and back.
  std::vector<int> Constants() const;
  static RowsShape FromConstants(const std::vector<int>& constants);

  int Threads() const;  // of a block: those that multiply and a warp that loads
  // Of weights that take `bits` each: how deep a stage is, in elements; and what a block's stages
  // and all else in shared memory take.
  int Depth(int bits) const;
  int64_t StageBytes(int bits) const;
  int64_t SharedBytes(int bits) const;
};

// Of a weight of that type; packed ones are words of i32.
int WeightBits(DType dtype);

// Whether the product, on sm_90a, has so few rows and both operands are contiguous along k.
bool HasFewRows(const Product& product);

// The shape of that rank (DeviceInfo::rank) by the cost model; adds it, the runner-up and a
// library's time to `reasons`. REQUIRES: HasFewRows.
RowsShape ChooseRowsShape(const Product& product, int units, int rank,
                          std::vector<std::string>& reasons);

// Whether that takes less time than a library's product, and a kernel after it where it `goes_on`.
// REQUIRES: HasFewRows.
bool AreFewRowsFaster(const Product& product, bool goes_on, int units);

}  // namespace kiln::schedule::ptx
