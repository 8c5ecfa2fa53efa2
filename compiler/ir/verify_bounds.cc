#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/verify_impl.h"
#include "proto/base/scramble.h"

namespace kiln::ir {
namespace {

// A loop variable or indirect operand of the index, with the number of its values.
struct Axis {
  IntExpr leaf;
  int64_t extent;
  int64_t at;
};

int64_t ValueOf(const IntContext& ints, const std::vector<Axis>& axes, IntExpr leaf) {
  if (leaf.kind() == IntKind::kSymbol) {
    const IntContext::SymbolInfo& symbol = ints.symbols()[leaf.id()];
    return std::clamp(symbol.hint, symbol.min, symbol.max);
  }
  for (const Axis& axis : axes) {
    if (axis.leaf == leaf) return axis.at;
  }
  return 0;
}

std::vector<Axis> AxesOf(const IntContext& ints, IntExpr index) {
  std::vector<Axis> axes;
  ForEachLeaf(index, [&](IntExpr leaf) {
    if (leaf.kind() != IntKind::kSymbol) axes.push_back({leaf, 0, 0});
  });
  for (Axis& axis : axes) {
    axis.extent =
        ints.Evaluate(axis.leaf.extent(), [&](IntExpr leaf) { return ValueOf(ints, {}, leaf); });
  }
  return axes;
}

// Moves to the next point in row-major order; false after the last.
bool NextPoint(std::vector<Axis>& axes) {
  for (size_t i = axes.size(); i-- > 0;) {
    if (++axes[i].at < axes[i].extent) return true;
    axes[i].at = 0;
  }
  return false;
}

// Corners first, then random points.
void SetProbe(std::vector<Axis>& axes, int64_t probe) {
  const bool corner = probe < kMaxProbes / 4;
  for (size_t i = 0; i < axes.size(); ++i) {
    const uint64_t bits = Scramble(static_cast<uint64_t>(probe) * 64 + i + 1);
    const bool high = axes.size() < 9 ? (probe >> i & 1) != 0 : (bits & 1) != 0;
    axes[i].at = corner ? (high ? axes[i].extent - 1 : 0)
                        : static_cast<int64_t>(bits % static_cast<uint64_t>(axes[i].extent));
  }
}

std::optional<std::string> Probe(IntContext& ints, IntExpr index, IntExpr size) {
  std::vector<Axis> axes = AxesOf(ints, index);
  int64_t points = 1;
  for (const Axis& axis : axes) {
    if (axis.extent <= 0) return std::nullopt;
    if (__builtin_mul_overflow(points, axis.extent, &points)) points = INT64_MAX;
  }
  const auto leaf_value = [&](IntExpr leaf) { return ValueOf(ints, axes, leaf); };
  const int64_t limit = ints.Evaluate(size, leaf_value);
  const bool all = points <= kMaxProbes;
  for (int64_t probe = 0; probe < kMaxProbes; ++probe) {
    if (!all) SetProbe(axes, probe);
    const int64_t value = ints.Evaluate(index, leaf_value);
    if (value < 0 || value >= limit) {
      return absl::StrCat("reaches ", value, " in a dimension of ", limit, " elements");
    }
    if (all && !NextPoint(axes)) break;
  }
  return std::nullopt;
}

}  // namespace

bool IsSizeExpr(IntExpr expr) {
  return expr && !ContainsKind(expr, IntKind::kVar) && !ContainsKind(expr, IntKind::kIndirect);
}

std::optional<std::string> FindIndexOutside(IntContext& ints, IntExpr index, IntExpr size) {
  const bool is_axis = index.kind() == IntKind::kVar || index.kind() == IntKind::kIndirect;
  if (is_axis && index.extent() == size) return std::nullopt;
  const IntRange range = index.range();
  if (range.min >= 0 && range.max < size.range().min) return std::nullopt;
  if ((range.min >= 0 || ints.ProvablyLessEqual(ints.Const(0), index)) &&
      ints.ProvablyLess(index, size)) {
    return std::nullopt;
  }
  return Probe(ints, index, size);
}

}  // namespace kiln::ir
