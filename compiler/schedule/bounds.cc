#include "compiler/schedule/bounds.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "proto/base/scramble.h"

namespace kiln::schedule {
namespace {

using ir::IntContext;
using ir::IntExpr;
using ir::IntKind;

constexpr int kMostSteps = 64;  // of a proof
constexpr int kProbes = 32;

// Proves e >= 0 by putting in, from the innermost variable out, the end of its range at which e is
// least. Ends that are a minimum or maximum of several give a branch for each.
class Prover {
 public:
  Prover(IntContext& ints, const Scope& scope) : ints_(ints), scope_(scope) {}

  bool NotNegative(IntExpr e) { return Prove(e, scope_.entries.size()); }

 private:
  bool Prove(IntExpr e, size_t depth) {
    if (e.range().min >= 0) return true;
    if (++steps_ > kMostSteps) return false;
    for (; depth > 0; --depth) {
      const Scope::Entry& entry = scope_.entries[depth - 1];
      if (!ContainsVar(e, entry.var)) continue;
      if (entry.value) return Prove(ints_.Substitute(e, {{entry.var, entry.value}}), depth - 1);
      const IntExpr coefficient = ints_.CoefficientOf(e, entry.var);
      if (!coefficient) return false;
      if (ByBranch(e, entry.var, coefficient, depth - 1)) return true;
      if (coefficient.range().min >= 0) return At(e, entry.var, entry.begin, 0, depth - 1);
      if (coefficient.range().max <= 0) return At(e, entry.var, entry.end, -1, depth - 1);
      return false;
    }
    return ints_.ProvablyLessEqual(ints_.Const(0), e);
  }

  // By what a branch around knows of `var`: than - less - 1 >= 0, as often as makes `var` vanish.
  bool ByBranch(IntExpr e, IntExpr var, IntExpr coefficient, size_t depth) {
    if (!coefficient.is_const()) return false;
    for (const auto& [less, than] : scope_.less) {
      const IntExpr known = ints_.Add(ints_.Sub(than, less), -1);
      const IntExpr its = ContainsVar(known, var) ? ints_.CoefficientOf(known, var) : IntExpr();
      if (!its || !its.is_const() || coefficient.value() % its.value() != 0) continue;
      const int64_t times = coefficient.value() / its.value();
      if (times > 0 && Prove(ints_.Sub(e, ints_.Mul(known, times)), depth)) return true;
    }
    return false;
  }

  // With `var` at `end` + `more`. For a lower end any operand of a maximum is a valid bound, for an
  // upper one any of a minimum.
  bool At(IntExpr e, IntExpr var, IntExpr end, int more, size_t depth) {
    const IntKind choice = more < 0 ? IntKind::kMin : IntKind::kMax;
    if (end.kind() == IntKind::kVar) {
      for (const Scope::Entry& entry : scope_.entries) {
        if (entry.var == end && entry.value) end = entry.value;
      }
    }
    if (end.kind() == choice) {
      return std::any_of(end.operands().begin(), end.operands().end(),
                         [&](IntExpr operand) { return At(e, var, operand, more, depth); });
    }
    return Prove(ints_.Substitute(e, {{var, ints_.Add(end, more)}}), depth);
  }

  IntContext& ints_;
  const Scope& scope_;
  int steps_ = 0;
};

// A point of the scope's loops: the first or last iteration of each by the bits of `probe`, later
// ones at random. False where some loop has no iteration or a branch is not taken there.
class Point {
 public:
  Point(IntContext& ints, const Scope& scope, uint64_t probe) : ints_(ints) {
    for (size_t i = 0; i < scope.entries.size() && legal_; ++i) {
      const Scope::Entry& entry = scope.entries[i];
      if (entry.value) {
        values_[entry.var] = Evaluate(entry.value);
        continue;
      }
      const int64_t begin = Evaluate(entry.begin), end = Evaluate(entry.end);
      const int64_t step = std::max<int64_t>(1, Evaluate(entry.step));
      if (begin >= end) {
        legal_ = false;
        break;
      }
      const auto count = static_cast<uint64_t>((end - begin + step - 1) / step);
      const uint64_t bits = Scramble(probe * 64 + i + kScrambleStep);
      const uint64_t number = probe < kProbes / 2 ? (bits % 2 == 0 ? 0 : count - 1) : bits % count;
      values_[entry.var] = begin + static_cast<int64_t>(number) * step;
    }
    for (const auto& [less, than] : scope.less) {
      if (legal_ && Evaluate(less) >= Evaluate(than)) legal_ = false;
    }
  }

  bool legal() const { return legal_; }
  int64_t Evaluate(IntExpr e) const {
    return ints_.Evaluate(e, [this](IntExpr leaf) -> int64_t {
      if (leaf.kind() == IntKind::kSymbol) {
        const IntContext::SymbolInfo& symbol = ints_.symbols()[leaf.id()];
        return std::clamp(symbol.hint, symbol.min, symbol.max);
      }
      const auto value = values_.find(leaf);
      return value == values_.end() ? 1 : value->second;
    });
  }

 private:
  IntContext& ints_;
  absl::flat_hash_map<IntExpr, int64_t> values_;
  bool legal_ = true;
};

}  // namespace

std::optional<std::string> FindOutside(IntContext& ints, const Scope& scope, IntExpr index,
                                       IntExpr count, IntExpr size) {
  const IntExpr past = ints.Add(index, count);
  if (index.range().min >= 0 && past.range().max <= size.range().min) return std::nullopt;
  if (!ContainsKind(index, IntKind::kIndirect) && Prover(ints, scope).NotNegative(index) &&
      Prover(ints, scope).NotNegative(ints.Sub(size, past))) {
    return std::nullopt;
  }
  for (uint64_t probe = 0; probe < kProbes; ++probe) {
    const Point point(ints, scope, probe);
    if (!point.legal()) continue;
    const int64_t first = point.Evaluate(index), last = first + point.Evaluate(count) - 1;
    if (last < first) continue;
    const int64_t limit = point.Evaluate(size);
    if (first < 0 || last >= limit) {
      return absl::StrCat("reaches ", first < 0 ? first : last, " of ", limit, " elements");
    }
  }
  return std::nullopt;
}

}  // namespace kiln::schedule
