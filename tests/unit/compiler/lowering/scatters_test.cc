#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::ElementsAre;

TEST(Scatters, OfOnePlaceTheLastValueCounts) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {0, 0, 0, 0, 0, 0});
  const int i = g.Input({2, 2}, {2, 2, 0, 1}, v1::DTYPE_INT64);
  const int v = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  g.Output(g.Node("aten.scatter.src", {Value(x), Int(1), Value(i), Value(v)}, {2, 3}));
  EXPECT_THAT(RunOne(g), ElementsAre(0, 0, 2, 4, 5, 0));
}

TEST(Scatters, AnIndexSmallerThanTheArgument) {
  GraphMaker g;
  const int x = g.Input({3, 2}, {1, 1, 1, 1, 1, 1});
  const int i = g.Input({2, 1}, {1, 1}, v1::DTYPE_INT64);
  const int v = g.Input({2, 2}, {10, 20, 30, 40});
  g.Output(g.Node("aten.scatter_add.default", {Value(x), Int(1), Value(i), Value(v)}, {3, 2}));
  EXPECT_THAT(RunOne(g), ElementsAre(1, 11, 1, 31, 1, 1));
}

TEST(Scatters, ReduceWithoutWhatStoodThere) {
  for (const bool with_self : {true, false}) {
    const auto reduce = [&](const std::string& kind) {
      GraphMaker g;
      const int x = g.Input({3}, {10, 20, 30});
      const int i = g.Input({3}, {0, 0, 2}, v1::DTYPE_INT64);
      const int v = g.Input({3}, {4, -6, 3});
      g.Output(g.Node("aten.scatter_reduce.two",
                      {Value(x), Int(0), Value(i), Value(v), String(kind)}, {3}));
      g.Keyword("include_self", Bool(with_self));
      return RunOne(g);
    };
    if (with_self) {
      EXPECT_THAT(reduce("sum"), ElementsAre(8, 20, 33));
      EXPECT_THAT(reduce("prod"), ElementsAre(-240, 20, 90));
      EXPECT_THAT(reduce("mean"), ElementsAre(8.0 / 3, 20, 16.5));
      EXPECT_THAT(reduce("amax"), ElementsAre(10, 20, 30));
      EXPECT_THAT(reduce("amin"), ElementsAre(-6, 20, 3));
    } else {
      EXPECT_THAT(reduce("sum"), ElementsAre(-2, 20, 3));
      EXPECT_THAT(reduce("prod"), ElementsAre(-24, 20, 3));
      EXPECT_THAT(reduce("mean"), ElementsAre(-1, 20, 3));
      EXPECT_THAT(reduce("amax"), ElementsAre(4, 20, 3));
      EXPECT_THAT(reduce("amin"), ElementsAre(-6, 20, 3));
    }
  }
}

TEST(Scatters, IndexAddScalesItsSource) {
  GraphMaker g;
  const int x = g.Input({2, 2}, {1, 2, 3, 4});
  const int i = g.Input({3}, {1, 0, 1}, v1::DTYPE_INT64);
  const int v = g.Input({3, 2}, {1, 2, 3, 4, 5, 6});
  g.Output(g.Node("aten.index_add.default", {Value(x), Int(0), Value(i), Value(v)}, {2, 2}));
  g.Keyword("alpha", Int(2));
  EXPECT_THAT(RunOne(g), ElementsAre(7, 10, 15, 20));
}

TEST(Scatters, IndexPutWrapsAndBroadcasts) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {0, 0, 0, 0, 0, 0});
  const int i = g.Input({2, 1}, {-1, 0}, v1::DTYPE_INT64);
  const int j = g.Input({2}, {2, 0}, v1::DTYPE_INT64);
  const int v = g.Input({2}, {5, 7});
  g.Output(g.Node("aten.index_put.default", {Value(x), ValueList({i, j}), Value(v), Bool(true)},
                  {2, 3}));
  EXPECT_THAT(RunOne(g), ElementsAre(7, 0, 5, 7, 0, 5));
}

TEST(Scatters, IndexPutByAMask) {
  GraphMaker g;
  const int x = g.Input({2, 2}, {1, 2, 3, 4});
  const int mask = g.Input({2}, {0, 1}, v1::DTYPE_BOOL);
  const int v = g.Input({2}, {10, 20});
  const int one = g.Input({}, {9});
  g.Output(g.Node("aten.index_put.default", {Value(x), ValueList({mask}), Value(v), Bool(true)},
                  {2, 2}));
  g.Output(g.Node("aten.index_put.default", {Value(x), ValueList({mask}), Value(one)}, {2, 2}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(1, 2, 13, 24));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(1, 2, 9, 9));
}

// Which value belongs to which element, the mask's own values say.
TEST(Scatters, IndexPutOfAValueForEachMaskedElementIsDeclined) {
  GraphMaker g;
  const int x = g.Input({4}, {1, 2, 3, 4});
  const int mask = g.Input({4}, {0, 1, 1, 0}, v1::DTYPE_BOOL);
  const int v = g.Input({2}, {10, 20});
  g.Output(g.Node("aten.index_put.default", {Value(x), ValueList({mask}), Value(v)}, {4}));
  ir::Module module;
  EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kUnimplemented);
}

TEST(Scatters, TheGradientOfAnEmbeddingLeavesOutItsPadding) {
  GraphMaker g;
  const int grad = g.Input({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const int i = g.Input({2, 2}, {2, 1, 2, 0}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.embedding_dense_backward.default",
                  {Value(grad), Value(i), Int(3), Int(1), Bool(false)}, {3, 2}));
  EXPECT_THAT(RunOne(g), ElementsAre(7, 8, 0, 0, 6, 8));
}

TEST(Scatters, AnIndexOutsideIsAnError) {
  for (const double index : {-1.0, 3.0}) {
    GraphMaker g;
    const int x = g.Input({3}, {1, 2, 3});
    const int i = g.Input({1}, {index}, v1::DTYPE_INT64);
    g.Output(g.Node("aten.scatter.value", {Value(x), Int(0), Value(i), Float(9)}, {3}));
    EXPECT_EQ(g.Run().status().code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(Scatters, SizesThatDoNotFitAreRefused) {
  GraphMaker g;
  const int x = g.Input({3, 2}, {1, 1, 1, 1, 1, 1});
  const int i = g.Input({2, 3}, {1, 1, 1, 1, 1, 1}, v1::DTYPE_INT64);
  const int v = g.Input({2, 3}, {1, 1, 1, 1, 1, 1});
  g.Output(g.Node("aten.scatter.src", {Value(x), Int(0), Value(i), Value(v)}, {3, 2}));
  ir::Module module;
  EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kiln::lowering
