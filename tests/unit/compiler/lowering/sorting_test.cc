#include <limits>
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

TEST(Sorting, WithoutStabilityTheIndicesAreLeftToTheClient) {
  for (const bool with_indices : {false, true}) {
    GraphMaker g;
    const int x = g.Input({3}, {3, 1, 2});
    g.Output(g.Node("aten.sort.default", {Value(x), Int(0)}, {3}));
    const int indices = g.MoreResult({3}, v1::DTYPE_INT64);
    if (with_indices) g.Output(indices);
    ir::Module module;
    EXPECT_EQ(g.Lower(module).code(),
              with_indices ? absl::StatusCode::kUnimplemented : absl::StatusCode::kOk);
    if (!with_indices) EXPECT_THAT(RunOne(g), ElementsAre(1, 2, 3));
  }
}

TEST(Sorting, LongRowsAreLeftToTheClient) {
  GraphMaker g;
  const int x = g.Input({600}, std::vector<double>(600, 1));
  g.Output(g.Node("aten.sort.default", {Value(x), Int(0)}, {600}));
  g.MoreResult({600}, v1::DTYPE_INT64);
  ir::Module module;
  EXPECT_EQ(g.Lower(module).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace kiln::lowering
