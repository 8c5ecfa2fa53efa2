#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<double> Range(int n) {
  std::vector<double> data;
  for (int i = 0; i < n; ++i) data.push_back(i);
  return data;
}

TEST(Views, MakeNoKernelOfTheirOwn) {
  GraphMaker g;
  const int x = g.Input({2, 6}, Range(12));
  const int v = g.Node("aten.view.default", {Value(x), IntList({2, 3, 2})}, {2, 3, 2});
  const int p = g.Node("aten.permute.default", {Value(v), IntList({1, 0, 2})}, {3, 2, 2});
  const int c = g.Node("aten.clone.default", {Value(p)}, {3, 2, 2});
  g.Output(g.Node("aten.neg.default", {Value(c)}, {3, 2, 2}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(module.operations.size(), 1u);
  EXPECT_THAT(RunOne(g), ElementsAre(0, -1, -6, -7, -2, -3, -8, -9, -4, -5, -10, -11));
}

TEST(Views, SliceCountsFromTheEnd) {
  GraphMaker g;
  const int x = g.Input({6}, Range(6));
  g.Output(g.Node("aten.slice.Tensor", {Value(x), Int(0), Int(-4), Int(6), Int(2)}, {2}));
  EXPECT_THAT(RunOne(g), ElementsAre(2, 4));
}

TEST(Views, SliceBeyondTheEndIsRefused) {
  GraphMaker g;
  const int x = g.Input({6}, Range(6));
  g.Output(g.Node("aten.slice.Tensor", {Value(x), Int(0), Int(4), Int(9)}, {5}));
  const absl::Status status = g.Run().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("index 8"));
}

TEST(Views, ReshapeToOtherElementCountIsRefused) {
  GraphMaker g;
  const int x = g.Input({6}, Range(6));
  g.Output(g.Node("aten.view.default", {Value(x), IntList({7})}, {7}));
  EXPECT_EQ(g.Run().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Views, SelectDropsADimension) {
  GraphMaker g;
  const int x = g.Input({2, 3}, Range(6));
  g.Output(g.Node("aten.select.int", {Value(x), Int(1), Int(-1)}, {2}));
  EXPECT_THAT(RunOne(g), ElementsAre(2, 5));
}

TEST(Views, SplitGivesEachPart) {
  GraphMaker g;
  const int x = g.Input({5}, Range(5));
  const int a = g.Node("aten.split_with_sizes.default", {Value(x), IntList({2, 3})}, {2});
  g.Output(a);
  g.Output(g.MoreResult({3}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(0, 1));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(2, 3, 4));
}

TEST(Views, FlipRepeatRollAndDiagonal) {
  GraphMaker g;
  const int x = g.Input({3}, Range(3));
  const int m = g.Input({2, 3}, Range(6));
  g.Output(g.Node("aten.flip.default", {Value(x), IntList({0})}, {3}));
  g.Output(g.Node("aten.repeat.default", {Value(x), IntList({2})}, {6}));
  g.Output(g.Node("aten.roll.default", {Value(x), IntList({1}), IntList({0})}, {3}));
  g.Output(g.Node("aten.diagonal.default", {Value(m), Int(1)}, {2}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(2, 1, 0));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT((*outputs)[2].floats, ElementsAre(2, 0, 1));
  EXPECT_THAT((*outputs)[3].floats, ElementsAre(1, 5));
}

TEST(Views, UnfoldGivesWindowsThatMayOverlap) {
  GraphMaker g;
  const int x = g.Input({5, 2}, Range(10));
  g.Output(g.Node("aten.unfold.default", {Value(x), Int(0), Int(3), Int(2)}, {2, 2, 3}));
  g.Output(g.Node("aten.unfold.default", {Value(x), Int(-1), Int(0), Int(1)}, {5, 3, 0}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(0, 2, 4, 1, 3, 5, 4, 6, 8, 5, 7, 9));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre());
}

TEST(Views, UnfoldBeyondItsDimensionIsRefused) {
  GraphMaker g;
  const int x = g.Input({5}, Range(5));
  g.Output(g.Node("aten.unfold.default", {Value(x), Int(0), Int(3), Int(2)}, {3, 3}));
  ir::Module module;
  EXPECT_THAT(g.Lower(module).message(), ::testing::HasSubstr("reads index 6"));
}

TEST(Joining, CatOfManyPartsTakesSeveralKernels) {
  GraphMaker g;
  std::vector<int> parts;
  std::vector<double> expected;
  for (int i = 0; i < 20; ++i) {
    parts.push_back(g.Input({2}, {2.0 * i, 2.0 * i + 1}));
    expected.push_back(2.0 * i);
    expected.push_back(2.0 * i + 1);
  }
  g.Output(g.Node("aten.cat.default", {ValueList(parts)}, {40}));
  EXPECT_EQ(RunOne(g), expected);
}

TEST(Joining, PadAndSliceScatter) {
  GraphMaker g;
  const int x = g.Input({4}, {1, 2, 3, 4});
  const int s = g.Input({2}, {8, 9});
  g.Output(g.Node("aten.constant_pad_nd.default", {Value(x), IntList({1, -2}), Float(7)}, {3}));
  g.Output(g.Node("aten.slice_scatter.default",
                  {Value(x), Value(s), Int(0), Int(1), Int(4), Int(2)}, {4}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(7, 1, 2));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(1, 8, 3, 9));
}

TEST(Indexing, EmbeddingReadsRowsAndRefusesOthers) {
  GraphMaker g;
  const int w = g.Input({3, 2}, Range(6));
  const int i = g.Input({2}, {2, 0}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.embedding.default", {Value(w), Value(i)}, {2, 2}));
  EXPECT_THAT(RunOne(g), ElementsAre(4, 5, 0, 1));
  GraphMaker bad;
  const int w2 = bad.Input({3, 2}, Range(6));
  const int i2 = bad.Input({1}, {3}, v1::DTYPE_INT64);
  bad.Output(bad.Node("aten.embedding.default", {Value(w2), Value(i2)}, {1, 2}));
  EXPECT_EQ(bad.Run().status().code(), absl::StatusCode::kOutOfRange);
}

TEST(Indexing, GatherThroughAPermutedView) {
  GraphMaker g;
  const int x = g.Input({2, 3}, Range(6));
  const int i = g.Input({3, 1}, {1, 0, 1}, v1::DTYPE_INT64);
  const int t = g.Node("aten.permute.default", {Value(x), IntList({1, 0})}, {3, 2});
  g.Output(g.Node("aten.gather.default", {Value(t), Int(1), Value(i)}, {3, 1}));
  EXPECT_THAT(RunOne(g), ElementsAre(3, 1, 5));
}

TEST(Indexing, PartedIndicesComeFirstAndNegativeOnesWrap) {
  GraphMaker g;
  const int x = g.Input({2, 2, 3}, Range(12));
  const int i = g.Input({2}, {-1, 0}, v1::DTYPE_INT64);
  v1::Argument indices = ValueList({i});
  indices.mutable_list()->add_items()->mutable_none();
  indices.mutable_list()->add_items()->set_value(i);
  // y[k, m] = x[i[k], m, i[k]]
  g.Output(g.Node("aten.index.Tensor", {Value(x), indices}, {2, 2}));
  EXPECT_THAT(RunOne(g), ElementsAre(8, 11, 0, 3));
}

}  // namespace
}  // namespace kiln::lowering
