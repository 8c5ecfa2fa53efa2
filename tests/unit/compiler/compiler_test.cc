#include "compiler/compiler.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/stage_runner.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/key.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kMatrix[] =
    "tensor { dtype: DTYPE_FLOAT32 sizes { value: 8 } sizes { value: 8 } "
    "strides { value: 8 } strides { value: 1 } }";

// relu(x @ w), then again with the same w: two equal layers.
v1::PlanRequest TwoLayers() {
  const std::string type = kMatrix;
  const std::string text = absl::StrCat(
      "graph { format_version: 1 "
      "inputs { name: 'x' role: ROLE_USER type { ",
      type,
      " } } "
      "inputs { name: 'w' role: ROLE_PARAMETER type { ",
      type,
      " } } "
      "nodes { name: 'mm' op: 'aten.mm.default' args { value: 0 } args { value: 1 } results { ",
      type,
      " } } "
      "nodes { name: 'relu' op: 'aten.relu.default' args { value: 2 } results { ",
      type,
      " } } "
      "nodes { name: 'mm_1' op: 'aten.mm.default' args { value: 3 } args { value: 1 } results { ",
      type,
      " } } "
      "nodes { name: 'relu_1' op: 'aten.relu.default' args { value: 4 } results { ",
      type,
      " } } "
      "outputs { value: 5 } } "
      "device { target: TARGET_CPP arch: 'x86-64' }");
  v1::PlanRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

TEST(CompilerTest, EqualLayersShareOneKernelAndLaunchItTwice) {
  const auto plan = PlanGraph(TwoLayers(), nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kernels_size(), 1);
  ASSERT_EQ(plan->program().steps_size(), 2);
  EXPECT_EQ(plan->program().steps(0).launch().kernel(), plan->kernels(0).symbol());
  EXPECT_EQ(plan->program().steps(1).launch().kernel(), plan->kernels(0).symbol());
  const auto& first = plan->program().steps(0).launch().buffers();
  const auto& second = plan->program().steps(1).launch().buffers();
  EXPECT_THAT(second, ElementsAre(first[2], first[1], ::testing::Ne(first[2])))
      << "what the first layer stored, and the same weight";
  EXPECT_THAT(plan->kernels(0).source(), HasSubstr(plan->kernels(0).symbol()));
}

// Sums of the rows of three matrices.
v1::PlanRequest ThreeSums(const std::string& device) {
  const auto tensor = [](const std::string& sizes, const std::string& strides) {
    return absl::StrCat("type { tensor { dtype: DTYPE_FLOAT32 ", sizes, strides, "} } ");
  };
  const std::string matrix = tensor("sizes { value: 64 } sizes { value: 8192 } ",
                                    "strides { value: 8192 } strides { value: 1 } ");
  const std::string column =
      "tensor { dtype: DTYPE_FLOAT32 sizes { value: 64 } strides { value: 1 } } ";
  std::string text = "graph { format_version: 1 ";
  for (const char* name : {"a", "b", "c"}) {
    absl::StrAppend(&text, "inputs { name: '", name, "' role: ROLE_USER ", matrix, "} ");
  }
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&text, "nodes { name: 'sum_", i,
                    "' op: 'aten.sum.dim_IntList' args { value: ", i,
                    " } args { list { items { int: 1 } } } results { ", column, "} } ");
  }
  for (int i = 3; i < 6; ++i) absl::StrAppend(&text, "outputs { value: ", i, " } ");
  absl::StrAppend(&text, "} device { ", device, " }");
  v1::PlanRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

TEST(CompilerTest, EqualKernelsThatNeedNotWaitAreOneLaunchOfAGpu) {
  const std::string gpu = "target: TARGET_PTX arch: 'sm_90a'";
  const auto plan = PlanGraph(ThreeSums(gpu), nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->program().steps_size(), 1);
  EXPECT_EQ(plan->program().steps(0).launch().buffers_size(), 6);
  EXPECT_THAT(plan->kernels(0).ops(), ElementsAre("sum_0", "sum_1", "sum_2"));
  // Each has its own schedules to choose from then.
  v1::PlanRequest request = ThreeSums(gpu);
  request.mutable_options()->set_autotune(true);
  const auto tuned = PlanGraph(request, nullptr);
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_GE(tuned->program().steps_size(), 3);
  const auto cpu = PlanGraph(ThreeSums("target: TARGET_CPP arch: 'x86-64'"), nullptr);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->program().steps_size(), 3);
}

TEST(CompilerTest, LaunchesHaveAlternativesWhereAsked) {
  v1::PlanRequest request = TwoLayers();
  request.mutable_options()->set_autotune(true);
  const auto plan = PlanGraph(request, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::set<std::string> known, launched;
  for (const v1::KernelSource& kernel : plan->kernels()) known.insert(kernel.symbol());
  const auto& steps = plan->program().steps();
  const auto alternatives = static_cast<int>(steps[0].launch().alternatives());
  ASSERT_GT(alternatives, 0);
  ASSERT_EQ(steps.size(), 2 * (1 + alternatives)) << "both layers have the same";
  for (int i = 0; i < steps.size(); ++i) {
    launched.insert(steps[i].launch().kernel());
    const int first = i <= alternatives ? 0 : alternatives + 1;
    EXPECT_EQ(steps[i].launch().alternatives(), i == first ? alternatives : 0) << i;
    EXPECT_THAT(steps[i].launch().buffers(),
                ::testing::UnorderedElementsAreArray(steps[first].launch().buffers()));
  }
  EXPECT_EQ(launched.size(), static_cast<size_t>(1 + alternatives));
  EXPECT_EQ(launched, known);
}

// Sizes s0 to s5 in some order, contiguous.
std::string SixSizes(const std::vector<int>& order) {
  std::string text = "tensor { dtype: DTYPE_FLOAT32 ";
  for (int symbol : order) {
    absl::StrAppend(&text, "sizes { expr { kind: KIND_SYMBOL symbol: ", symbol, " } } ");
  }
  for (size_t d = 0; d < order.size(); ++d) {
    absl::StrAppend(&text,
                    "strides { expr { kind: KIND_MUL operands { kind: KIND_CONSTANT constant: 1 } "
                    "operands { kind: KIND_CONSTANT "
                    "constant: 1 } ");
    for (size_t k = d + 1; k < order.size(); ++k) {
      absl::StrAppend(&text, "operands { kind: KIND_SYMBOL symbol: ", order[k], " } ");
    }
    absl::StrAppend(&text, "} } ");
  }
  return text + "}";
}

// `length` times: permuted, laid out anew, read as other sizes, relu.
v1::PlanRequest ChainOfViews(int length) {
  std::vector<int> order = {0, 1, 2, 3, 4, 5};
  std::string text = "graph { format_version: 1 ";
  for (int s = 0; s < 6; ++s) {
    absl::StrAppend(&text, "symbols { name: 's", s, "' min: 2 max: 1000 hint: ", s + 3, " } ");
  }
  absl::StrAppend(&text, "inputs { name: 'x' role: ROLE_USER type { ", SixSizes(order), " } } ");
  std::mt19937 random(1);
  int value = 0;
  const auto node = [&](absl::string_view op, const std::string& list) {
    absl::StrAppend(&text, "nodes { name: 'n", value, "' op: '", op, "' args { value: ", value,
                    " } ", list.empty() ? "" : absl::StrCat("args { list { ", list, "} } "),
                    "results { ", SixSizes(order), " } } ");
    ++value;
  };
  for (int link = 0; link < length; ++link) {
    std::string permuted, sizes;
    std::vector<int> dimensions = {0, 1, 2, 3, 4, 5};
    std::shuffle(dimensions.begin(), dimensions.end(), random);
    std::vector<int> turned;
    for (int dimension : dimensions) {
      turned.push_back(order[dimension]);
      absl::StrAppend(&permuted, "items { int: ", dimension, " } ");
    }
    order = turned;
    node("aten.permute.default", permuted);
    node("aten.clone.default", "");
    std::shuffle(order.begin(), order.end(), random);
    for (int symbol : order) {
      absl::StrAppend(&sizes, "items { sym_int { expr { kind: KIND_SYMBOL symbol: ", symbol,
                      " } } } ");
    }
    node("aten.view.default", sizes);
    node("aten.relu.default", "");
  }
  absl::StrAppend(&text, "outputs { value: ", value,
                  " } } device { target: TARGET_CPP arch: 'x86-64' }");
  v1::PlanRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

size_t SourceBytes(const v1::PlanResponse& plan) {
  size_t bytes = 0;
  for (const v1::KernelSource& kernel : plan.kernels()) bytes += kernel.source().size();
  return bytes;
}

// Each view puts the last one's indices into quotients and remainders, as does fusion: uncut, the
// text of six dimensions grows sixfold with each link.
TEST(CompilerTest, IndicesOfLongChainsOfViewsStayShort) {
  const auto one = PlanGraph(ChainOfViews(1), nullptr), ten = PlanGraph(ChainOfViews(10), nullptr);
  ASSERT_TRUE(one.ok() && ten.ok()) << one.status() << ten.status();
  EXPECT_GT(ten->program().steps_size(), 2);
  EXPECT_LT(ten->program().steps_size(), 20);
  EXPECT_LT(SourceBytes(*ten), 12 * SourceBytes(*one));
}

// Sums of products of sums as sizes: multiplied out, each has thousands of terms.
TEST(CompilerTest, SizesThatMultiplyOutToThousandsOfTermsAreRefused) {
  v1::PlanRequest request = ChainOfViews(1);
  v1::Graph& graph = *request.mutable_graph();
  for (v1::Symbol& symbol : *graph.mutable_symbols()) {
    symbol.set_min(1);
    symbol.set_max(2);  // so that the products fit 64 bits
    symbol.set_hint(2);
  }
  for (int number = 0; number < 40; ++number) {
    v1::SymExpr& product = *graph.add_outputs()->mutable_sym_int()->mutable_expr();
    product.set_kind(v1::SymExpr::KIND_MUL);
    for (int factor = 0; factor < 12; ++factor) {
      v1::SymExpr& sum = *product.add_operands();
      sum.set_kind(v1::SymExpr::KIND_ADD);
      for (uint32_t symbol = 0; symbol < 6; ++symbol) {
        v1::SymExpr& term = *sum.add_operands();
        term.set_kind(v1::SymExpr::KIND_SYMBOL);
        term.set_symbol(symbol);
      }
      v1::SymExpr& constant = *sum.add_operands();
      constant.set_kind(v1::SymExpr::KIND_CONSTANT);
      constant.set_constant((number + factor) % 3);
    }
  }
  const auto plan = PlanGraph(request, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(plan.status())) << plan.status();
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("multiplied out"));
}

TEST(CompilerTest, AStageThatUsesUpTheBudgetFailsWithAReason) {
  ir::Module module;
  const ir::IntExpr size = module.ints->NewSymbol("s0", 1, 100, 10);
  module.ints->set_budget(100);
  StageRunner stages(module, nullptr, false);
  const absl::Status status = stages.Run("lower", [&] {
    ir::IntExpr sum = size;
    for (int i = 2; i < 100; ++i) sum = module.ints->Add(module.ints->Mod(sum, i), size);
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lower: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("100 steps"));
}

TEST(CompilerTest, KernelsCompileAndLink) {
  const v1::PlanRequest request = TwoLayers();
  const auto plan = PlanGraph(request, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  v1::LinkRequest link;
  *link.mutable_device() = request.device();
  EXPECT_GT(plan->routines_size(), 0);
  for (const auto* sources : {&plan->kernels(), &plan->routines()}) {
    for (const v1::KernelSource& source : *sources) {
      v1::CompileKernelRequest compile;
      compile.set_source(source.source());
      *compile.mutable_device() = request.device();
      const auto object = CompileKernel(compile);
      ASSERT_TRUE(object.ok()) << object.status();
      link.add_objects(object->object());
    }
  }
  const auto linked = LinkKernels(link);
  ASSERT_TRUE(linked.ok()) << linked.status();
  EXPECT_EQ(linked->binary().substr(1, 3), "ELF");
  EXPECT_TRUE(linked->binaries().empty());
  link.mutable_objects()->RemoveLast();
  EXPECT_THAT(std::string(LinkKernels(link).status().message()), HasSubstr("undefined"))
      << "without a routine";
}

TEST(CompilerTest, PlansAreReproducible) {
  const auto a = PlanGraph(TwoLayers(), nullptr);
  const auto b = PlanGraph(TwoLayers(), nullptr);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->kernels(0).source(), b->kernels(0).source());
  EXPECT_EQ(a->program().SerializeAsString(), b->program().SerializeAsString());
}

TEST(CompilerTest, AKernelsKeyIsThatOfWhatIsCompiled) {
  v1::CompileKernelRequest request;
  request.set_source("extern \"C\" int One() { return 1; }\n");
  request.mutable_device()->set_target(v1::TARGET_CPP);
  request.mutable_device()->set_arch("znver4");
  request.mutable_device()->add_features("avx2");
  request.mutable_device()->add_features("avx");
  request.mutable_device()->set_l2_bytes(1 << 20);
  const Digest key = KernelKeyOf(request).value();
  auto with = [&](auto change) {
    v1::CompileKernelRequest changed = request;
    change(*changed.mutable_device(), *changed.mutable_options());
    return KernelKeyOf(changed).value();
  };
  using Device = v1::Device;
  using Options = v1::CompileOptions;
  EXPECT_NE(with([](Device& d, Options&) { d.set_arch("znver3"); }), key);
  EXPECT_NE(with([](Device& d, Options&) { d.add_features("fma"); }), key);
  EXPECT_NE(with([](Device&, Options& o) { o.set_optimization_level(3); }), key);
  EXPECT_NE(with([](Device&, Options& o) { o.set_fast_math(true); }), key);
  EXPECT_NE(with([](Device&, Options& o) { o.set_debug(true); }), key);  // with its assembly
  // The default's level, the order of features, and what only the planner reads.
  EXPECT_EQ(with([](Device&, Options& o) { o.set_optimization_level(kDefaultOptimizationLevel); }),
            key);
  EXPECT_EQ(with([](Device& d, Options&) { d.mutable_features()->SwapElements(0, 1); }), key);
  EXPECT_EQ(with([](Device& d, Options&) { d.add_features("avx"); }), key);
  EXPECT_EQ(with([](Device& d, Options&) { d.set_l2_bytes(1 << 21); }), key);
  EXPECT_EQ(with([](Device& d, Options&) { d.add_libraries("torch"); }), key);
  EXPECT_EQ(with([](Device&, Options& o) { o.set_disable_fusion(true); }), key);
  // A level that no compile has is refused, as by the compile itself.
  request.mutable_options()->set_optimization_level(4);
  EXPECT_EQ(KernelKeyOf(request).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CompileKernel(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CompilerTest, DebugKeepsIrAfterEachStageAndDecisions) {
  v1::PlanRequest request = TwoLayers();
  request.mutable_options()->set_debug(true);
  const auto plan = PlanGraph(request, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> stages;
  for (const v1::Debug::StageIr& ir : plan->debug().ir()) stages.push_back(ir.stage());
  EXPECT_THAT(stages, ElementsAre("lower", "fuse", "tile", "schedule"));
  EXPECT_GT(plan->debug().decisions_size(), 0);
  std::vector<std::string> timed;
  for (const v1::StageTime& time : plan->stages()) timed.push_back(time.stage());
  EXPECT_THAT(timed, ElementsAre("import", "lower", "fuse", "tile", "plan_memory", "schedule",
                                 "emit", "assemble"));
}

TEST(CompilerTest, WithoutFusionEveryOperatorIsAKernel) {
  v1::PlanRequest request = TwoLayers();
  request.mutable_options()->set_disable_fusion(true);
  const auto plan = PlanGraph(request, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->program().steps_size(), 4);
}

TEST(CompilerTest, TheStopCheckEndsThePlan) {
  int calls = 0;
  const auto plan = PlanGraph(TwoLayers(), [&calls] {
    return ++calls < 3 ? absl::OkStatus() : absl::CancelledError("nobody waits");
  });
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 3);
}

TEST(CompilerTest, ErrorsNameTheStageAndTheNode) {
  v1::PlanRequest request = TwoLayers();
  request.mutable_graph()->mutable_nodes(2)->mutable_args(0)->set_value(77);
  const auto plan = PlanGraph(request, nullptr);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("mm_1"));
  ASSERT_TRUE(GetDetail(plan.status()).has_value());
  EXPECT_EQ(GetDetail(plan.status())->node(), "mm_1");
}

TEST(CompilerTest, AnOperatorWithoutALoweringNeedsAClientThatHasIt) {
  v1::PlanRequest request = TwoLayers();
  request.mutable_graph()->mutable_nodes(1)->set_op("aten.no_such_op.default");
  EXPECT_EQ(PlanGraph(request, nullptr).status().code(), absl::StatusCode::kUnimplemented);
  request.mutable_device()->add_libraries("torch");
  const auto plan = PlanGraph(request, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int library_steps = 0;
  for (const v1::Step& step : plan->program().steps()) library_steps += step.has_library();
  EXPECT_EQ(library_steps, 1);
}

TEST(CompilerTest, TargetsThatThisBuildLacksAreRefused) {
  v1::PlanRequest request = TwoLayers();
  request.mutable_device()->set_target(static_cast<v1::Target>(99));
  EXPECT_EQ(PlanGraph(request, nullptr).status().code(), absl::StatusCode::kUnimplemented);
  request.mutable_device()->clear_target();
  EXPECT_EQ(PlanGraph(request, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CompilerTest, TheInterpreterRunsTheGraphOnGivenInputs) {
  v1::InterpretRequest request;
  *request.mutable_graph() = TwoLayers().graph();
  std::vector<float> x(64), w(64);
  for (int i = 0; i < 64; ++i) {
    x[i] = std::sin(static_cast<float>(i));
    w[i] = std::cos(static_cast<float>(3 * i));
  }
  for (const std::vector<float>* values : {&x, &w}) {
    v1::TensorData& data = *request.add_inputs();
    data.mutable_type()->set_dtype(v1::DTYPE_FLOAT32);
    for (int d = 0; d < 2; ++d) data.mutable_type()->add_sizes()->set_value(8);
    data.set_data(values->data(), values->size() * sizeof(float));
  }
  std::string bytes;
  const absl::Status status = InterpretGraph(request, [&bytes](const v1::InterpretEvent& event) {
    if (event.has_output()) bytes = event.output().data();
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  std::vector<double> actual(64);
  ASSERT_EQ(bytes.size(), actual.size() * sizeof(double));
  std::memcpy(actual.data(), bytes.data(), bytes.size());

  std::vector<double> at(x.begin(), x.end());
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<double> next(64);
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 8; ++j) {
        double sum = 0;
        for (int k = 0; k < 8; ++k) sum += at[8 * i + k] * w[8 * k + j];
        next[8 * i + j] = std::max(sum, 0.0);
      }
    }
    at = next;
  }
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(actual[i], at[i], 1e-9) << i;
}

TEST(CompilerTest, TheInterpreterRefusesInputsThatDoNotFit) {
  v1::InterpretRequest request;
  *request.mutable_graph() = TwoLayers().graph();
  auto ignore = [](const v1::InterpretEvent&) { return absl::OkStatus(); };
  v1::TensorData& data = *request.add_inputs();
  data.mutable_type()->set_dtype(v1::DTYPE_FLOAT32);
  data.mutable_type()->add_sizes()->set_value(8);
  data.set_data("short");
  EXPECT_EQ(InterpretGraph(request, ignore).code(), absl::StatusCode::kInvalidArgument);
  data.set_data(std::string(32, '\0'));
  EXPECT_EQ(InterpretGraph(request, ignore).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CompilerTest, EachTargetsBuildNamesSharedAndOwnSourcesAndToolchain) {
  const std::vector<CompilerTarget> targets = CompilerTargets();
  ASSERT_EQ(targets.front().name, "cpp") << "older clients take it for the only one";
  EXPECT_THAT(targets.front().toolchain, HasSubstr("clang"));
  std::set<std::string> own;
  for (const CompilerTarget& target : targets) {
    const std::vector<std::string> parts = absl::StrSplit(target.build, absl::MaxSplits(' ', 2));
    ASSERT_GE(parts.size(), 2u) << target.build;
    EXPECT_EQ(parts[0].size(), 16u);
    EXPECT_EQ(parts[0], targets.front().build.substr(0, 16));
    EXPECT_EQ(parts[1].size(), 16u);
    EXPECT_TRUE(own.insert(parts[1]).second) << target.name << " has another's hash";
    if (!target.toolchain.empty()) EXPECT_EQ(parts[2], target.toolchain);
  }
}

}  // namespace
}  // namespace kiln
