#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

TEST(Reductions, SumOverDimensionsWithAndWithoutKeeping) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  g.Output(g.Node("aten.sum.dim_IntList", {Value(x), IntList({0}), Bool(true)}, {1, 3}));
  g.Output(g.Node("aten.sum.dim_IntList", {Value(x), IntList({-1})}, {2}));
  g.Output(g.Node("aten.mean.default", {Value(x)}, {}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(5, 7, 9));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(6, 15));
  EXPECT_THAT((*outputs)[2].floats, ElementsAre(3.5));
}

TEST(Reductions, OverNoElementsGivesTheIdentity) {
  GraphMaker g;
  const int x = g.Input({2, 0}, {});
  g.Output(g.Node("aten.sum.dim_IntList", {Value(x), IntList({1})}, {2}));
  EXPECT_THAT(RunOne(g), ElementsAre(0, 0));
}

TEST(Reductions, OfEmptyTensorsToEmptyTensors) {
  GraphMaker g;
  const int x = g.Input({0, 2}, {});
  g.Output(g.Node("aten.relu.default", {Value(x)}, {0, 2}));
  EXPECT_THAT(RunOne(g), ElementsAre());
}

TEST(Reductions, OverDimensionsOfOneElement) {
  GraphMaker g;
  const int x = g.Input({2, 1}, {3, 4});
  g.Output(g.Node("aten.amax.default", {Value(x), IntList({1})}, {2}));
  EXPECT_THAT(RunOne(g), ElementsAre(3, 4));
}

TEST(Reductions, MaxGivesValuesAndFirstIndices) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 5, 5, 9, 2, 3});
  g.Output(g.Node("aten.max.dim", {Value(x), Int(1)}, {2}));
  g.Output(g.MoreResult({2}, v1::DTYPE_INT64));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(5, 9));
  EXPECT_THAT((*outputs)[1].ints, ElementsAre(1, 0));
}

TEST(Reductions, VarianceLosesNoDigits) {
  GraphMaker g;
  const double base = 1 << 20;
  const int x = g.Input({3}, {base, base + 1, base + 2});
  const int v = g.Node("aten.var.correction", {Value(x)}, {});
  g.Keyword("correction", Int(1));
  g.Output(v);
  EXPECT_THAT(RunOne(g), ElementsAre(1));
}

TEST(Reductions, SoftmaxOfSymbolicLength) {
  GraphMaker g;
  const int64_t s0 = g.Symbol(3);
  const int x = g.Input({s0}, {1, 2, 3});
  g.Output(g.Node("aten._softmax.default", {Value(x), Int(-1), Bool(false)}, {s0}));
  const double sum = std::exp(1) + std::exp(2) + std::exp(3);
  EXPECT_THAT(RunOne(g), Pointwise(DoubleNear(1e-12),
                                   {std::exp(1) / sum, std::exp(2) / sum, std::exp(3) / sum}));
}

void AddLayerNorm(GraphMaker& g, bool use_statistics) {
  const int x = g.Input({2, 2}, {1, 3, 10, 20});
  const int w = g.Input({2}, {1, 2});
  const int b = g.Input({2}, {0.5, 0});
  g.Output(g.Node("aten.native_layer_norm.default",
                  {Value(x), IntList({2}), Value(w), Value(b), Float(0)}, {2, 2}));
  const int mean = g.MoreResult({2, 1});
  const int rstd = g.MoreResult({2, 1});
  if (!use_statistics) return;
  g.Output(mean);
  g.Output(rstd);
}

TEST(Normalization, LayerNormIsOneKernelWhereOnlyItsOutputIsUsed) {
  GraphMaker g;
  AddLayerNorm(g, false);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(module.operations.size(), 1u);
  EXPECT_THAT(RunOne(g), Pointwise(DoubleNear(1e-12), {-0.5, 2.0, -0.5, 2.0}));
}

TEST(Normalization, LayerNormGivesItsStatistics) {
  GraphMaker g;
  AddLayerNorm(g, true);
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, Pointwise(DoubleNear(1e-12), {-0.5, 2.0, -0.5, 2.0}));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(2, 15));
  EXPECT_THAT((*outputs)[2].floats, Pointwise(DoubleNear(1e-12), {1.0, 0.2}));
}

TEST(Normalization, BatchNormUsesRunningStatistics) {
  GraphMaker g;
  const int x = g.Input({1, 2, 2}, {1, 2, 3, 4});
  const int mean = g.Input({2}, {1, 3});
  const int var = g.Input({2}, {4, 1});
  g.Output(g.Node("aten._native_batch_norm_legit_no_training.default",
                  {Value(x), NoArg(), NoArg(), Value(mean), Value(var), Float(0.1), Float(0)},
                  {1, 2, 2}));
  g.MoreResult({0});
  g.MoreResult({0});
  EXPECT_THAT(RunOne(g), Pointwise(DoubleNear(1e-12), {0.0, 0.5, 0.0, 1.0}));
}

TEST(Normalization, GroupNormReducesOverAGroupsChannels) {
  GraphMaker g;
  const int x = g.Input({1, 4, 1}, {1, 3, 10, 20});
  g.Output(g.Node("aten.native_group_norm.default",
                  {Value(x), NoArg(), NoArg(), Int(1), Int(4), Int(1), Int(2), Float(0)},
                  {1, 4, 1}));
  g.MoreResult({1, 2});
  g.MoreResult({1, 2});
  EXPECT_THAT(RunOne(g), Pointwise(DoubleNear(1e-12), {-1.0, 1.0, -1.0, 1.0}));
}

}  // namespace
}  // namespace kiln::lowering
