#include "compiler/schedule/gcu/buckets.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kiln::schedule::gcu {
namespace {

using ir::IntExpr;

constexpr int64_t kScale = 1024;                   // of sizes beside their hints
constexpr int64_t kMostScale = kScale << 14;       // above sizes in use, far from overflow
constexpr int64_t kMostSize = int64_t{1} << 40;    // of a symbol; far from overflow
constexpr int64_t kFirstStep = 64, kNextStep = 8;  // between limits

// The symbols' sizes at `scale` / kScale of their hints.
std::vector<int64_t> SizesAt(const ir::IntContext& ints, const std::vector<IntExpr>& symbols,
                             int64_t scale) {
  std::vector<int64_t> sizes;
  for (IntExpr symbol : symbols) {
    const ir::IntContext::SymbolInfo& info = ints.symbols()[symbol.id()];
    const int64_t hint = std::clamp<int64_t>(info.hint, 1, kMostSize / kMostScale * kScale);
    const int64_t most = std::min(info.max, kMostSize);
    sizes.push_back(std::clamp(hint * scale / kScale, std::min(info.min, most), most));
  }
  return sizes;
}

}  // namespace

std::vector<IntExpr> SymbolsOf(const ir::Module& module, absl::Span<const ir::Kernel> kernels) {
  std::vector<IntExpr> symbols;
  const auto add = [&](IntExpr size) {
    if (size.is_const()) return;
    ir::ForEachLeaf(size, [&](IntExpr leaf) {
      if (leaf.kind() == ir::IntKind::kSymbol && !absl::c_linear_search(symbols, leaf)) {
        symbols.push_back(leaf);
      }
    });
  };
  for (const ir::Kernel& kernel : kernels) {
    for (IntExpr var : kernel.outer) add(var.extent());
    for (const ir::Phase& phase : kernel.phases) {
      for (IntExpr var : phase.inner) add(var.extent());
    }
    ir::ForEachInst(kernel, [&](const ir::Inst& inst) {
      if (inst.buffer < 0) return;
      for (IntExpr size : module.buffers[inst.buffer].sizes) add(size);
    });
  }
  return symbols;
}

std::vector<Bucket> BucketsOf(const ir::IntContext& ints, const std::vector<IntExpr>& symbols,
                              const std::vector<std::vector<int64_t>>& limits) {
  std::vector<Bucket> buckets;
  std::vector<int64_t> least(symbols.size(), 0);
  for (size_t b = 0; b <= limits.size(); ++b) {
    Bucket& bucket = buckets.emplace_back();
    if (b < limits.size()) bucket.most = limits[b];
    for (size_t i = 0; i < symbols.size(); ++i) {
      const ir::IntContext::SymbolInfo& info = ints.symbols()[symbols[i].id()];
      const int64_t low = std::max(least[i], info.min);
      // Beyond all limits: twice the last one.
      const int64_t most = bucket.most.empty()
                               ? std::min(info.max, std::max(least[i] * 3, info.hint))
                               : bucket.most[i];
      const bool has_hint = info.hint > least[i] && info.hint <= most;
      bucket.typical.push_back(has_hint ? info.hint : std::max<int64_t>(low, (low + most) / 2));
    }
    least = bucket.most;
  }
  return buckets;
}

std::vector<std::vector<int64_t>> ChooseLimits(const ir::IntContext& ints,
                                               const std::vector<IntExpr>& symbols,
                                               const Fits& fits) {
  const std::vector<int64_t> greatest = SizesAt(ints, symbols, kMostScale);
  // The largest scale that fits: of those below `above` which change a size.
  int64_t largest = 0, above = 1;
  while (above < kMostScale && SizesAt(ints, symbols, above) != greatest) above *= 2;
  ++above;
  while (above - largest > 1) {
    const int64_t middle = largest + (above - largest) / 2;
    const bool fit = fits({.most = SizesAt(ints, symbols, middle), .typical = {}});
    (fit ? largest : above) = middle;
  }
  std::vector<int64_t> scales = {largest / kFirstStep, largest / kNextStep, largest};
  // The sizes in use have versions of their own, whether they do not fit or far larger ones do.
  if (largest < kScale) scales.insert(scales.end(), {kScale, kScale * kNextStep});
  if (largest > kScale * kFirstStep) scales = {kScale, kScale * kNextStep, largest};
  std::vector<std::vector<int64_t>> limits;
  for (const int64_t scale : scales) {
    std::vector<int64_t> sizes = SizesAt(ints, symbols, scale);
    if (scale == 0 || (!limits.empty() && sizes == limits.back())) continue;
    if (sizes == greatest) break;  // as those of the last bucket
    limits.push_back(std::move(sizes));
  }
  return limits;
}

std::vector<int64_t> MostOf(ir::IntContext& ints, const std::vector<IntExpr>& symbols,
                            const Bucket& bucket, const std::vector<IntExpr>& sizes) {
  ir::IntContext::VarMap limited;
  for (size_t i = 0; i < bucket.most.size(); ++i) {
    limited[symbols[i]] = ints.Min(symbols[i], ints.Const(bucket.most[i]));
  }
  std::vector<int64_t> most;
  for (IntExpr size : sizes) {
    const IntExpr inside =
        limited.empty() || size.is_const() ? size : ints.Substitute(size, limited);
    most.push_back(std::clamp<int64_t>(inside.range().max, 0, kNoLimit));
  }
  return most;
}

int64_t Bytes(const std::vector<int64_t>& sizes, DType dtype) {
  if (absl::c_linear_search(sizes, 0)) return 0;
  int64_t bytes = DTypeSize(dtype);
  for (const int64_t size : sizes) {
    if (bytes > kNoLimit / size) return kNoLimit;
    bytes *= size;
  }
  return bytes;
}

std::string TextOf(const ir::IntContext& ints, const std::vector<IntExpr>& symbols,
                   const Bucket& bucket) {
  if (bucket.most.empty()) return "other sizes";
  std::vector<std::string> limits;
  for (size_t i = 0; i < symbols.size(); ++i) {
    limits.push_back(absl::StrCat(ints.symbols()[symbols[i].id()].name, " <= ", bucket.most[i]));
  }
  return absl::StrJoin(limits, ", ");
}

AtTypicalSizes::AtTypicalSizes(ir::IntContext& ints, const std::vector<IntExpr>& symbols,
                               const Bucket& bucket)
    : ints_(ints), symbols_(symbols) {
  for (size_t i = 0; i < symbols_.size(); ++i) {
    hints_.push_back(ints.symbols()[symbols_[i].id()].hint);
    ints_.SetHint(symbols_[i], bucket.typical[i]);
  }
}

AtTypicalSizes::~AtTypicalSizes() {
  for (size_t i = 0; i < symbols_.size(); ++i) ints_.SetHint(symbols_[i], hints_[i]);
}

}  // namespace kiln::schedule::gcu
