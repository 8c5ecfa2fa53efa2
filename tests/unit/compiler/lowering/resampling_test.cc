#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

constexpr double kTolerance = 1e-6;

TEST(Resampling, NearestRepeatsOrPicks) {
  GraphMaker g;
  const int x = g.Input({1, 1, 1, 2}, {1, 2});
  g.Output(
      g.Node("aten.upsample_nearest2d.vec", {Value(x), IntList({1, 4}), NoArg()}, {1, 1, 1, 4}));
  g.Output(
      g.Node("aten.upsample_nearest2d.vec", {Value(x), IntList({1, 3}), NoArg()}, {1, 1, 1, 3}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(1, 1, 2, 2));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(1, 1, 2));
}

TEST(Resampling, ExactNearestStartsInTheMiddleOfAnElement) {
  GraphMaker g;
  const int x = g.Input({1, 1, 3}, {1, 2, 3});
  g.Output(g.Node("aten._upsample_nearest_exact1d.default", {Value(x), IntList({2}), NoArg()},
                  {1, 1, 2}));
  // 0.75 and 2.25; without the half they were 0 and 1.5.
  EXPECT_THAT(RunOne(g), ElementsAre(1, 3));
}

TEST(Resampling, NearestsGradientSumsABlock) {
  GraphMaker g;
  const int grad = g.Input({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  g.Output(g.Node("aten.upsample_nearest2d_backward.default",
                  {Value(grad), IntList({2, 4}), IntList({1, 1, 1, 2}), Float(2), Float(2)},
                  {1, 1, 1, 2}));
  EXPECT_THAT(RunOne(g), ElementsAre(14, 22));
}

TEST(Resampling, LinearInBothDimensions) {
  GraphMaker g;
  const int x = g.Input({1, 1, 2, 2}, {0, 4, 8, 12});
  g.Output(g.Node("aten.upsample_bilinear2d.default",
                  {Value(x), IntList({4, 4}), Bool(false), NoArg(), NoArg()}, {1, 1, 4, 4}));
  EXPECT_THAT(RunOne(g), Pointwise(DoubleNear(kTolerance),
                                   {0, 1, 3, 4, 2, 3, 5, 6, 6, 7, 9, 10, 8, 9, 11, 12}));
}

TEST(Resampling, AlignedCornersKeepTheirValues) {
  GraphMaker g;
  const int x = g.Input({1, 1, 3}, {0, 2, 6});
  g.Output(g.Node("aten.upsample_linear1d.default", {Value(x), IntList({5}), Bool(true), NoArg()},
                  {1, 1, 5}));
  g.Output(g.Node("aten.upsample_linear1d.default", {Value(x), IntList({1}), Bool(true), NoArg()},
                  {1, 1, 1}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, Pointwise(DoubleNear(kTolerance), {0, 1, 2, 4, 6}));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(0));
}

// The gradient's sum is that of what it is given: each output's weights make 1.
TEST(Resampling, GradientsGiveEachOutputsWeightsBack) {
  for (const bool align : {false, true}) {
    for (const int64_t out : {2, 3, 7, 13}) {
      GraphMaker g;
      const Sizes given{1, 1, out, 4};
      const int grad = g.Input(given, std::vector<double>(4 * out, 1.0));
      for (const char* op : {"bilinear", "bicubic"}) {
        g.Output(g.Node(
            std::string("aten.upsample_") + op + "2d_backward.default",
            {Value(grad), IntList({out, 4}), IntList({1, 1, 5, 3}), Bool(align), NoArg(), NoArg()},
            {1, 1, 5, 3}));
      }
      const auto outputs = g.Run();
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      for (const auto& output : *outputs) {
        double sum = 0;
        for (const double value : output.floats) sum += value;
        EXPECT_NEAR(sum, 4.0 * out, 1e-5) << out << (align ? " aligned" : "");
      }
    }
  }
}

}  // namespace
}  // namespace kiln::lowering
