// Attention of few queries on sm_90a, as in decoding: the time is that of reading keys and values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/ptx/attention_kernels.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// Rows, queries of heads that share keys, that a block has at most: those of an instruction.
inline constexpr int64_t kMostFewQueries = 16;

// How it runs: prelude_queries.inc.h says what each is.
struct QueriesShape {
  int stages, cluster;
  // Of a block, for heads of `width` elements of 16 bits and that many rows of the mask.
  static int64_t SharedBytes(int stages, int64_t mask_rows, int64_t width);
};

// An operand: element (batch, head, group, query, key, lane) lies at first + the sum of each times
// its stride; a head is one of keys, a group one of the queries' heads that share it.
struct QueriesOperand {
  ir::BufferId buffer = -1;
  ir::IntExpr first, by_batch, by_head, by_group, by_query, by_key, by_lane;  // elements
};

// out = softmax(scale * query key^T + mask) value
struct FewQueries {
  ir::IntExpr batches, keys;
  int64_t heads = 0, groups = 0, queries = 0, width = 0;
  double scale = 0;
  QueriesOperand query, key, value, out;
  std::optional<QueriesOperand> mask;  // bool: whether a key counts; else what is added

  int64_t rows() const { return groups * queries; }
  // Of the mask that differ; 0 without one.
  int64_t mask_rows() const;
};

// The attention as one of few queries that the tensor memory accelerator and the tensor cores take:
// bfloat16 or float16, heads of 64 to 256, multiples of 16. Nothing for others, and on devices
// without them.
std::optional<FewQueries> AsFewQueries(const ir::Module& module, const Attention& attention,
                                       const DeviceInfo& device);

// Whether it takes less time than a library's, by the cost model.
bool IsFasterThanLibraries(ir::IntContext& ints, const FewQueries& attention,
                           const DeviceInfo& device);

// All of one head's keys as a task. REQUIRES: the repeat's kernels are `attention`.
Tree ScheduleFewQueries(ir::Module& module, const ir::Repeat& repeat, const FewQueries& attention,
                        const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
