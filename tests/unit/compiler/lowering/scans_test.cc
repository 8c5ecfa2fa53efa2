#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Scans, SumsAndProductsAlongEitherDimension) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  g.Output(g.Node("aten.cumsum.default", {Value(x), Int(-1)}, {2, 3}));
  g.Output(g.Node("aten.cumsum.default", {Value(x), Int(0)}, {2, 3}));
  g.Output(g.Node("aten.cumprod.default", {Value(x), Int(1)}, {2, 3}));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(1, 3, 6, 4, 9, 15));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(1, 2, 3, 5, 7, 9));
  EXPECT_THAT((*outputs)[2].floats, ElementsAre(1, 2, 6, 4, 20, 120));
}

TEST(Scans, BoolsAreCounted) {
  GraphMaker g;
  const int x = g.Input({4}, {1, 0, 1, 1}, v1::DTYPE_BOOL);
  g.Output(g.Node("aten.cumsum.default", {Value(x), Int(0)}, {4}, v1::DTYPE_INT64));
  EXPECT_THAT(RunOne(g), ElementsAre(1, 1, 2, 3));
}

TEST(Scans, SumsOfExponentialsThatOverflow) {
  GraphMaker g;
  const int x = g.Input({3}, {1000, 1000, -1000});
  g.Output(g.Node("aten.logcumsumexp.default", {Value(x), Int(0)}, {3}));
  const double two = 1000 + 0.6931471805599453;
  EXPECT_THAT(RunOne(g), ElementsAre(1000, DoubleNear(two, 1e-9), DoubleNear(two, 1e-9)));
}

// Of equals the last one is named, and a NaN stays.
TEST(Scans, ExtremesHaveTheirPlaces) {
  GraphMaker g;
  const int x = g.Input({7}, {1, 3, 3, 2, kNan, 9, kNan});
  g.Output(g.Node("aten.cummax.default", {Value(x), Int(0)}, {7}));
  g.Output(g.MoreResult({7}, v1::DTYPE_INT64));
  g.Output(g.Node("aten.cummin.default", {Value(x), Int(0)}, {7}));
  g.Output(g.MoreResult({7}, v1::DTYPE_INT64));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats,
              ElementsAre(1, 3, 3, 3, testing::IsNan(), testing::IsNan(), testing::IsNan()));
  EXPECT_THAT((*outputs)[1].ints, ElementsAre(0, 1, 2, 2, 4, 4, 6));
  EXPECT_THAT((*outputs)[2].floats,
              ElementsAre(1, 1, 1, 1, testing::IsNan(), testing::IsNan(), testing::IsNan()));
  EXPECT_THAT((*outputs)[3].ints, ElementsAre(0, 0, 0, 0, 4, 4, 6));
}

TEST(Scans, AMaskDealsOutItsSource) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  const int mask = g.Input({2, 3}, {0, 1, 0, 1, 1, 0}, v1::DTYPE_BOOL);
  const int v = g.Input({2, 2}, {10, 20, 30, 40});
  g.Output(g.Node("aten.masked_scatter.default", {Value(x), Value(mask), Value(v)}, {2, 3}));
  EXPECT_THAT(RunOne(g), ElementsAre(1, 10, 3, 20, 30, 6));
}

TEST(Scans, AMaskOfMoreElementsThanItsSourceIsAnError) {
  GraphMaker g;
  const int x = g.Input({3}, {1, 2, 3});
  const int mask = g.Input({3}, {1, 1, 1}, v1::DTYPE_BOOL);
  const int v = g.Input({2}, {10, 20});
  g.Output(g.Node("aten.masked_scatter.default", {Value(x), Value(mask), Value(v)}, {3}));
  EXPECT_EQ(g.Run().status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace kiln::lowering
