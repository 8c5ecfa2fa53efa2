#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::ElementsAre;
using testing::IsNan;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Sorting, NanIsTheGreatestAndEqualsStayInOrder) {
  GraphMaker g;
  const int x = g.Input({9}, {2, kNan, -0.0, -kInf, 0, kInf, 2, -3, kNan});
  for (const bool descending : {false, true}) {
    g.Output(g.Node("aten.sort.stable", {Value(x)}, {9}));
    g.Keyword("stable", Bool(true));
    g.Keyword("dim", Int(0));
    g.Keyword("descending", Bool(descending));
    g.Output(g.MoreResult({9}, v1::DTYPE_INT64));
  }
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(-kInf, -3, 0, 0, 2, 2, kInf, IsNan(), IsNan()));
  EXPECT_THAT((*outputs)[1].ints, ElementsAre(3, 7, 2, 4, 0, 6, 5, 1, 8));
  EXPECT_THAT((*outputs)[2].floats, ElementsAre(IsNan(), IsNan(), kInf, 2, 2, 0, 0, -3, -kInf));
  EXPECT_THAT((*outputs)[3].ints, ElementsAre(1, 8, 5, 0, 6, 2, 4, 7, 3));
}

TEST(Sorting, AlongTheFirstDimensionOfOtherTypes) {
  GraphMaker g;
  const int x = g.Input({3, 2}, {5, -1, 5, 7, -9, 0}, v1::DTYPE_INT64);
  const int b = g.Input({4}, {1, 0, 1, 0}, v1::DTYPE_BOOL);
  g.Output(g.Node("aten.sort.stable", {Value(x)}, {3, 2}, v1::DTYPE_INT64));
  g.Keyword("stable", Bool(true));
  g.Keyword("dim", Int(0));
  g.Output(g.MoreResult({3, 2}, v1::DTYPE_INT64));
  g.Output(g.Node("aten.sort.stable", {Value(b)}, {4}, v1::DTYPE_BOOL));
  g.Keyword("stable", Bool(true));
  g.Output(g.MoreResult({4}, v1::DTYPE_INT64));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].ints, ElementsAre(-9, -1, 5, 0, 5, 7));
  EXPECT_THAT((*outputs)[1].ints, ElementsAre(2, 0, 0, 2, 1, 1));
  EXPECT_THAT((*outputs)[2].ints, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT((*outputs)[3].ints, ElementsAre(1, 3, 0, 2));
}

// Long rows are sorted as integers that hold the element and its number.
TEST(Sorting, LongRowsStayInOrderToo) {
  for (const v1::DType type : {v1::DTYPE_FLOAT32, v1::DTYPE_INT64, v1::DTYPE_FLOAT64}) {
    for (const bool descending : {false, true}) {
      constexpr int64_t kLength = 1000;
      std::vector<double> row(2 * kLength);
      for (int64_t i = 0; i < 2 * kLength; ++i) {
        row[i] = static_cast<double>(i * 7919 % 401 - 200) * 20000000;  // with ties
      }
      GraphMaker g;
      const int x = g.Input({kLength, 2}, row, type);
      g.Output(
          g.Node("aten.sort.default", {Value(x), Int(0), Bool(descending)}, {kLength, 2}, type));
      g.Output(g.MoreResult({kLength, 2}, v1::DTYPE_INT64));
      const auto outputs = g.Run();
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      std::vector<int64_t> expected(kLength);
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(), [&](int64_t a, int64_t b) {
        return descending ? row[2 * a] > row[2 * b] : row[2 * a] < row[2 * b];
      });
      std::vector<int64_t> column;
      for (int64_t i = 0; i < kLength; ++i) column.push_back((*outputs)[1].ints[2 * i]);
      EXPECT_EQ(column, expected) << type << descending;
      EXPECT_EQ(type == v1::DTYPE_INT64 ? static_cast<double>((*outputs)[0].ints[0])
                                        : (*outputs)[0].floats[0],
                row[2 * expected[0]]);
    }
  }
}

TEST(Sorting, TheGreatestAndTheMiddle) {
  GraphMaker g;
  const int x = g.Input({2, 5}, {3, 1, kNan, 3, -2, 4, 0, 9, 2, 1});
  g.Output(g.Node("aten.topk.default", {Value(x), Int(2)}, {2, 2}));
  g.Output(g.MoreResult({2, 2}, v1::DTYPE_INT64));
  g.Output(g.Node("aten.topk.default", {Value(x), Int(2), Int(1), Bool(false)}, {2, 2}));
  g.MoreResult({2, 2}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.median.dim", {Value(x), Int(1)}, {2}));
  g.Output(g.MoreResult({2}, v1::DTYPE_INT64));
  g.Output(g.Node("aten.kthvalue.default", {Value(x), Int(2), Int(1), Bool(true)}, {2, 1}));
  g.MoreResult({2, 1}, v1::DTYPE_INT64);
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(IsNan(), 3, 9, 4));
  EXPECT_THAT((*outputs)[1].ints, ElementsAre(2, 0, 2, 0));
  EXPECT_THAT((*outputs)[2].floats, ElementsAre(-2, 1, 0, 1));
  EXPECT_THAT((*outputs)[3].floats, ElementsAre(IsNan(), 2));
  EXPECT_THAT((*outputs)[4].ints, ElementsAre(2, 3));
  EXPECT_THAT((*outputs)[5].floats, ElementsAre(1, 1));
}

TEST(Sorting, SearchesFindTheFirstPlaceOrTheLast) {
  GraphMaker g;
  const int rows = g.Input({5}, {-1, 2, 2, 2, kInf});
  const int values = g.Input({6}, {-3, -1, 2, 3, kInf, kNan});
  g.Output(g.Node("aten.searchsorted.Tensor", {Value(rows), Value(values)}, {6}, v1::DTYPE_INT64));
  g.Output(g.Node("aten.bucketize.Tensor", {Value(values), Value(rows)}, {6}, v1::DTYPE_INT64));
  g.Keyword("right", Bool(true));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].ints, ElementsAre(0, 0, 1, 4, 4, 5));
  EXPECT_THAT((*outputs)[1].ints, ElementsAre(0, 1, 4, 4, 5, 5));
}

}  // namespace
}  // namespace kiln::lowering
