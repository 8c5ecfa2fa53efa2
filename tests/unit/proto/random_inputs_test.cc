#include "proto/base/random_inputs.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kiln/v1/graph.pb.h"

namespace kiln {
namespace {

v1::Graph ParseGraph(const std::string& text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph)) << text;
  return graph;
}

v1::SymInt Binary(v1::SymExpr::Kind kind, int64_t a, int64_t b) {
  v1::SymInt out;
  out.mutable_expr()->set_kind(kind);
  for (int64_t v : {a, b}) {
    v1::SymExpr* operand = out.mutable_expr()->add_operands();
    operand->set_kind(v1::SymExpr::KIND_CONSTANT);
    operand->set_constant(v);
  }
  return out;
}

TEST(EvaluateSymIntTest, DivisionAndRemainderRoundTowardsMinusInfinity) {
  for (int64_t a : {-7, -6, 0, 6, 7}) {
    for (int64_t b : {-3, -1, 1, 3}) {
      const auto quotient = static_cast<int64_t>(std::floor(static_cast<double>(a) / b));
      EXPECT_EQ(*EvaluateSymInt(Binary(v1::SymExpr::KIND_FLOOR_DIV, a, b), {}), quotient);
      EXPECT_EQ(*EvaluateSymInt(Binary(v1::SymExpr::KIND_MOD, a, b), {}), a - b * quotient);
    }
  }
}

TEST(EvaluateSymIntTest, RefusesWhatHasNoValue) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  const int64_t min = std::numeric_limits<int64_t>::min();
  EXPECT_FALSE(EvaluateSymInt(Binary(v1::SymExpr::KIND_FLOOR_DIV, 1, 0), {}).ok());
  EXPECT_FALSE(EvaluateSymInt(Binary(v1::SymExpr::KIND_MUL, max, 2), {}).ok());
  EXPECT_FALSE(EvaluateSymInt(Binary(v1::SymExpr::KIND_FLOOR_DIV, min, -1), {}).ok());
  EXPECT_EQ(*EvaluateSymInt(Binary(v1::SymExpr::KIND_MOD, min, -1), {}), 0);
  v1::SymInt symbol;
  symbol.mutable_expr()->set_kind(v1::SymExpr::KIND_SYMBOL);
  EXPECT_FALSE(EvaluateSymInt(symbol, {}).ok());
  EXPECT_EQ(*EvaluateSymInt(symbol, {5}), 5);
  v1::SymInt deep;
  v1::SymExpr* at = deep.mutable_expr();
  for (int i = 0; i < 1000; ++i) {
    at->set_kind(v1::SymExpr::KIND_ADD);
    at = at->add_operands();
  }
  EXPECT_FALSE(EvaluateSymInt(deep, {}).ok());
}

constexpr char kTwoInputs[] = R"(
  symbols { name: "s0" min: 2 max: 8 hint: 100 }
  inputs { name: "w" role: ROLE_PARAMETER type { tensor { dtype: DTYPE_FLOAT32
    sizes { value: 64 } sizes { value: 256 } strides { value: 256 } strides { value: 1 } } } }
  inputs { name: "s" role: ROLE_SYMBOL type { sym_int { expr { kind: KIND_SYMBOL symbol: 0 } } } }
  inputs { name: "i" role: ROLE_USER type { tensor { dtype: DTYPE_INT64
    sizes { expr { kind: KIND_SYMBOL symbol: 0 } } strides { value: 3 } } } })";

TEST(RandomInputsTest, OneSeedGivesTheSameValuesAndAnotherSeedOthers) {
  const v1::Graph graph = ParseGraph(kTwoInputs);
  const auto a = *RandomInputs(graph, 1);
  const auto b = *RandomInputs(graph, 1);
  const auto c = *RandomInputs(graph, 2);
  ASSERT_EQ(a.size(), 2u);
  EXPECT_EQ(a[0].data, b[0].data);
  EXPECT_NE(a[0].data, c[0].data);
}

TEST(RandomInputsTest, ParametersAreScaledByFanInAndIntegersAreLegalIndices) {
  const auto inputs = *RandomInputs(ParseGraph(kTwoInputs), 1);
  double squares = 0;
  const size_t count = inputs[0].data.size() / 4;
  for (size_t i = 0; i < count; ++i) {
    float v;
    std::memcpy(&v, inputs[0].data.data() + 4 * i, 4);
    squares += static_cast<double>(v) * v;
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 1.0 / 16, 0.01);
  EXPECT_EQ(inputs[1].sizes, (std::vector<int64_t>{8})) << "the hint is clamped into the range";
  EXPECT_EQ(inputs[1].data.size(), (7 * 3 + 1) * 8u) << "strides are honoured";
  for (size_t i = 0; i + 8 <= inputs[1].data.size(); i += 8) {
    int64_t v;
    std::memcpy(&v, inputs[1].data.data() + i, 8);
    EXPECT_TRUE(v == 0 || v == 1);
  }
}

TEST(RandomInputsTest, RefusesImpossibleSizes) {
  EXPECT_FALSE(RandomInputs(ParseGraph(R"(inputs { type { tensor { dtype: DTYPE_FLOAT32
      sizes { value: 4611686018427387904 } strides { value: 4 } } } })"),
                            1)
                   .ok());
  EXPECT_FALSE(RandomInputs(ParseGraph(R"(inputs { type { tensor { dtype: DTYPE_FLOAT32
      sizes { value: 4 } } } })"),
                            1)
                   .ok());
  EXPECT_FALSE(RandomInputs(ParseGraph("inputs { type { tensor { } } }"), 1).ok());
}

}  // namespace
}  // namespace kiln
