// Sums about a number that sums over the same elements give, as a variance's about the mean.
//
// They need not wait for that number m. Of the n elements v of a part, and any K, let
//   D  = sum (v - K) / n
//   M2 = sum (v - K)^2 - n D^2,   then
//   sum (v - m)   = n (K - m + D)
//   sum (v - m)^2 = M2 + n (K - m + D)^2
// and those of all parts add up (Chan, Golub and LeVeque, "Updating formulae and a pairwise
// algorithm for computing sample variances", 1979). Where K is itself one of the elements, M2 is at
// least (K - mean)^2, so the difference loses a factor n of the sums' accuracy at the very most,
// and next to nothing where K is near the others.
#pragma once

#include <optional>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::schedule::ptx {

// A reduction of a phase, which may be made in the loops of an earlier one.
struct LateSum {
  enum class Kind : uint8_t {
    kFree,       // its operand needs nothing that is known only after those loops
    kDeviation,  // sum of value - from
    kSquare,     // sum of (value - from)^2
  };
  const ir::Inst* reduce = nullptr;
  Kind kind = Kind::kFree;
  ir::ValueId value = ir::kNoValue, from = ir::kNoValue;  // where not kFree; `from` is of no loop
};

// What phase `p` does, where all of it is such reductions and its loops are as long as those of
// phase `first`, before it, and not empty; nothing otherwise. What `value` and free operands are
// computed from are instructions of phase `p` itself, of phases without loops, or of ones before
// `first`.
std::optional<std::vector<LateSum>> FindLateSums(const ir::Kernel& kernel, size_t first, size_t p);

}  // namespace kiln::schedule::ptx
