// Private to the int_*.cc files: the node and the arena behind int_expr.h.
//
// A sum is handled as `constant + sum of coef * base`, where a base is anything but a constant, a
// sum, or a product with a constant factor. A node of kind kMul that has a constant factor keeps
// its base, so taking a sum apart allocates nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "compiler/ir/int_expr.h"

namespace kiln::ir {

struct IntNode {
  IntKind kind;
  // A product or sum left as it is because folding its constants would overflow; it counts as a
  // leaf when a sum is taken apart.
  bool unfolded = false;
  uint16_t kinds_mask = 0;    // bit k: a node of IntKind k occurs in the expression
  int id = -1;                // kSymbol, kVar, kIndirect
  uint32_t num_operands = 0;  //
  uint32_t tree_size = 1;     // nodes of the expression written out as a tree, saturating
  int64_t value = 0;          // kConst
  const IntExpr* operands = nullptr;
  // kVar and kIndirect: the extent. kMul with a constant factor: the product of the other factors.
  IntExpr extent;
  uint64_t leaf_mask = 0;  // a Bloom filter of the leaves that occur
  IntRange range;
};

// coef * base; REQUIRES: coef != 0 and base is a base as said above.
struct Term {
  int64_t coef;
  IntExpr base;
};

using TermVector = absl::InlinedVector<Term, 6>;

// constant + the terms. `overflow`: a coefficient left 64 bits and the sum is meaningless.
struct Sum {
  TermVector terms;
  int64_t constant = 0;
  bool overflow = false;
};

// A product of a constant and bases; a null base stands for 1.
struct Monomial {
  int64_t coef = 1;
  IntExpr base;
};

// Structural order of expressions, equal in every process that builds the same expressions:
// variables first, constants last. Negative, 0 or positive.
int CompareExprs(IntExpr a, IntExpr b);

// Python's // and %; 0 for b = 0. The one quotient out of range wraps.
int64_t FloorDivInt(int64_t a, int64_t b);
int64_t FloorModInt(int64_t a, int64_t b);

// The factors of a base: operands of a product, or the base itself.
absl::Span<const IntExpr> Factors(const IntExpr& base);

// The bit of a leaf in IntNode::leaf_mask.
uint64_t LeafBit(IntExpr leaf);

// Saturating range arithmetic.
IntRange AddRanges(IntRange a, IntRange b);
IntRange MulRanges(IntRange a, IntRange b);
IntRange SumRange(const Sum& sum);

struct IntContext::Impl {
  Impl();

  // What a node is made of, and how equal nodes are found.
  struct Key {
    IntKind kind;
    int id;
    int64_t value;
    IntExpr extent;
    bool unfolded;
    absl::Span<const IntExpr> operands;
    size_t hash;
  };
  // The hash beside the pointer: growing the table touches no node.
  struct Slot {
    size_t hash;
    const IntNode* node;
  };
  struct SlotHash {
    using is_transparent = void;
    size_t operator()(const Slot& s) const { return s.hash; }
    size_t operator()(const Key& k) const { return k.hash; }
  };
  struct SlotEq {
    using is_transparent = void;
    bool operator()(const Slot& a, const Slot& b) const { return a.node == b.node; }
    bool operator()(const Slot& a, const Key& b) const;
    bool operator()(const Key& a, const Slot& b) const { return (*this)(b, a); }
  };
  struct PairHash {
    size_t operator()(const std::pair<IntExpr, IntExpr>& p) const;
  };
  using PairMap = absl::flat_hash_map<std::pair<IntExpr, IntExpr>, IntExpr, PairHash>;

  // int_arena.cc: nodes as told, no simplification.
  IntExpr Intern(IntKind kind, int id, int64_t value, IntExpr extent,
                 absl::Span<const IntExpr> operands, bool unfolded = false);
  const IntNode* NewNode(const Key& key);
  IntExpr Const(int64_t value);
  IntExpr Node(IntKind kind, absl::Span<const IntExpr> operands, bool unfolded = false) {
    return Intern(kind, -1, 0, IntExpr(), operands, unfolded);
  }
  IntRange RangeOf(const IntNode& node) const;

  // int_simplify_sum.cc
  void Accumulate(Sum& sum, IntExpr e, int64_t scale);
  void AddTerm(Sum& sum, int64_t coef, IntExpr base);
  void AddScaled(Sum& sum, const Sum& other, int64_t scale);
  void AddProduct(Sum& sum, const Sum& a, const Sum& b);
  Sum ToSum(IntExpr e);
  void Normalize(Sum& sum);
  IntExpr Build(Sum& sum);  // normalizes; a null handle where `sum` overflowed
  IntExpr BuildNormalized(const Sum& sum);
  IntExpr MakeTerm(int64_t coef, IntExpr base);
  IntExpr MakeBase(absl::InlinedVector<IntExpr, 4>& factors);
  IntExpr MulBases(IntExpr a, IntExpr b);
  bool DivideBase(IntExpr base, IntExpr by, IntExpr* quotient);
  IntExpr Add(IntExpr a, IntExpr b);
  IntExpr AddMany(absl::Span<const IntExpr> operands);
  IntExpr Sub(IntExpr a, IntExpr b);
  IntExpr Mul(IntExpr a, IntExpr b);

  // int_recombine.cc: floordiv(x, n)*n + mod(x, n) -> x and its relatives. True if it changed
  // `sum`, which is normalized before and after.
  bool Recombine(Sum& sum);
  bool RecombineMod(Sum& sum, size_t term, IntExpr mod);
  bool RecombineFloorDiv(Sum& sum, size_t term, IntExpr div);
  bool TakeAway(Sum& sum, const Sum& part);

  // int_simplify_div.cc
  IntExpr FloorDiv(IntExpr a, IntExpr b);
  IntExpr Mod(IntExpr a, IntExpr b);
  IntExpr Divide(IntExpr a, IntExpr b, bool want_mod);
  IntExpr DivideSum(const Sum& a, IntExpr b, bool want_mod);
  bool SplitByDivisor(const Sum& x, IntExpr divisor, Sum* quotient, Sum* rest);
  bool SplitByPolynomial(const Sum& x, const Sum& divisor, Sum* quotient, Sum* rest);
  IntExpr DivideByCommonFactor(const Sum& x, IntExpr divisor, bool want_mod);
  IntExpr DivideInParts(Sum& y, Sum& rest, IntExpr g, IntExpr d, bool want_mod);
  IntExpr DivideBySumFactor(const Sum& x, IntExpr divisor, const Monomial& content, bool want_mod);
  IntExpr DivideNested(const Sum& x, IntExpr divisor, bool want_mod);
  bool IsMultiple(IntExpr x, IntExpr of, IntExpr* quotient);

  // int_simplify_min.cc
  IntExpr MinMax(IntKind kind, absl::Span<const IntExpr> operands);

  // int_bounds.cc
  bool ProvablyNonNegative(IntExpr e);
  bool ProvablyLessEqual(IntExpr a, IntExpr b, int64_t margin);  // a + margin <= b
  // A bound of `e` without variables; with `symbols` also without symbols. Null if none is found.
  IntExpr Bound(IntExpr e, bool upper, bool symbols);
  IntExpr Eliminate(const Sum& sum, IntExpr atom, bool upper, bool symbols);
  IntExpr EliminateOne(const Sum& sum, bool upper, bool symbols);
  IntExpr AtomBound(IntExpr atom, bool upper, bool symbols);

  IntExpr Rebuild(IntExpr e, absl::Span<const IntExpr> operands);

  std::vector<SymbolInfo> symbols;
  std::vector<VarInfo> vars;
  absl::flat_hash_set<Slot, SlotHash, SlotEq> nodes;
  PairMap floordivs, mods;  // results already found, by operands
  static constexpr int64_t kLeastSmall = -16;
  static constexpr int64_t kNumSmall = 1056;
  IntExpr small_constants[kNumSmall];  // made on demand, found without the table
  std::deque<IntNode> node_arena;
  std::vector<std::unique_ptr<IntExpr[]>> operand_blocks;
  size_t operand_block_used = 0;
  size_t operand_block_size = 0;
  IntExpr zero, one;
  int64_t steps = 0;
  int64_t budget = INT64_MAX;
  int proof_depth = 0;  // proofs divide and divisions prove: this stops the descent
};

}  // namespace kiln::ir
