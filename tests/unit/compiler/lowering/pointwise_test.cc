#include <cmath>

#include "absl/strings/match.h"
#include "compiler/ir/print.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNan;
using testing::Pointwise;

std::vector<double> Unary(const std::string& op, const std::vector<double>& data,
                          std::vector<v1::Argument> more = {}) {
  GraphMaker g;
  const Sizes sizes{static_cast<int64_t>(data.size())};
  std::vector<v1::Argument> args{Value(g.Input(sizes, data))};
  args.insert(args.end(), more.begin(), more.end());
  g.Output(g.Node(op, args, sizes));
  return RunOne(g);
}

std::vector<double> Binary(const std::string& op, const std::vector<double>& a,
                           const std::vector<double>& b, v1::DType dtype, v1::DType result) {
  GraphMaker g;
  const Sizes sizes{static_cast<int64_t>(a.size())};
  const int x = g.Input(sizes, a, dtype);
  const int y = g.Input(sizes, b, dtype);
  g.Output(g.Node(op, {Value(x), Value(y)}, sizes, result));
  return RunOne(g);
}

TEST(Pointwise, GeluIsExactByDefault) {
  const std::vector<double> x{-2, -0.5, 0, 1.5};
  std::vector<double> expected;
  for (const double v : x) expected.push_back(0.5 * v * (1 + std::erf(v / std::sqrt(2))));
  EXPECT_THAT(Unary("aten.gelu.default", x), Pointwise(DoubleNear(1e-12), expected));
}

TEST(Pointwise, ReluPassesNan) {
  EXPECT_THAT(Unary("aten.relu.default", {-1, 2, NAN}), ElementsAre(0, 2, IsNan()));
}

TEST(Pointwise, ClampTakesEitherBound) {
  EXPECT_THAT(Unary("aten.clamp.default", {-3, 0, 3}, {NoArg(), Float(1)}), ElementsAre(-3, 0, 1));
  EXPECT_THAT(Unary("aten.clamp.default", {-3, 0, 3}, {Float(-1)}), ElementsAre(-1, 0, 3));
}

TEST(Pointwise, HardswishAndElu) {
  EXPECT_THAT(Unary("aten.hardswish.default", {-4, 0, 3, 6}), ElementsAre(0, 0, 3, 6));
  EXPECT_THAT(Unary("aten.elu.default", {-1, 2}, {Float(2)}),
              Pointwise(DoubleNear(1e-12), {2 * std::expm1(-1.0), 2.0}));
}

TEST(Pointwise, AddScalesByAlpha) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  const int sum = g.Node("aten.add.Tensor", {Value(x), Value(x)}, {2});
  g.Keyword("alpha", Int(3));
  g.Output(sum);
  EXPECT_THAT(RunOne(g), ElementsAre(4, 8));
}

TEST(Pointwise, OperandsBroadcast) {
  GraphMaker g;
  const int x = g.Input({2, 1}, {1, 2});
  const int y = g.Input({3}, {10, 20, 30});
  g.Output(g.Node("aten.add.Tensor", {Value(x), Value(y)}, {2, 3}));
  EXPECT_THAT(RunOne(g), ElementsAre(11, 21, 31, 12, 22, 32));
}

TEST(Pointwise, BroadcastMismatchNamesTheNode) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  const int y = g.Input({3}, {10, 20, 30});
  g.Output(g.Node("aten.add.Tensor", {Value(x), Value(y)}, {3}));
  const absl::Status status = g.Run().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("n1"));
}

TEST(Pointwise, IntegersPromoteToTheRecordedFloat) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 4}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.div.Tensor", {Value(x), Int(8)}, {2}));
  EXPECT_THAT(RunOne(g), ElementsAre(0.125, 0.5));
}

TEST(Pointwise, ComparisonPromotesIntegerAgainstFloat) {
  GraphMaker g;
  const int x = g.Input({3}, {1, 2, 3}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.gt.Scalar", {Value(x), Float(1.5)}, {3}, v1::DTYPE_BOOL));
  EXPECT_THAT(RunOne(g), ElementsAre(0, 1, 1));
}

TEST(Pointwise, FloorDivisionOfFloatsIsExact) {
  GraphMaker g;
  const int x = g.Input({3}, {1.0, -7, 7}, v1::DTYPE_FLOAT64);
  const int y = g.Input({3}, {0.1, 2, -2}, v1::DTYPE_FLOAT64);
  const int q = g.Node("aten.div.Tensor_mode", {Value(x), Value(y)}, {3}, v1::DTYPE_FLOAT64);
  g.Keyword("rounding_mode", String("floor"));
  g.Output(q);
  EXPECT_THAT(RunOne(g), ElementsAre(9, -4, -4));
}

TEST(Pointwise, RemainderAndFmodDifferInSign) {
  EXPECT_THAT(Binary("aten.remainder.Tensor", {-7, 7}, {3, -3}, v1::DTYPE_INT64, v1::DTYPE_INT64),
              ElementsAre(2, -2));
  EXPECT_THAT(Binary("aten.fmod.Tensor", {-7, 7}, {3, -3}, v1::DTYPE_INT64, v1::DTYPE_INT64),
              ElementsAre(-1, 1));
}

TEST(Pointwise, IntegersAreNotDividedByZeroWhereTheDeviceLooks) {
  for (const bool checks : {false, true}) {
    for (const std::string op : {"aten.floor_divide.default", "aten.remainder.Tensor",
                                 "aten.fmod.Tensor", "aten.div.Tensor_mode"}) {
      for (const auto& [divisor, code] : std::vector<std::pair<double, absl::StatusCode>>{
               {3, absl::StatusCode::kOk}, {0, absl::StatusCode::kOutOfRange}}) {
        GraphMaker g;
        if (checks) g.CheckDivisors();
        const int x = g.Input({2}, {5, 7}, v1::DTYPE_INT32);
        const int y = g.Input({2}, {1, divisor}, v1::DTYPE_INT32);
        const int q = g.Node(op, {Value(x), Value(y)}, {2}, v1::DTYPE_INT32);
        if (op == "aten.div.Tensor_mode") g.Keyword("rounding_mode", String("trunc"));
        g.Output(q);
        EXPECT_EQ(g.Run().status().code(), checks ? code : absl::StatusCode::kOk) << op;
      }
    }
  }
}

TEST(Pointwise, OnlyNumbersThatMayBeZeroAreLookedAt) {
  const auto is_looked_at = [](v1::Argument divisor, v1::DType dtype) {
    GraphMaker g;
    g.CheckDivisors();
    const int x = g.Input({2}, {5, 7}, dtype);
    g.Output(g.Node("aten.remainder.Scalar", {Value(x), std::move(divisor)}, {2}, dtype));
    ir::Module module;
    EXPECT_TRUE(g.Lower(module).ok());
    return absl::StrContains(ir::Print(module), "nonzero");
  };
  EXPECT_FALSE(is_looked_at(Int(3), v1::DTYPE_INT64));
  EXPECT_FALSE(is_looked_at(Int(-1), v1::DTYPE_UINT8));
  EXPECT_FALSE(is_looked_at(Bool(true), v1::DTYPE_INT64));
  EXPECT_FALSE(is_looked_at(Float(0), v1::DTYPE_FLOAT32));
  EXPECT_TRUE(is_looked_at(Int(0), v1::DTYPE_INT64));
  EXPECT_TRUE(is_looked_at(Int(256), v1::DTYPE_UINT8)) << "0 as a number of 8 bits";
  EXPECT_FALSE(is_looked_at(Int(256), v1::DTYPE_INT16));
}

TEST(Pointwise, FmaxLetsNanGiveWay) {
  EXPECT_THAT(Binary("aten.fmax.default", {NAN, 1}, {2, NAN}, v1::DTYPE_FLOAT32, v1::DTYPE_FLOAT32),
              ElementsAre(2, 1));
}

TEST(Pointwise, ShiftsByTooMuchPushEveryBitOut) {
  EXPECT_THAT(Binary("aten.bitwise_right_shift.Tensor", {-8, -8, 8}, {1, 99, -1}, v1::DTYPE_INT32,
                     v1::DTYPE_INT32),
              ElementsAre(-4, -1, 0));
  EXPECT_THAT(Binary("aten.bitwise_left_shift.Tensor", {3, 3, 3}, {1, 32, -1}, v1::DTYPE_INT32,
                     v1::DTYPE_INT32),
              ElementsAre(6, 0, 0));
}

TEST(Pointwise, PowersOfIntegersMultiply) {
  GraphMaker g;
  const int x = g.Input({2}, {3, -2}, v1::DTYPE_INT64);
  g.Output(g.Node("aten.pow.Tensor_Scalar", {Value(x), Int(5)}, {2}, v1::DTYPE_INT64));
  EXPECT_THAT(RunOne(g), ElementsAre(243, -32));
}

TEST(Pointwise, WhereTakesScalarsOfRankZero) {
  GraphMaker g;
  const int c = g.Input({2}, {1, 0}, v1::DTYPE_BOOL);
  const int x = g.Input({}, {5});
  const int y = g.Input({2}, {7, 8});
  g.Output(g.Node("aten.where.self", {Value(c), Value(x), Value(y)}, {2}));
  EXPECT_THAT(RunOne(g), ElementsAre(5, 8));
}

TEST(Pointwise, ArangeCountsFromStartByStep) {
  GraphMaker g;
  g.Output(g.Node("aten.arange.start_step", {Int(5), Int(-1), Int(-2)}, {3}, v1::DTYPE_INT64));
  EXPECT_THAT(RunOne(g), ElementsAre(5, 3, 1));
}

}  // namespace
}  // namespace kiln::lowering
