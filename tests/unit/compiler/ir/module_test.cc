#include "compiler/ir/module.h"

#include "gtest/gtest.h"

namespace kiln::ir {
namespace {

class SizeBytesTest : public ::testing::Test {
 protected:
  IntExpr C(int64_t value) { return ints.Const(value); }
  IntExpr FilledBy(IntExpr size) { return ints.Max(size, C(1)); }
  IntExpr Bytes(std::vector<IntExpr> sizes, std::vector<IntExpr> strides) {
    Buffer buffer;
    buffer.dtype = DType::kF32;
    buffer.sizes = std::move(sizes);
    buffer.strides = std::move(strides);
    return SizeBytes(ints, buffer);
  }

  IntContext ints;
  IntExpr s0 = ints.NewSymbol("s0", 0, 100, 10);
  IntExpr s1 = ints.NewSymbol("s1", 0, 100, 10);
};

TEST_F(SizeBytesTest, CountsToTheLastElementThatCanBeReached) {
  EXPECT_EQ(Bytes({C(3), C(5)}, {C(5), C(1)}), C(60));
  EXPECT_EQ(Bytes({C(3), C(5)}, {C(8), C(1)}), C(4 * (2 * 8 + 5)));
  EXPECT_EQ(Bytes({C(3), C(5)}, {C(0), C(1)}), C(20));
  EXPECT_EQ(Bytes({}, {}), C(4));
  EXPECT_EQ(Bytes({C(3), C(0)}, {C(1), C(1)}), C(0));
}

// Whatever torch makes of sizes that may be 0, a tensor without gaps has the product of its sizes.
TEST_F(SizeBytesTest, WithoutGapsItIsTheProductOfTheSizes) {
  const IntExpr product = ints.Mul(ints.Mul(s0, s1), 4 * 6);
  EXPECT_EQ(Bytes({s0, s1, C(6)}, {ints.Mul(FilledBy(s1), 6), C(6), C(1)}), product);
  EXPECT_EQ(Bytes({s0, s1, C(6)}, {ints.Mul(s1, 6), C(6), C(1)}), product);
  EXPECT_EQ(Bytes({C(6), s1, s0}, {C(1), C(6), FilledBy(ints.Mul(s1, 6))}), product);
  EXPECT_EQ(Bytes({s0, C(1), s1, C(6)}, {ints.Mul(s1, 6), C(77), C(6), C(1)}), product);
}

TEST_F(SizeBytesTest, WithGapsItIsNeverNegativeAndRightForAllSizes) {
  const IntExpr bytes = Bytes({s0, s1}, {ints.Mul(FilledBy(s1), 2), C(1)});
  EXPECT_TRUE(ints.ProvablyLessEqual(C(0), bytes));
  for (int64_t rows : {0, 1, 2, 7}) {
    for (int64_t columns : {0, 1, 3, 100}) {
      const int64_t expected =
          rows == 0 || columns == 0 ? 0 : 4 * ((rows - 1) * 2 * columns + columns);
      EXPECT_EQ(ints.Evaluate(bytes, [&](IntExpr leaf) { return leaf == s0 ? rows : columns; }),
                expected)
          << rows << " by " << columns;
    }
  }
}

}  // namespace
}  // namespace kiln::ir
