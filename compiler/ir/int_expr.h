// Symbolic 64-bit integers: sizes, strides, indices.
//
// Expressions are hash-consed in an IntContext: equal expressions are the same pointer, so equality
// is `==` on the handle. Builders simplify with the ranges of variables and symbols as they build;
// nobody calls a separate simplifier. Division and remainder round towards minus infinity, as in
// Python. Arithmetic that would overflow 64 bits while folding constants is left unfolded.
//
// An IntContext is not thread-safe and owns every expression made by it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kiln::ir {

class IntContext;
struct IntNode;

enum class IntKind : uint8_t {
  kConst,     // value
  kSymbol,    // a size known at run time: id indexes IntContext::symbols
  kVar,       // a loop variable: id indexes IntContext::vars, 0 <= var < extent
  kIndirect,  // a run-time index inside a load or store: operand number `id` of that instruction
  kAdd,       // n-ary, operands sorted, no nested kAdd, at most one constant (last)
  kMul,       // n-ary, operands sorted, no nested kMul, at most one constant (last)
  kFloorDiv,  // two operands
  kMod,       // two operands; the sign follows the divisor
  kMin,       // n-ary
  kMax,       // n-ary
};

// Inclusive bounds; kMinInt and kMaxInt stand for "unbounded".
struct IntRange {
  static constexpr int64_t kMinInt = INT64_MIN;
  static constexpr int64_t kMaxInt = INT64_MAX;
  int64_t min = kMinInt;
  int64_t max = kMaxInt;
  bool is_point() const { return min == max; }
};

// A handle, one pointer wide. A default-constructed one is null and may only be compared, assigned
// and tested.
class IntExpr {
 public:
  IntExpr() = default;
  explicit IntExpr(const IntNode* node) : node_(node) {}

  explicit operator bool() const { return node_ != nullptr; }
  friend bool operator==(IntExpr, IntExpr) = default;
  template <typename H>
  friend H AbslHashValue(H h, IntExpr e) {
    return H::combine(std::move(h), e.node_);
  }

  IntKind kind() const;
  int64_t value() const;   // REQUIRES: kConst
  int id() const;          // REQUIRES: kSymbol, kVar or kIndirect
  IntExpr extent() const;  // REQUIRES: kVar or kIndirect; 0 <= this < extent
  absl::Span<const IntExpr> operands() const;
  IntRange range() const;

  bool is_const() const { return kind() == IntKind::kConst; }
  bool is_const(int64_t v) const { return is_const() && value() == v; }
  const IntNode* node() const { return node_; }

 private:
  const IntNode* node_ = nullptr;
};

class IntContext {
 public:
  struct SymbolInfo {
    std::string name;
    int64_t min, max, hint;
  };
  struct VarInfo {
    IntExpr extent;
  };

  IntContext();
  ~IntContext();
  IntContext(const IntContext&) = delete;
  IntContext& operator=(const IntContext&) = delete;

  IntExpr Const(int64_t value);
  // A new symbol each call; its id counts up from 0.
  IntExpr NewSymbol(std::string name, int64_t min, int64_t max, int64_t hint);
  // REQUIRES: NewSymbol made one of that id.
  IntExpr Symbol(int id);
  // A new loop variable each call, 0 <= var < extent.
  IntExpr NewVar(IntExpr extent);
  // Operand number `operand` of the load or store that this stands in, known to be in
  // [0, extent) because codegen checks it there.
  IntExpr Indirect(int operand, IntExpr extent);

  IntExpr Add(IntExpr a, IntExpr b);
  IntExpr Sub(IntExpr a, IntExpr b);
  IntExpr Mul(IntExpr a, IntExpr b);
  IntExpr FloorDiv(IntExpr a, IntExpr b);
  IntExpr CeilDiv(IntExpr a, IntExpr b);
  IntExpr Mod(IntExpr a, IntExpr b);
  IntExpr Min(IntExpr a, IntExpr b);
  IntExpr Max(IntExpr a, IntExpr b);
  IntExpr Add(IntExpr a, int64_t b) { return Add(a, Const(b)); }
  IntExpr Mul(IntExpr a, int64_t b) { return Mul(a, Const(b)); }
  IntExpr FloorDiv(IntExpr a, int64_t b) { return FloorDiv(a, Const(b)); }
  IntExpr Mod(IntExpr a, int64_t b) { return Mod(a, Const(b)); }
  IntExpr Product(absl::Span<const IntExpr> factors);  // 1 for none

  // Replaces variables; those not in `map` stay. Simplifies on the way.
  using VarMap = absl::flat_hash_map<IntExpr, IntExpr>;
  IntExpr Substitute(IntExpr expr, const VarMap& map);
  // Replaces each kIndirect by `map(operand)`.
  IntExpr RemapIndirect(IntExpr expr, const std::function<IntExpr(IntExpr)>& map);

  // True where the ranges alone prove it; false means "not known".
  bool ProvablyLess(IntExpr a, IntExpr b);       // a < b
  bool ProvablyLessEqual(IntExpr a, IntExpr b);  // a <= b

  // The coefficient c of `var` where expr = c * var + rest and neither c nor rest contains var; a
  // null handle otherwise. 0 where var does not occur.
  IntExpr CoefficientOf(IntExpr expr, IntExpr var);

  // Evaluates; `leaf` gives the values of symbols, variables and indirect operands.
  // REQUIRES: no division by zero on the way.
  int64_t Evaluate(IntExpr expr, const std::function<int64_t(IntExpr)>& leaf) const;
  // With each symbol at its hint; REQUIRES: no variable in it.
  int64_t EvaluateAtHints(IntExpr expr) const;
  // REQUIRES: kSymbol
  void SetHint(IntExpr symbol, int64_t hint);

  const std::vector<SymbolInfo>& symbols() const;
  const std::vector<VarInfo>& vars() const;

  // A step is a node, or an operand of one, made or found again: what time and memory follow.
  // Beyond the budget every expression but a symbol or variable comes out as 0, so that whoever
  // builds some comes to an end soon; the results mean nothing then.
  void set_budget(int64_t steps);
  bool IsExhausted() const;
  int64_t budget() const;
  int64_t steps() const;

  struct Impl;  // for the int_*.cc files alone

 private:
  std::unique_ptr<Impl> impl_;
};

bool ContainsVar(IntExpr expr, IntExpr var);
bool ContainsKind(IntExpr expr, IntKind kind);
// Nodes of the expression written out as a tree, without sharing; saturating.
uint32_t TreeSize(IntExpr expr);
// Calls `visit` for every distinct leaf (symbol, variable, indirect), in first-seen order.
void ForEachLeaf(IntExpr expr, const std::function<void(IntExpr)>& visit);

// "768*d0 + d1", "floordiv(d0, 32)", "mod(d0, 32)", "min(s0, 4)". `leaf` names the leaves.
std::string ToString(IntExpr expr, const std::function<std::string(IntExpr)>& leaf);

}  // namespace kiln::ir
