// What a loop nest tells the caches beyond its loads and stores, and what it keeps in them.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// How far ahead of its time to fetch what one processor reads in narrow elements, one stream alone:
// converting them keeps it from seeing far enough ahead by itself.
inline constexpr int64_t kBytesAhead = 4096;

// Where a task keeps so many bytes: half of the first-level cache is for what streams by.
inline Space TaskSpace(int64_t bytes, int64_t l1_bytes) {
  return 2 * bytes <= l1_bytes ? Space::kL1 : Space::kL2;
}

// Buffers that the nest only writes, where all that it touches does not fit the last cache: what it
// wrote first would be gone anyway when the next kernel reads it, and writing past the caches saves
// reading the lines first.
absl::flat_hash_set<ir::BufferId> StreamedBuffers(ir::IntContext& ints, const ir::Module& module,
                                                  const Nest& nest, const DeviceInfo& device);

// Loads beside which something is fetched into the second-level cache ahead of its time, and the
// element where that begins: as many elements as the load reads. Three cases that hardware does not
// foresee: the next row, while a later phase computes on this one and memory would stand idle; the
// rows to come of a reduction over columns, which lie pages apart; and narrow elements.
absl::flat_hash_map<const ir::Inst*, ir::IntExpr> PlanPrefetches(ir::IntContext& ints,
                                                                 const ir::Module& module,
                                                                 const Nest& nest,
                                                                 const VectorPlan& plan,
                                                                 const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
