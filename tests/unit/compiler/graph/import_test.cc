#include "compiler/graph/import.h"

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/error_detail.h"

namespace kiln::graph {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void SetTensor(v1::TensorType& type, const std::vector<int64_t>& sizes) {
  type.set_dtype(v1::DTYPE_FLOAT32);
  int64_t stride = 1;
  std::vector<int64_t> strides(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    type.add_sizes()->set_value(sizes[i]);
    type.add_strides()->set_value(strides[i]);
  }
}

// x: f32[2,3]; y = relu(x); returns y.
v1::Graph SmallGraph() {
  v1::Graph graph;
  graph.set_format_version(1);
  v1::Input& input = *graph.add_inputs();
  input.set_name("x");
  input.set_role(v1::Input::ROLE_USER);
  SetTensor(*input.mutable_type()->mutable_tensor(), {2, 3});
  v1::Node& node = *graph.add_nodes();
  node.set_name("relu_1");
  node.set_op("aten.relu.default");
  node.add_args()->set_value(0);
  SetTensor(*node.add_results()->mutable_tensor(), {2, 3});
  graph.add_outputs()->set_value(1);
  return graph;
}

absl::Status ImportStatus(const v1::Graph& graph) {
  ir::IntContext ints;
  return Import(graph, ints).status();
}

v1::SymExpr SymbolOf(uint32_t number) {
  v1::SymExpr expr;
  expr.set_kind(v1::SymExpr::KIND_SYMBOL);
  expr.set_symbol(number);
  return expr;
}

TEST(Import, TakesAGoodGraph) {
  ir::IntContext ints;
  const absl::StatusOr<Graph> graph = Import(SmallGraph(), ints);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(graph->nodes.size(), 1u);
  EXPECT_EQ(graph->nodes[0].op, "aten.relu.default");
  EXPECT_EQ(std::get<ValueRef>(graph->nodes[0].args[0].value), ValueRef{0});
  EXPECT_EQ(graph->nodes[0].results[0], ValueRef{1});
  EXPECT_EQ(std::get<ValueRef>(graph->outputs[0]), ValueRef{1});
  EXPECT_TRUE(std::get<TensorType>(graph->values[1]).sizes[1].is_const(3));
}

TEST(Import, AResultWithoutTypeIsLeftOut) {
  v1::Graph proto = SmallGraph();
  proto.mutable_nodes(0)->add_results();
  ir::IntContext ints;
  const absl::StatusOr<Graph> graph = Import(proto, ints);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(std::holds_alternative<None>(graph->values[graph->nodes[0].results[1].id]));
}

TEST(Import, SymbolsBecomeSharedExpressions) {
  v1::Graph proto = SmallGraph();
  v1::Symbol& symbol = *proto.add_symbols();
  symbol.set_name("s0");
  symbol.set_min(2);
  symbol.set_max(512);
  symbol.set_hint(16);
  for (v1::TensorType* type : {proto.mutable_inputs(0)->mutable_type()->mutable_tensor(),
                               proto.mutable_nodes(0)->mutable_results(0)->mutable_tensor()}) {
    *type->mutable_sizes(0)->mutable_expr() = SymbolOf(0);
  }
  v1::Input& size = *proto.add_inputs();
  size.set_role(v1::Input::ROLE_SYMBOL);
  *size.mutable_type()->mutable_sym_int()->mutable_expr() = SymbolOf(0);
  proto.mutable_outputs(0)->set_value(2);
  ir::IntContext ints;
  const absl::StatusOr<Graph> graph = Import(proto, ints);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const ir::IntExpr s0 = std::get<TensorType>(graph->values[0]).sizes[0];
  EXPECT_EQ(s0.kind(), ir::IntKind::kSymbol);
  EXPECT_EQ(std::get<TensorType>(graph->values[2]).sizes[0], s0);
  EXPECT_EQ(std::get<ir::IntExpr>(graph->values[1]), s0);
}

TEST(Import, SizesGivenAsValuesBecomeExpressions) {
  v1::Graph proto = SmallGraph();
  v1::Node& node = *proto.mutable_nodes(0);
  node.add_args()->mutable_sym_int()->set_value(7);
  ir::IntContext ints;
  const absl::StatusOr<Graph> graph = Import(proto, ints);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(std::get<int64_t>(graph->nodes[0].args[1].value), 7);
}

TEST(Import, NamesLoseWhatCouldEndAComment) {
  v1::Graph proto = SmallGraph();
  proto.mutable_nodes(0)->set_name("a*/ b\n");
  ir::IntContext ints;
  const absl::StatusOr<Graph> graph = Import(proto, ints);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->nodes[0].name, "a___b_");
}

// One change to the small graph, and the words that the refusal must hold.
struct Refusal {
  const char* name;
  std::function<void(v1::Graph&)> change;
  const char* place;
  const char* expected;
};

class ImportRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(ImportRefuses, NamingThePlaceAndWhatWasExpected) {
  v1::Graph graph = SmallGraph();
  GetParam().change(graph);
  const absl::Status status = ImportStatus(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(GetParam().place), HasSubstr(GetParam().expected)));
  const std::optional<v1::ErrorDetail> detail = GetDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason(), v1::ErrorDetail::REASON_BAD_GRAPH);
  EXPECT_THAT(detail->expected(), HasSubstr(GetParam().expected));
}

v1::TensorType& InputType(v1::Graph& graph) {
  return *graph.mutable_inputs(0)->mutable_type()->mutable_tensor();
}

v1::SymExpr& SizeExpr(v1::Graph& graph) {
  graph.add_symbols()->set_max(10);
  return *InputType(graph).mutable_sizes(0)->mutable_expr();
}

void AddConstant(v1::Graph& graph, const std::vector<int64_t>& sizes, size_t bytes) {
  v1::Constant& constant = *graph.add_constants();
  constant.set_name("c");
  SetTensor(*constant.mutable_type(), sizes);
  constant.set_data(std::string(bytes, '\0'));
}

void Nest(v1::Argument* arg, int depth) {
  for (int i = 0; i < depth; ++i) arg = arg->mutable_list()->add_items();
  arg->set_int_(1);
}

INSTANTIATE_TEST_SUITE_P(
    Each, ImportRefuses,
    testing::Values(
        Refusal{"Version", [](v1::Graph& g) { g.set_format_version(2); }, "graph", "version 1"},
        Refusal{"UnknownValue",
                [](v1::Graph& g) { g.mutable_nodes(0)->mutable_args(0)->set_value(9); }, "relu_1",
                "numbered below 1"},
        Refusal{"CycleToItself",
                [](v1::Graph& g) { g.mutable_nodes(0)->mutable_args(0)->set_value(1); }, "relu_1",
                "numbered below 1"},
        Refusal{"EmptyOperator", [](v1::Graph& g) { g.mutable_nodes(0)->set_op(""); }, "relu_1",
                "aten.add.Tensor"},
        Refusal{"OperatorWithQuote", [](v1::Graph& g) { g.mutable_nodes(0)->set_op("aten.\"x"); },
                "relu_1", "aten.add.Tensor"},
        Refusal{"ArgumentWithoutValue", [](v1::Graph& g) { g.mutable_nodes(0)->add_args(); },
                "relu_1", "Argument.kind"},
        Refusal{"DeepList", [](v1::Graph& g) { Nest(g.mutable_nodes(0)->add_args(), 80); },
                "relu_1", "at most 64 levels"},
        Refusal{"LongList",
                [](v1::Graph& g) {
                  auto* list = g.mutable_nodes(0)->add_args()->mutable_list();
                  for (int i = 0; i < kMaxListItems + 1; ++i) list->add_items()->set_int_(i);
                },
                "relu_1", "at most 100000"},
        Refusal{"LongString",
                [](v1::Graph& g) {
                  g.mutable_nodes(0)->add_args()->set_string(std::string(2000, 'x'));
                },
                "relu_1", "at most 1000"},
        Refusal{"KeywordTwice",
                [](v1::Graph& g) {
                  for (int i = 0; i < 2; ++i) {
                    v1::NamedArgument& arg = *g.mutable_nodes(0)->add_kwargs();
                    arg.set_name("dtype");
                    arg.mutable_value()->set_int_(1);
                  }
                },
                "relu_1", "once"},
        Refusal{"ArgumentDType",
                [](v1::Graph& g) {
                  g.mutable_nodes(0)->add_args()->set_dtype(static_cast<v1::DType>(99));
                },
                "relu_1", "one of DType"},
        Refusal{"UseOfALeftOutResult",
                [](v1::Graph& g) { g.mutable_nodes(0)->mutable_results(0)->clear_kind(); },
                "output 0", "a result that its node does not leave out"},
        Refusal{"InputRole", [](v1::Graph& g) { g.mutable_inputs(0)->clear_role(); }, "input 0 (x)",
                "user, parameter or symbol"},
        Refusal{"TensorAsSymbol",
                [](v1::Graph& g) { g.mutable_inputs(0)->set_role(v1::Input::ROLE_SYMBOL); },
                "input 0 (x)", "only for them"},
        Refusal{"DTypeZero", [](v1::Graph& g) { InputType(g).clear_dtype(); }, "input 0 (x)",
                "one of DType"},
        Refusal{"NegativeSize", [](v1::Graph& g) { InputType(g).mutable_sizes(0)->set_value(-1); },
                "input 0 (x)", "0 or more"},
        Refusal{"NegativeStride",
                [](v1::Graph& g) { InputType(g).mutable_strides(0)->set_value(-3); }, "input 0 (x)",
                "0 or more"},
        Refusal{"StridesMissing",
                [](v1::Graph& g) { InputType(g).mutable_strides()->RemoveLast(); }, "input 0 (x)",
                "as many strides as sizes"},
        Refusal{"Rank",
                [](v1::Graph& g) {
                  for (int i = 0; i < kMaxRank; ++i) {
                    InputType(g).add_sizes()->set_value(1);
                    InputType(g).add_strides()->set_value(1);
                  }
                },
                "input 0 (x)", "at most 32"},
        Refusal{"ProductOverflows",
                [](v1::Graph& g) {
                  for (int i = 0; i < 2; ++i) {
                    InputType(g).mutable_sizes(i)->set_value(int64_t{1} << 40);
                  }
                },
                "input 0 (x)", "elements"},
        Refusal{"ReachOverflows",
                [](v1::Graph& g) {
                  InputType(g).mutable_sizes(0)->set_value(int64_t{1} << 30);
                  InputType(g).mutable_strides(0)->set_value(int64_t{1} << 39);
                },
                "input 0 (x)", "elements from its start"},
        Refusal{"Offset",
                [](v1::Graph& g) { InputType(g).mutable_storage_offset()->set_value(-1); },
                "input 0 (x)", "0 to"},
        Refusal{"SizeWithoutValue", [](v1::Graph& g) { InputType(g).mutable_sizes(0)->Clear(); },
                "input 0 (x)", "a number or an expression"},
        Refusal{"SymbolRange",
                [](v1::Graph& g) {
                  g.add_symbols()->set_min(5);
                  g.mutable_symbols(0)->set_max(4);
                },
                "symbol", "not above the maximum"},
        Refusal{"UnknownSymbol", [](v1::Graph& g) { SizeExpr(g) = SymbolOf(3); }, "input 0 (x)",
                "a number below 1"},
        Refusal{"ExpressionKind",
                [](v1::Graph& g) { SizeExpr(g).set_kind(v1::SymExpr::KIND_UNSPECIFIED); },
                "input 0 (x)", "one of SymExpr.Kind"},
        Refusal{"DeepExpression",
                [](v1::Graph& g) {
                  v1::SymExpr* expr = &SizeExpr(g);
                  for (int i = 0; i < 90; ++i) {
                    expr->set_kind(v1::SymExpr::KIND_ADD);
                    *expr->add_operands() = SymbolOf(0);
                    expr = expr->add_operands();
                  }
                  *expr = SymbolOf(0);
                },
                "input 0 (x)", "at most 64 levels"},
        Refusal{"WideExpression",
                [](v1::Graph& g) {
                  v1::SymExpr& expr = SizeExpr(g);
                  expr.set_kind(v1::SymExpr::KIND_ADD);
                  for (int i = 0; i < 5000; ++i) *expr.add_operands() = SymbolOf(0);
                },
                "input 0 (x)", "operands in all"},
        Refusal{"LargeConstant", [](v1::Graph& g) { AddConstant(g, {50 << 18}, 50 << 20); },
                "constant 0 (c)", "at most 65536"},
        Refusal{"ConstantBytes", [](v1::Graph& g) { AddConstant(g, {4}, 15); }, "constant 0 (c)",
                "16 for its type"},
        Refusal{"ConstantStrides",
                [](v1::Graph& g) {
                  AddConstant(g, {2, 2}, 16);
                  g.mutable_constants(0)->mutable_type()->mutable_strides(1)->set_value(2);
                },
                "constant 0 (c)", "contiguous"},
        Refusal{"OutputValue", [](v1::Graph& g) { g.mutable_outputs(0)->set_value(2); }, "output 0",
                "numbered below 2"},
        Refusal{"OutputWithoutValue", [](v1::Graph& g) { g.mutable_outputs(0)->Clear(); },
                "output 0", "Output.kind"},
        Refusal{
            "MutationOfExpanded",
            [](v1::Graph& g) {
              g.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_strides(0)->set_value(
                  0);
              g.add_mutations()->set_value(1);
            },
            "mutation 0", "place of its own"},
        Refusal{
            "MutationOfOverlapping",
            [](v1::Graph& g) {
              g.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_strides(0)->set_value(
                  2);
              g.add_mutations()->set_value(1);
            },
            "mutation 0", "place of its own"},
        Refusal{"MutationInput", [](v1::Graph& g) { g.add_mutations()->set_input(1); },
                "mutation 0", "below 1"},
        Refusal{"MutationType",
                [](v1::Graph& g) {
                  g.mutable_nodes(0)->mutable_results(0)->mutable_tensor()->set_dtype(
                      v1::DTYPE_INT64);
                  g.add_mutations()->set_value(1);
                },
                "mutation 0", "equal element types"},
        Refusal{"MutationTwice",
                [](v1::Graph& g) {
                  for (int i = 0; i < 2; ++i) g.add_mutations()->set_value(1);
                },
                "input 0", "one final value"}),
    [](const testing::TestParamInfo<Refusal>& info) { return info.param.name; });

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Import, RefusesAMillionNodesAtOnce) {
  v1::Graph graph = SmallGraph();
  const v1::Node node = graph.nodes(0);
  for (int i = 0; i < 1'000'000; ++i) graph.add_nodes()->set_op("aten.relu.default");
  absl::Status status;
  EXPECT_LT(Seconds([&] { status = ImportStatus(graph); }), 1.0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 200000"));
}

// 12 divided by symbol 0, or what that leaves.
void DivideTwelve(v1::SymExpr& expr, v1::SymExpr::Kind kind) {
  expr.set_kind(kind);
  expr.add_operands()->set_kind(v1::SymExpr::KIND_CONSTANT);
  expr.mutable_operands(0)->set_constant(12);
  *expr.add_operands() = SymbolOf(0);
}

// x // x where x may be 0: such a run does not exist, but the expression must have a value.
TEST(Import, ADivisorThatMayBeZeroCountsAsOneThere) {
  v1::Graph graph = SmallGraph();
  v1::SymExpr& expr = SizeExpr(graph);
  graph.mutable_symbols(0)->set_hint(5);
  DivideTwelve(expr, v1::SymExpr::KIND_FLOOR_DIV);
  ir::IntContext ints;
  absl::StatusOr<Graph> imported = Import(graph, ints);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const auto& type = std::get<TensorType>(imported->values[0]);
  for (const auto& [symbol, size] : {std::pair<int64_t, int64_t>{0, 12}, {1, 12}, {5, 2}}) {
    EXPECT_EQ(ints.Evaluate(type.sizes[0], [&](ir::IntExpr) { return symbol; }), size);
  }
}

// 20 + 12 // x and 20 + 12 % x of an x of either sign, as an integer argument of Python's is.
TEST(Import, ADivisorMayBeOfEitherSign) {
  for (const auto& [kind, values] :
       {std::pair{v1::SymExpr::KIND_FLOOR_DIV, std::vector<int64_t>{2, -3, 12, -12, -1}},
        std::pair{v1::SymExpr::KIND_MOD, std::vector<int64_t>{2, -3, 0, 0, -1}}}) {
    v1::Graph graph = SmallGraph();
    SizeExpr(graph).set_kind(v1::SymExpr::KIND_ADD);
    v1::SymExpr& twenty = *SizeExpr(graph).add_operands();
    twenty.set_kind(v1::SymExpr::KIND_CONSTANT);
    twenty.set_constant(20);
    v1::SymExpr& expr = *SizeExpr(graph).add_operands();
    graph.mutable_symbols(0)->set_hint(5);
    graph.mutable_symbols(0)->set_min(-20);
    DivideTwelve(expr, kind);
    ir::IntContext ints;
    absl::StatusOr<Graph> imported = Import(graph, ints);
    ASSERT_TRUE(imported.ok()) << imported.status();
    const auto& type = std::get<TensorType>(imported->values[0]);
    const std::array<int64_t, 5> divisors = {5, -5, 1, -1, -13};
    for (size_t i = 0; i < divisors.size(); ++i) {
      EXPECT_EQ(ints.Evaluate(type.sizes[0], [&](ir::IntExpr) { return divisors[i]; }),
                20 + values[i]);
    }
  }
}

// (s - 10) // 5 + 1 of s is a size: no tensor has it where s is below 5.
TEST(Import, ASizeBoundsItsSymbolFromBelow) {
  v1::Graph graph = SmallGraph();
  const auto with_constant = [](v1::SymExpr::Kind kind, const v1::SymExpr& expr, int64_t constant) {
    v1::SymExpr made;
    made.set_kind(kind);
    *made.add_operands() = expr;
    made.add_operands()->set_kind(v1::SymExpr::KIND_CONSTANT);
    made.mutable_operands(1)->set_constant(constant);
    return made;
  };
  v1::SymExpr size = with_constant(v1::SymExpr::KIND_ADD, SymbolOf(0), -10);
  size = with_constant(v1::SymExpr::KIND_FLOOR_DIV, size, 5);
  SizeExpr(graph) = with_constant(v1::SymExpr::KIND_ADD, size, 1);
  graph.mutable_symbols(0)->set_max(100);
  graph.mutable_symbols(0)->set_hint(20);
  ir::IntContext ints;
  const absl::StatusOr<Graph> imported = Import(graph, ints);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(ints.symbols()[0].min, 5);
  const ir::IntExpr read = std::get<TensorType>(imported->values[0]).sizes[0];
  EXPECT_EQ(read.range().min, 0);
  EXPECT_EQ(read.range().max, 19);
}

// Simplifying them takes time, so a graph may not hold many.
TEST(Import, LargeExpressionsHaveABudget) {
  v1::Graph graph = SmallGraph();
  graph.add_symbols()->set_max(10);
  v1::SymExpr sum;
  sum.set_kind(v1::SymExpr::KIND_ADD);
  for (int i = 0; i < 1000; ++i) *sum.add_operands() = SymbolOf(0);
  v1::ValueType number;
  *number.mutable_sym_int()->mutable_expr() = sum;
  absl::Status status;
  const auto add_inputs = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v1::Input& input = *graph.add_inputs();
      input.set_role(v1::Input::ROLE_SYMBOL);
      *input.mutable_type() = number;
    }
    graph.mutable_outputs(0)->set_value(0);
    graph.clear_nodes();
    status = ImportStatus(graph);
  };
  add_inputs(100);
  EXPECT_TRUE(status.ok()) << status;
  add_inputs(100);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("large size expressions are too many"));
}

// Products of sums multiply out: without a bound such an expression would have 2^60 terms.
TEST(Import, AnExpressionCannotExplode) {
  v1::Graph graph = SmallGraph();
  for (int i = 0; i < 60; ++i) {
    v1::Symbol& symbol = *graph.add_symbols();
    symbol.set_name("s" + std::to_string(i));
    symbol.set_max(100);
  }
  v1::SymExpr& product = *InputType(graph).mutable_sizes(0)->mutable_expr();
  product.set_kind(v1::SymExpr::KIND_MUL);
  for (int i = 0; i < 30; ++i) {
    v1::SymExpr& sum = *product.add_operands();
    sum.set_kind(v1::SymExpr::KIND_ADD);
    *sum.add_operands() = SymbolOf(2 * i);
    *sum.add_operands() = SymbolOf(2 * i + 1);
  }
  EXPECT_LT(Seconds([&] { ImportStatus(graph).IgnoreError(); }), 5.0);  // either answer will do
}

}  // namespace
}  // namespace kiln::graph
