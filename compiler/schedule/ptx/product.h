// Products of matrices on tensor cores: of sm_90a, or by mma.sync (warp_tiles.h).
#pragma once

#include <cstdint>
#include <optional>

#include "compiler/ir/module.h"
#include "compiler/ir/packed_weights.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// One operand: element (side, k) lies at first + side * side_stride + k * k_stride, one of which is
// 1 and the other a multiple of 16 bytes.
struct ProductOperand {
  ir::BufferId buffer = -1;
  int64_t first = 0, side_stride = 0, k_stride = 0;  // elements
  DType dtype = DType::kBF16;
  bool is_turned() const { return k_stride != 1; }
};

// result[rows, columns] = sum over k of a[rows, k] * b[columns, k], and what is done with it.
struct Product {
  ir::IntExpr rows, columns;  // loops
  int64_t num_rows = 0, num_columns = 0, num_k = 0;
  ProductOperand a, b;
  std::optional<ir::PackedWeights> packed;  // b: its buffer has their words
  const ir::Inst* sum = nullptr;
  double work = 0;          // instructions, roughly, for what is done with each sum
  bool has_places = false;  // keeps some for results of more than 16 bits, or for what it gathers
  bool by_warps = false;    // by mma.sync
};

inline constexpr int kProductStep = 64;   // elements of k that a stage of the ring holds
inline constexpr int kMultipliers = 256;  // threads of the two warpgroups that multiply
// Sums of one of those, which share a tile of the result or have one in turns.
constexpr int SumsOfThread(int rows, int columns, bool turns) {
  return rows * columns / (turns ? kMultipliers / 2 : kMultipliers);
}
// Of the 240 registers that such a thread has at most: from so many on they leave few for the rest.
inline constexpr int kManySums = 160;

// The nest as a product that the device's tensor cores take: of bfloat16 or float16, of sizes that
// are known, in layouts that ProductOperand has; on sm_90a of few rows (few_rows.h) b may be of
// int8, or of packed weights of 4 bits. Nothing on devices without them.
std::optional<Product> FindProduct(ir::IntContext& ints, const ir::Module& module, const Nest& nest,
                                   const DeviceInfo& device);

// Whether the product, with more work on its result where it `goes_on`, takes less time than a
// library's and a kernel for that work, by the cost model; of more than few rows never below 128
// rows, columns or elements of k, nor without such work where columns are a multiple of 8: of
// others a library's results have to be copied.
bool IsFasterThanLibraries(const Product& product, bool goes_on, const DeviceInfo& device);

// Tiles of the result as tasks, by the cost model: what it took and the runner-up are among the
// tree's reasons. The print of such a tree is codegen/ptx/product_printer.h.
Tree ScheduleProduct(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                     const Product& product, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
