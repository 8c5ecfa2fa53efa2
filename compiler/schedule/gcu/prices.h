// What kernels take, one by one, whole or tile by tile: the prices that groups are compared by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/ir/identity.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/buckets.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {

// Seconds that the kernel takes with the best tiles; infinity where the device cannot run it.
double SecondsOf(ir::Module& module, ir::Kernel kernel, const InL2& in_l2, const Machine& machine);

class Prices {
 public:
  // `identities`: equal kernels cost the same. What is given must outlive it.
  Prices(ir::Module& module, const Machine& machine, const std::vector<ir::Identity>& identities)
      : module_(module), machine_(machine), identities_(identities) {}

  // The sizes that prices are for from now on; the symbols' hints are the bucket's typical ones.
  void SetSizes(const std::vector<ir::IntExpr>& symbols, const Bucket& bucket);

  // Seconds that the kernel of that operation takes, all of it where `loop` is -1, or `step`
  // iterations of its outer loop of that number; infinity where the device cannot run it.
  double Of(size_t operation, int64_t loop, int64_t step, const InL2& in_l2);

  // Seconds of a kernel whose first phase's inner loop of that number is cut into tiles: what each
  // tile of `step` iterations takes, and what it takes before and after all of them.
  struct OfSums {
    double tile = 0, once = 0;
  };
  // REQUIRES: MaySplitSums.
  OfSums SumsOf(size_t operation, size_t inner, int64_t step, const InL2& in_l2);

 private:
  std::string KeyOf(size_t operation, int64_t loop, int64_t step, const InL2& in_l2) const;

  ir::Module& module_;
  const Machine& machine_;
  const std::vector<ir::Identity>& identities_;
  std::string sizes_;
  absl::flat_hash_map<std::string, double> known_;
  absl::flat_hash_map<std::string, OfSums> known_sums_;
};

}  // namespace kiln::schedule::gcu
