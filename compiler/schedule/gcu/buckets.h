// Sizes that are known at run time only, in ranges: a program has a version for each of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "compiler/ir/module.h"

namespace kiln::schedule::gcu {

// Those sizes of the symbols that no bucket before it has.
struct Bucket {
  std::vector<int64_t> most;     // by symbol; none: all sizes
  std::vector<int64_t> typical;  // by symbol
};

// Symbols that the kernels' loops and buffers depend on, in order of first use.
std::vector<ir::IntExpr> SymbolsOf(const ir::Module& module, absl::Span<const ir::Kernel> kernels);

// Buckets with those limits in ascending order, and the last one.
std::vector<Bucket> BucketsOf(const ir::IntContext& ints, const std::vector<ir::IntExpr>& symbols,
                              const std::vector<std::vector<int64_t>>& limits);

// Limits for BucketsOf. `fits`: whether all that is handed on fits where sizes are at most these.
using Fits = std::function<bool(const Bucket&)>;
std::vector<std::vector<int64_t>> ChooseLimits(const ir::IntContext& ints,
                                               const std::vector<ir::IntExpr>& symbols,
                                               const Fits& fits);

// The greatest values of sizes in the bucket; kNoLimit where that is not known, or more than any
// memory.
inline constexpr int64_t kNoLimit = int64_t{1} << 50;
std::vector<int64_t> MostOf(ir::IntContext& ints, const std::vector<ir::IntExpr>& symbols,
                            const Bucket& bucket, const std::vector<ir::IntExpr>& sizes);
// Bytes of a buffer of these sizes, without gaps; at most kNoLimit.
int64_t Bytes(const std::vector<int64_t>& sizes, DType dtype);

// "s0 <= 64, s1 <= 128"; "other sizes".
std::string TextOf(const ir::IntContext& ints, const std::vector<ir::IntExpr>& symbols,
                   const Bucket& bucket);

// While it lives, hints of the symbols are the bucket's typical sizes, for which all is planned.
class AtTypicalSizes {
 public:
  AtTypicalSizes(ir::IntContext& ints, const std::vector<ir::IntExpr>& symbols,
                 const Bucket& bucket);
  ~AtTypicalSizes();
  AtTypicalSizes(const AtTypicalSizes&) = delete;
  AtTypicalSizes& operator=(const AtTypicalSizes&) = delete;

 private:
  ir::IntContext& ints_;
  const std::vector<ir::IntExpr> symbols_;
  std::vector<int64_t> hints_;
};

}  // namespace kiln::schedule::gcu
