#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::ElementsAre;

TEST(Padding, ReflectsWithoutTheEdgeItself) {
  GraphMaker g;
  const int x = g.Input({1, 4}, {1, 2, 3, 4});
  g.Output(g.Node("aten.reflection_pad1d.default", {Value(x), IntList({2, 3})}, {1, 9}));
  EXPECT_THAT(RunOne(g), ElementsAre(3, 2, 1, 2, 3, 4, 3, 2, 1));
}

TEST(Padding, RepeatsTheEdgeAndCutsByNegativeSizes) {
  GraphMaker g;
  const int x = g.Input({1, 4}, {1, 2, 3, 4});
  g.Output(g.Node("aten.replication_pad1d.default", {Value(x), IntList({2, 1})}, {1, 7}));
  g.Output(g.Node("aten.replication_pad1d.default", {Value(x), IntList({-1, 2})}, {1, 5}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(1, 1, 1, 2, 3, 4, 4));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(2, 3, 4, 4, 4));
}

TEST(Padding, TheReflectionsGradientReachesWhatWasRead) {
  GraphMaker g;
  const int grad = g.Input({1, 7}, {1, 2, 4, 8, 16, 32, 64});
  const int x = g.Input({1, 3}, {0, 0, 0});
  g.Output(g.Node("aten.reflection_pad1d_backward.default",
                  {Value(grad), Value(x), IntList({2, 2})}, {1, 3}));
  // It was read as 2 1 0 1 2 1 0.
  EXPECT_THAT(RunOne(g), ElementsAre(4 + 64, 2 + 8 + 32, 1 + 16));
}

TEST(Padding, TheReflectionsGradientInTwoDimensions) {
  GraphMaker g;
  const int grad = g.Input({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  const int x = g.Input({1, 2, 2}, {0, 0, 0, 0});
  g.Output(g.Node("aten.reflection_pad2d_backward.default",
                  {Value(grad), Value(x), IntList({1, 0, 0, 0})}, {1, 2, 2}));
  EXPECT_THAT(RunOne(g), ElementsAre(2, 1 + 3, 5, 4 + 6));
}

TEST(Padding, SizesThatDoNotFitAreRefused) {
  GraphMaker g;
  const int x = g.Input({1, 4}, {1, 2, 3, 4});
  g.Output(g.Node("aten.reflection_pad1d.default", {Value(x), IntList({2, 3})}, {1, 8}));
  ir::Module module;
  EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kiln::lowering
