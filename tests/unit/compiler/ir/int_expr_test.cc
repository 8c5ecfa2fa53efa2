#include "compiler/ir/int_expr.h"

#include "compiler/ir/scalar_op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kiln::ir {
namespace {

class IntExprTest : public ::testing::Test {
 protected:
  std::string Show(IntExpr e) {
    return ToString(e, [&](IntExpr l) {
      switch (l.kind()) {
        case IntKind::kSymbol:
          return ints.symbols()[l.id()].name;
        case IntKind::kVar:
          return "d" + std::to_string(l.id());
        default:
          return "%" + std::to_string(l.id());
      }
    });
  }
  IntExpr Var(int64_t extent) { return ints.NewVar(ints.Const(extent)); }
  IntExpr C(int64_t value) { return ints.Const(value); }

  IntContext ints;
};

TEST_F(IntExprTest, EqualExpressionsAreOneNode) {
  IntExpr a = Var(10), b = Var(20);
  EXPECT_EQ(ints.Add(a, b), ints.Add(b, a));
  EXPECT_EQ(ints.Mul(ints.Add(a, b), 3), ints.Add(ints.Mul(b, 3), ints.Mul(a, 3)));
  EXPECT_NE(ints.Add(a, b), ints.Add(a, ints.Mul(b, 2)));
  EXPECT_NE(ints.Indirect(0, C(4)), ints.Indirect(0, C(5)));
  EXPECT_EQ(ints.Indirect(0, C(4)), ints.Indirect(0, C(4)));
}

TEST_F(IntExprTest, TermsAreCollectedAndConstantsDistributed) {
  IntExpr d0 = Var(128), d1 = Var(768);
  IntExpr s0 = ints.NewSymbol("s0", 1, 512, 128);
  EXPECT_EQ(Show(ints.Add(ints.Mul(d0, 2), ints.Mul(d0, 3))), "5*d0");
  EXPECT_TRUE(ints.Sub(d1, d1).is_const(0));
  EXPECT_EQ(Show(ints.Mul(ints.Add(d0, 4), 768)), "768*d0 + 3072");
  EXPECT_EQ(Show(ints.Mul(s0, ints.Add(d0, 1))), "s0 + d0*s0");
  EXPECT_EQ(Show(ints.Sub(ints.Sub(d0, ints.Mul(d1, 64)), C(3))), "d0 - 64*d1 - 3");
  EXPECT_EQ(Show(ints.Sub(C(0), d0)), "-1*d0");
}

TEST_F(IntExprTest, DivisionTakesApartWhatMultiplicationPutTogether) {
  IntExpr d0 = Var(128), d1 = Var(768), d2 = Var(4);
  IntExpr flat = ints.Add(ints.Mul(d0, 768), d1);
  EXPECT_EQ(ints.FloorDiv(flat, 768), d0);
  EXPECT_EQ(ints.Mod(flat, 768), d1);
  EXPECT_EQ(Show(ints.FloorDiv(flat, 64)), "12*d0 + floordiv(d1, 64)");
  EXPECT_EQ(Show(ints.FloorDiv(ints.Add(ints.Mul(d0, 4), d2), 24)), "floordiv(d0, 6)");
  EXPECT_EQ(Show(ints.Mod(ints.Add(ints.Mul(d0, 4), d2), 24)), "d2 + 4*mod(d0, 6)");
  EXPECT_EQ(Show(ints.FloorDiv(ints.Add(ints.Mul(d0, 4), ints.Mul(d1, 8)), 12)),
            "floordiv(d0 + 2*d1, 3)");
  EXPECT_EQ(Show(ints.FloorDiv(ints.FloorDiv(d1, 4), 6)), "floordiv(d1, 24)");
  EXPECT_EQ(Show(ints.Mod(ints.Mod(d1, 24), 6)), "mod(d1, 6)");
  EXPECT_EQ(Show(ints.FloorDiv(ints.Mod(d1, 24), 6)), "mod(floordiv(d1, 6), 4)");
}

TEST_F(IntExprTest, QuotientAndRemainderRecombine) {
  IntExpr x = Var(10000);
  auto split = [&](IntExpr n) {
    return ints.Add(ints.Mul(ints.FloorDiv(x, n), n), ints.Mod(x, n));
  };
  EXPECT_EQ(split(C(12)), x);
  EXPECT_EQ(split(ints.NewSymbol("s0", 1, 64, 8)), x);
  EXPECT_EQ(split(ints.Add(ints.NewSymbol("s1", 1, 64, 8), 1)), x);
  IntExpr digits =
      ints.Add(ints.Mul(ints.FloorDiv(x, 60), 60),
               ints.Add(ints.Mul(ints.Mod(ints.FloorDiv(x, 12), 5), 12), ints.Mod(x, 12)));
  EXPECT_EQ(digits, x);
  EXPECT_EQ(Show(ints.Sub(x, ints.Mul(ints.FloorDiv(x, 12), 12))), "mod(d0, 12)");
}

TEST_F(IntExprTest, SymbolicDivisorsUseSymbolicExtents) {
  IntExpr s0 = ints.NewSymbol("s0", 2, 512, 128);
  IntExpr s1 = ints.NewSymbol("s1", 1, IntRange::kMaxInt, 8);
  IntExpr d0 = ints.NewVar(s0), d1 = ints.NewVar(s1);
  IntExpr flat = ints.Add(ints.Mul(s0, d1), d0);
  EXPECT_EQ(ints.FloorDiv(flat, s0), d1);
  EXPECT_EQ(ints.Mod(flat, s0), d0);
  IntExpr next = ints.Add(s1, 1);
  IntExpr d2 = ints.NewVar(next);
  IntExpr flat2 = ints.Add(ints.Mul(d0, next), d2);
  EXPECT_EQ(ints.FloorDiv(flat2, next), d0);
  EXPECT_EQ(ints.Mod(flat2, next), d2);
  // Without knowledge of the extents nothing is taken apart.
  EXPECT_EQ(ints.FloorDiv(d1, s0).kind(), IntKind::kFloorDiv);
}

TEST_F(IntExprTest, AttentionHeadsRoundTrip) {
  // [128, 768] -> view [128, 12, 64] -> permute [12, 128, 64] -> permute back -> view [128, 768]
  IntExpr row = Var(128), column = Var(768);
  IntExpr flat = ints.Add(ints.Mul(row, 768), column);
  IntExpr token = ints.FloorDiv(flat, 768);
  IntExpr head = ints.Mod(ints.FloorDiv(flat, 64), C(12));
  IntExpr lane = ints.Mod(flat, 64);
  IntExpr back = ints.Add(ints.Add(ints.Mul(token, 768), ints.Mul(head, 64)), lane);
  EXPECT_EQ(ints.FloorDiv(back, 768), row);
  EXPECT_EQ(ints.Mod(back, 768), column);
}

TEST_F(IntExprTest, ProofsKnowThatAVariableStaysBelowItsSymbolicExtent) {
  IntExpr s0 = ints.NewSymbol("s0", 1, 4096, 8);
  IntExpr s1 = ints.NewSymbol("s1", 1, IntRange::kMaxInt, 8);
  IntExpr d0 = ints.NewVar(s0), d1 = ints.NewVar(ints.Mul(s0, 12)), d2 = ints.NewVar(s1);
  EXPECT_TRUE(ints.ProvablyLess(d0, s0));
  EXPECT_FALSE(ints.ProvablyLess(d0, ints.Sub(s0, C(1))));
  EXPECT_TRUE(ints.ProvablyLess(ints.FloorDiv(d1, 12), s0));
  EXPECT_TRUE(ints.ProvablyLess(ints.Add(ints.Mul(d0, s1), d2), ints.Mul(s0, s1)));
  EXPECT_TRUE(ints.ProvablyLess(ints.Mod(d2, s0), s0));
  EXPECT_TRUE(ints.ProvablyLess(ints.Min(d2, ints.Sub(s0, C(1))), s0));
  EXPECT_TRUE(ints.ProvablyLessEqual(s0, ints.Mul(s0, s1)));
  EXPECT_FALSE(ints.ProvablyLess(s0, ints.Mul(s0, s1)));
  EXPECT_FALSE(ints.ProvablyLess(d2, s0));
}

TEST_F(IntExprTest, MinAndMaxDropWhatRangesDecide) {
  IntExpr d0 = Var(10);
  EXPECT_EQ(ints.Min(d0, C(9)), d0);
  EXPECT_EQ(ints.Max(d0, C(9)), C(9));
  EXPECT_EQ(Show(ints.Min(ints.Min(d0, C(7)), C(5))), "min(d0, 5)");
  EXPECT_EQ(Show(ints.Max(ints.Add(d0, 3), ints.Add(d0, 1))), "d0 + 3");
}

TEST_F(IntExprTest, ConstantsThatWouldOverflowStayUnfolded) {
  IntExpr big = C(IntRange::kMaxInt);
  EXPECT_FALSE(ints.Add(big, C(1)).is_const());
  EXPECT_FALSE(ints.Mul(big, C(2)).is_const());
  EXPECT_EQ(ints.Add(big, C(1)).range().max, IntRange::kMaxInt);
  IntExpr d0 = Var(10);
  IntExpr scaled = ints.Mul(ints.Mul(d0, IntRange::kMaxInt), 4);
  EXPECT_FALSE(ints.Add(scaled, scaled).is_const());
  EXPECT_FALSE(ints.FloorDiv(C(IntRange::kMinInt), C(-1)).is_const());
}

TEST_F(IntExprTest, RemainderTakesTheSignOfTheDivisor) {
  EXPECT_TRUE(ints.Mod(C(-7), C(3)).is_const(2));
  EXPECT_TRUE(ints.Mod(C(7), C(-3)).is_const(-2));
  EXPECT_TRUE(ints.FloorDiv(C(-7), C(3)).is_const(-3));
  EXPECT_TRUE(ints.CeilDiv(C(7), C(3)).is_const(3));
  EXPECT_TRUE(ints.CeilDiv(C(-7), C(-3)).is_const(3));
}

TEST_F(IntExprTest, IndirectOperandsAreRenumbered) {
  IntExpr d0 = Var(128);
  IntExpr first = ints.Indirect(0, C(30)), second = ints.Indirect(1, C(40));
  IntExpr e = ints.Add(ints.Mul(first, 768), ints.Add(d0, ints.Mod(second, 7)));
  IntExpr renumbered =
      ints.RemapIndirect(e, [&](IntExpr i) { return ints.Indirect(i.id() + 3, i.extent()); });
  EXPECT_EQ(Show(renumbered), "d0 + 768*%3 + mod(%4, 7)");
}

TEST_F(IntExprTest, LeavesAreVisitedOnceInOrder) {
  IntExpr d0 = Var(128), d1 = Var(12);
  IntExpr s0 = ints.NewSymbol("s0", 1, 512, 128);
  IntExpr e = ints.Add(ints.Mul(d1, s0), ints.Add(d0, ints.FloorDiv(d1, 5)));
  std::vector<IntExpr> seen;
  ForEachLeaf(e, [&](IntExpr leaf) { seen.push_back(leaf); });
  EXPECT_THAT(seen, ::testing::ElementsAre(d0, d1, s0));
  EXPECT_TRUE(ContainsVar(e, d1));
  EXPECT_FALSE(ContainsVar(e, Var(12)));
  EXPECT_TRUE(ContainsKind(e, IntKind::kSymbol));
  EXPECT_FALSE(ContainsKind(e, IntKind::kMod));
}

// The text of a kernel depends on the order of variables alone, not on addresses or on what the
// context made before.
TEST(IntExprOrder, TextIsTheSameWhateverWasBuiltBefore) {
  auto text = [](int extra) {
    IntContext ints;
    std::vector<IntExpr> before;
    IntExpr a = ints.NewVar(ints.Const(1000)), b = ints.NewVar(ints.Const(1000));
    for (int i = 0; i < extra; ++i) {
      before.push_back(ints.Add(ints.FloorDiv(b, 3 + i), ints.Mod(a, 5 + i)));
    }
    IntExpr e = ints.Add(ints.Add(ints.Mod(ints.Add(a, b), 7), ints.FloorDiv(b, 3)),
                         ints.Min(ints.Mul(a, b), ints.Mod(a, 6)));
    return ToString(e, [](IntExpr l) { return "d" + std::to_string(l.id()); });
  };
  std::string first = text(0);
  EXPECT_EQ(first, text(1));
  EXPECT_EQ(first, text(50));
}

// Sharing doubles the tree at every level; nothing may walk the tree.
TEST_F(IntExprTest, SharedSubexpressionsCostNothingExtra) {
  IntExpr x = Var(1 << 20), y = Var(1 << 20);
  IntExpr e = x;
  for (int i = 0; i < 200; ++i) {
    e = ints.Add(ints.Min(ints.Mod(e, 1009 + i), ints.Add(y, i)), ints.FloorDiv(e, 3 + i));
  }
  auto leaf = [](IntExpr) { return int64_t{777777}; };
  int64_t value = ints.Evaluate(e, leaf);
  EXPECT_GE(value, e.range().min);
  EXPECT_LE(value, e.range().max);
  EXPECT_TRUE(ContainsVar(e, y));
  IntExpr z = Var(1 << 20);
  EXPECT_FALSE(ContainsVar(ints.Substitute(e, {{x, z}}), x));
}

TEST(ScalarOps, NamesAndTableAgree) {
  EXPECT_EQ(Info(ScalarOp::kFma).arity, 3);
  EXPECT_EQ(Info(ScalarOp::kSelect).rule, TypeRule::kSelect);
  EXPECT_EQ(Info(ScalarOp::kBitcast).name, "bitcast");
  for (int i = 0; i <= static_cast<int>(ScalarOp::kBitcast); ++i) {
    ScalarOp op = static_cast<ScalarOp>(i);
    EXPECT_EQ(ScalarOpFromName(Info(op).name), op);
  }
  EXPECT_FALSE(ScalarOpFromName("nonsense").has_value());
  for (int i = 0; i <= static_cast<int>(ReduceKind::kArgMin); ++i) {
    ReduceKind kind = static_cast<ReduceKind>(i);
    EXPECT_EQ(ReduceKindFromName(ReduceKindName(kind)), kind);
  }
  EXPECT_FALSE(ReduceKindFromName("mean").has_value());
}

TEST_F(IntExprTest, ABudgetEndsWhateverBuildsExpressions) {
  const IntExpr a = ints.NewSymbol("a", 1, 1000, 10), b = ints.NewSymbol("b", 1, 1000, 20);
  ints.set_budget(10'000);
  IntExpr e = a;
  for (int i = 0; i < 100'000; ++i) e = ints.Mod(ints.FloorDiv(ints.Add(ints.Mul(e, b), i), a), b);
  EXPECT_TRUE(ints.IsExhausted());
  EXPECT_TRUE(e.is_const(0));
  // What loops range over is there all the same.
  EXPECT_EQ(ints.NewVar(a).extent(), a);
}

}  // namespace
}  // namespace kiln::ir
