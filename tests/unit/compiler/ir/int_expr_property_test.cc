// Random expressions: what the builders simplify must mean what the plain tree means.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "compiler/ir/int_expr.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kiln::ir {
namespace {

// An expression as written, beside what the context made of it.
struct Tree {
  IntKind kind;
  std::unique_ptr<Tree> a, b;
  IntExpr expr;
};

std::optional<__int128> Floor(__int128 a, __int128 b) {
  if (b == 0) return std::nullopt;
  __int128 q = a / b;
  return a % b != 0 && ((a < 0) != (b < 0)) ? q - 1 : q;
}

// Nothing where it divides by zero or leaves 64 bits: such a tree has no meaning to keep.
std::optional<__int128> EvaluateTree(const Tree& t, const std::function<int64_t(IntExpr)>& leaf) {
  if (!t.a) return t.kind == IntKind::kConst ? t.expr.value() : leaf(t.expr);
  auto a = EvaluateTree(*t.a, leaf), b = EvaluateTree(*t.b, leaf);
  if (!a || !b) return std::nullopt;
  std::optional<__int128> r;
  switch (t.kind) {
    case IntKind::kAdd:
      r = *a + *b;
      break;
    case IntKind::kMul:
      r = *a * *b;
      break;
    case IntKind::kFloorDiv:
      r = Floor(*a, *b);
      break;
    case IntKind::kMod:
      r = Floor(*a, *b);
      if (r) r = *a - *r * *b;
      break;
    case IntKind::kMin:
      r = std::min(*a, *b);
      break;
    default:
      r = std::max(*a, *b);
  }
  if (r && (*r > INT64_MAX / 4 || *r < INT64_MIN / 4)) return std::nullopt;
  return r;
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {
    leaves_.push_back(ints.NewSymbol("s0", 1, 40, 7));
    leaves_.push_back(ints.NewSymbol("s1", 2, INT64_MAX, 5));
    leaves_.push_back(ints.NewSymbol("s2", -20, 20, 3));
    IntExpr s0 = leaves_[0], s1 = leaves_[1];
    for (int64_t extent : {2, 3, 12, 64, 768}) leaves_.push_back(ints.NewVar(ints.Const(extent)));
    leaves_.push_back(ints.NewVar(s0));
    leaves_.push_back(ints.NewVar(ints.Mul(s0, 12)));
    leaves_.push_back(ints.NewVar(ints.Add(s1, 1)));
    leaves_.push_back(ints.NewVar(ints.Mul(s0, s1)));
    leaves_.push_back(ints.Indirect(0, ints.Const(30)));
    leaves_.push_back(ints.Indirect(0, s1));
  }

  std::unique_ptr<Tree> Random(int depth) {
    auto t = std::make_unique<Tree>();
    if (depth == 0 || Pick(8) == 0) {
      t->kind = IntKind::kConst;
      if (Pick(3) == 0) {
        static constexpr int64_t kConstants[] = {0, 1, 2, 3, 4, 6, 8, 12, 64, 768, -1, -2, -12, 5};
        t->expr = ints.Const(kConstants[Pick(std::size(kConstants))]);
      } else {
        t->expr = leaves_[Pick(leaves_.size())];
        t->kind = t->expr.kind();
      }
      return t;
    }
    static constexpr IntKind kKinds[] = {IntKind::kAdd, IntKind::kAdd,      IntKind::kMul,
                                         IntKind::kMul, IntKind::kFloorDiv, IntKind::kMod,
                                         IntKind::kMod, IntKind::kMin,      IntKind::kMax};
    t->kind = kKinds[Pick(std::size(kKinds))];
    t->a = Random(depth - 1);
    bool divides = t->kind == IntKind::kFloorDiv || t->kind == IntKind::kMod;
    t->b = Random(divides || t->kind == IntKind::kMul ? static_cast<int>(Pick(depth)) : depth - 1);
    t->expr = Combine(t->kind, t->a->expr, t->b->expr);
    return t;
  }

  IntExpr Combine(IntKind kind, IntExpr a, IntExpr b) {
    switch (kind) {
      case IntKind::kAdd:
        return ints.Add(a, b);
      case IntKind::kMul:
        return ints.Mul(a, b);
      case IntKind::kFloorDiv:
        return ints.FloorDiv(a, b);
      case IntKind::kMod:
        return ints.Mod(a, b);
      case IntKind::kMin:
        return ints.Min(a, b);
      default:
        return ints.Max(a, b);
    }
  }

  // A value for every leaf, within its range; the ends are as likely as all between.
  void DrawLeaves() {
    values_.clear();
    for (IntExpr leaf : leaves_) {
      int64_t min = 0, max;
      if (leaf.kind() == IntKind::kSymbol) {
        min = leaf.range().min;
        max = std::min<int64_t>(leaf.range().max, 50);
      } else {
        max = ints.Evaluate(leaf.extent(), [&](IntExpr l) { return values_.at(l); }) - 1;
      }
      int64_t value = min + static_cast<int64_t>(random_() % static_cast<uint64_t>(max - min + 1));
      if (Pick(4) == 0) value = Pick(2) ? min : max;
      values_[leaf] = value;
    }
  }

  int64_t Value(IntExpr leaf) const { return values_.at(leaf); }
  size_t Pick(size_t n) { return random_() % n; }
  const std::vector<IntExpr>& leaves() const { return leaves_; }

  std::string Show(IntExpr e) {
    return ToString(e, [&](IntExpr l) {
      std::string name = l.kind() == IntKind::kSymbol ? "s" : l.kind() == IntKind::kVar ? "d" : "%";
      return name + std::to_string(l.id()) + "=" + std::to_string(values_[l]);
    });
  }

  IntContext ints;

 private:
  std::mt19937_64 random_;
  std::vector<IntExpr> leaves_;
  absl::flat_hash_map<IntExpr, int64_t> values_;
};

constexpr int kSeeds = 60;
constexpr int kTreesPerSeed = 120;
constexpr int kDraws = 8;

TEST(IntExprProperty, SimplifiedValueEqualsThePlainTreeAndLiesInRange) {
  int checked = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Generator g(seed);
    auto leaf = [&](IntExpr l) { return g.Value(l); };
    for (int i = 0; i < kTreesPerSeed; ++i) {
      auto tree = g.Random(1 + static_cast<int>(g.Pick(5)));
      for (int draw = 0; draw < kDraws; ++draw) {
        g.DrawLeaves();
        auto expected = EvaluateTree(*tree, leaf);
        if (!expected) continue;
        ++checked;
        int64_t got = g.ints.Evaluate(tree->expr, leaf);
        ASSERT_EQ(got, static_cast<int64_t>(*expected))
            << "seed " << seed << " tree " << i << ": " << g.Show(tree->expr);
        ASSERT_LE(tree->expr.range().min, got) << "seed " << seed << " " << g.Show(tree->expr);
        ASSERT_GE(tree->expr.range().max, got) << "seed " << seed << " " << g.Show(tree->expr);
      }
    }
  }
  EXPECT_GT(checked, kSeeds * kTreesPerSeed * kDraws / 2);
}

TEST(IntExprProperty, SubstituteAgreesWithEvaluation) {
  int checked = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Generator g(1000 + seed);
    auto leaf = [&](IntExpr l) { return g.Value(l); };
    for (int i = 0; i < kTreesPerSeed / 4; ++i) {
      auto tree = g.Random(4);
      // A variable may only become something that stays below its extent.
      IntExpr var = g.leaves()[3 + g.Pick(5)];
      auto inner = g.Random(2);
      IntExpr replacement = g.ints.Mod(inner->expr, var.extent());
      IntExpr substituted = g.ints.Substitute(tree->expr, {{var, replacement}});
      for (int draw = 0; draw < kDraws; ++draw) {
        g.DrawLeaves();
        if (!EvaluateTree(*inner, leaf)) continue;
        int64_t value = g.ints.Evaluate(replacement, leaf);
        auto with = [&](IntExpr l) { return l == var ? value : g.Value(l); };
        auto expected = EvaluateTree(*tree, with);
        if (!expected) continue;
        ++checked;
        ASSERT_EQ(g.ints.Evaluate(substituted, leaf), static_cast<int64_t>(*expected))
            << "seed " << seed << " tree " << i << ": " << g.Show(tree->expr) << " d" << var.id()
            << " := " << g.Show(replacement);
      }
    }
  }
  EXPECT_GT(checked, kSeeds * kTreesPerSeed / 4);
}

TEST(IntExprProperty, WhatIsProvedHolds) {
  int proved = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Generator g(2000 + seed);
    auto leaf = [&](IntExpr l) { return g.Value(l); };
    for (int i = 0; i < kTreesPerSeed; ++i) {
      auto a = g.Random(3), b = g.Random(2);
      bool less = g.ints.ProvablyLess(a->expr, b->expr);
      bool less_equal = g.ints.ProvablyLessEqual(a->expr, b->expr);
      EXPECT_TRUE(!less || less_equal);
      if (!less_equal) continue;
      ++proved;
      for (int draw = 0; draw < kDraws; ++draw) {
        g.DrawLeaves();
        auto x = EvaluateTree(*a, leaf), y = EvaluateTree(*b, leaf);
        if (!x || !y) continue;
        ASSERT_TRUE(less ? *x < *y : *x <= *y)
            << "seed " << seed << " " << g.Show(a->expr) << " against " << g.Show(b->expr);
      }
    }
  }
  EXPECT_GT(proved, kSeeds * kTreesPerSeed / 20);
}

TEST(IntExprProperty, CoefficientSplitsTheExpression) {
  int split = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Generator g(3000 + seed);
    auto leaf = [&](IntExpr l) { return g.Value(l); };
    for (int i = 0; i < kTreesPerSeed; ++i) {
      auto tree = g.Random(3);
      IntExpr var = g.leaves()[3 + g.Pick(9)];
      IntExpr c = g.ints.CoefficientOf(tree->expr, var);
      if (!c) {
        EXPECT_TRUE(ContainsVar(tree->expr, var));
        continue;
      }
      ++split;
      EXPECT_FALSE(ContainsVar(c, var));
      IntExpr rest = g.ints.Sub(tree->expr, g.ints.Mul(c, var));
      EXPECT_FALSE(ContainsVar(rest, var)) << g.Show(tree->expr);
      g.DrawLeaves();
      if (!EvaluateTree(*tree, leaf)) continue;
      EXPECT_EQ(g.ints.Evaluate(tree->expr, leaf),
                g.ints.Evaluate(c, leaf) * g.Value(var) + g.ints.Evaluate(rest, leaf));
    }
  }
  EXPECT_GT(split, kSeeds * kTreesPerSeed / 2);
}

// Shapes that list the same factors, grouped in different ways, are views of each other. Splitting
// a flat index by one and merging it by another must leave the variables of the first.
TEST(IntExprProperty, ReshapeRoundTripsVanish) {
  for (int seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    IntContext ints;
    std::vector<IntExpr> pool = {ints.NewSymbol("s0", 2, 512, 128), ints.NewSymbol("s1", 1, 64, 4)};
    pool.push_back(ints.Add(pool[0], 1));
    for (int64_t c : {2, 3, 4, 5, 7, 12, 64, 128}) pool.push_back(ints.Const(c));
    bool symbolic = seed % 2 == 1;
    std::vector<IntExpr> factors;
    for (size_t n = 2 + random() % 4; factors.size() < n;) {
      IntExpr factor = pool[symbolic ? random() % pool.size() : 3 + random() % (pool.size() - 3)];
      // The square of a sum is expanded, and nothing factors it again.
      if (factor == pool[2] && std::find(factors.begin(), factors.end(), factor) != factors.end()) {
        continue;
      }
      factors.push_back(factor);
    }
    auto group = [&] {
      std::vector<IntExpr> shape = {factors[0]};
      for (size_t i = 1; i < factors.size(); ++i) {
        if (random() % 2) {
          shape.back() = ints.Mul(shape.back(), factors[i]);
        } else {
          shape.push_back(factors[i]);
        }
      }
      return shape;
    };
    auto merge = [&](const std::vector<IntExpr>& indices, const std::vector<IntExpr>& shape) {
      IntExpr flat = ints.Const(0);
      for (size_t i = 0; i < shape.size(); ++i) {
        flat = ints.Add(ints.Mul(flat, shape[i]), indices[i]);
      }
      return flat;
    };
    auto split = [&](IntExpr flat, const std::vector<IntExpr>& shape) {
      std::vector<IntExpr> indices(shape.size());
      IntExpr stride = ints.Const(1);
      for (size_t i = shape.size(); i-- > 0;) {
        indices[i] = ints.Mod(ints.FloorDiv(flat, stride), shape[i]);
        stride = ints.Mul(stride, shape[i]);
      }
      return indices;
    };
    std::vector<IntExpr> shape = group();
    std::vector<IntExpr> vars;
    for (IntExpr extent : shape) vars.push_back(ints.NewVar(extent));
    std::vector<IntExpr> indices = vars, from = shape;
    std::string trail;
    for (int hop = 0; hop < 4; ++hop) {
      std::vector<IntExpr> to = hop == 3 ? shape : group();
      // Groups in an order that does not line up, too: [4, 6] viewed as [3, 8].
      if (hop < 3 && random() % 3 == 0) {
        std::vector<IntExpr> reversed(to.rbegin(), to.rend());
        to = reversed;
      }
      indices = split(merge(indices, from), to);
      from = to;
      trail += "\n";
      for (IntExpr e : indices) {
        trail += ToString(e,
                          [](IntExpr l) {
                            return (l.kind() == IntKind::kVar ? "d" : "s") + std::to_string(l.id());
                          }) +
                 " | ";
      }
    }
    EXPECT_THAT(indices, ::testing::ElementsAreArray(vars)) << "seed " << seed << trail;
  }
}

}  // namespace
}  // namespace kiln::ir
