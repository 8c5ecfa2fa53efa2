#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

TEST(Pooling, MaxGivesValuesAndFlatIndices) {
  GraphMaker g;
  const int x = g.Input({1, 3, 3}, {1, 2, 3, 9, 5, 4, 7, 8, 6});
  g.Output(g.Node("aten.max_pool2d_with_indices.default",
                  {Value(x), IntList({2, 2}), IntList({2, 2}), IntList({1, 1})}, {1, 2, 2}));
  g.Output(g.MoreResult({1, 2, 2}, v1::DTYPE_INT64));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(1, 3, 9, 8));
  EXPECT_THAT((*outputs)[1].ints, ElementsAre(0, 2, 3, 7));
}

TEST(Pooling, AverageMayLeavePaddingOut) {
  for (const bool with_padding : {true, false}) {
    GraphMaker g;
    const int x = g.Input({1, 2, 2}, {4, 8, 12, 16});
    g.Output(g.Node("aten.avg_pool2d.default",
                    {Value(x), IntList({2, 2}), IntList({2, 2}), IntList({1, 1}), Bool(false),
                     Bool(with_padding)},
                    {1, 2, 2}));
    if (with_padding) {
      EXPECT_THAT(RunOne(g), ElementsAre(1, 2, 3, 4));
    } else {
      EXPECT_THAT(RunOne(g), ElementsAre(4, 8, 12, 16));
    }
  }
}

TEST(Pooling, AdaptiveWindowsOverlapWhereSizesDoNotDivide) {
  GraphMaker g;
  const int x = g.Input({1, 1, 5}, {1, 2, 3, 4, 5});
  g.Output(g.Node("aten._adaptive_avg_pool2d.default", {Value(x), IntList({1, 3})}, {1, 1, 3}));
  // [0, 2), [1, 4), [3, 5)
  EXPECT_THAT(RunOne(g), Pointwise(DoubleNear(1e-12), {1.5, 3.0, 4.5}));
}

TEST(Pooling, WindowsAreSummedWhereTheyOverlap) {
  GraphMaker g;
  // Of a row of 3: windows [0, 2) and [1, 3).
  const int x = g.Input({1, 2, 2}, {1, 2, 4, 8});
  g.Output(g.Node("aten.col2im.default",
                  {Value(x), IntList({1, 3}), IntList({1, 2}), IntList({1, 1}), IntList({0, 0}),
                   IntList({1, 1})},
                  {1, 1, 1, 3}));
  // With a stride of 2 and a dilation of 2 over 5: places 0 and 2, 2 and 4.
  g.Output(g.Node("aten.col2im.default",
                  {Value(x), IntList({1, 5}), IntList({1, 2}), IntList({1, 2}), IntList({0, 0}),
                   IntList({1, 2})},
                  {1, 1, 1, 5}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(1, 2 + 4, 8));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(1, 0, 2 + 4, 0, 8));
}

}  // namespace
}  // namespace kiln::lowering
