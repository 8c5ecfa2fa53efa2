// How tile instructions run a kernel: which part of its loops is one tile, in which order cores
// take tiles, and what it costs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/machine.h"

namespace kiln::schedule::gcu {

// Tiles of `b` iterations that `a` of them take.
constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Tiling {
  std::vector<int64_t> tile;  // by loop: iterations of a tile, at most the loop's extent
  std::vector<int> order;     // outer loops, from the slowest to the fastest
  std::vector<int> lanes;     // all loops: from the outermost to the innermost of a tile in L1
  // Inner loops that run one iteration after another, over what was loaded for all of them.
  std::vector<bool> serial;  // by loop
  // The inner loop of the first phase of which a tile is a part: parts are steps, whose loads run
  // ahead as those of tiles do. -1: none.
  int blocked = -1;
  // An inner loop that matrix instructions sum over together with the depth; -1: none.
  int merged = -1;
  std::optional<MatrixRoles> matrix;
};

// Seconds, as predicted.
struct Cost {
  double seconds = 0;
  double compute = 0;     // of the slowest core
  double l3 = 0, l2 = 0;  // of the channels
  int64_t l3_bytes = 0, l2_bytes = 0;
  int64_t l1_bytes = 0;
};

// Which buffers lie in L2; all others are in L3.
using InL2 = std::vector<bool>;  // by buffer

// The number for a size that is not known: what ranges or hints say.
int64_t TypicalOf(const ir::IntContext& ints, ir::IntExpr expr);

// Bytes of L1 and time of a kernel that is run so.
Cost CostOf(const ir::Module& module, const Form& form, const Tiling& tiling, const InL2& in_l2,
            const Machine& machine);

// The best of the tilings that it tries; `l1_bytes` is what it may take.
Tiling ChooseTiling(const ir::Module& module, const Form& form, const InL2& in_l2,
                    const Machine& machine, int64_t l1_bytes);

// Whether a tile has but a part of the loop, whatever the sizes are at run time.
bool IsPart(const Form& form, const Tiling& tiling, int loop);

}  // namespace kiln::schedule::gcu
