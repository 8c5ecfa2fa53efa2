#include "compiler/kernels_ahead.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/compiler.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/device_gpu.h"
#include "tests/unit/compiler/codegen/attention_graphs.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln {
namespace {

using codegen::AttentionCase;
using lowering::GraphMaker;

v1::PlanResponse Plan(const v1::Graph& graph) {
  v1::PlanRequest request;
  *request.mutable_graph() = graph;
  *request.mutable_device() = *DescribeGpu("sm_90a");
  auto plan = PlanGraph(request, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::PlanResponse();
}
v1::PlanResponse Plan(const AttentionCase& c) {
  return Plan(codegen::AttentionGraph(c).proto());
}

// Activations [rows, depth] by weights [columns, depth].
int Multiply(int x, int weights, int64_t rows, int64_t columns, int64_t depth, GraphMaker& g) {
  const v1::DType type = v1::DTYPE_BFLOAT16;
  const int turned =
      g.Node("aten.permute.default", {lowering::Value(weights), lowering::IntList({1, 0})},
             {depth, columns}, type);
  return g.Node("aten.mm.default", {lowering::Value(x), lowering::Value(turned)}, {rows, columns},
                type);
}

// The end of a layer: what goes around it and a product of activations [rows, depth], a part of
// tensors that are `pitch` wide, and weights [columns, depth].
v1::PlanResponse PlanProduct(int64_t rows, int64_t columns, int64_t depth, int64_t pitch) {
  GraphMaker g;
  const v1::DType type = v1::DTYPE_BFLOAT16;
  const int wide = g.Input({rows, pitch}, {}, type), weights = g.Input({columns, depth}, {}, type),
            around = g.Input({rows, columns}, {}, type);
  int x = wide;
  if (pitch != depth) {
    x = g.Node("aten.slice.Tensor",
               {lowering::Value(wide), lowering::Int(1), lowering::Int(0), lowering::Int(depth)},
               {rows, depth}, type);
    v1::TensorType& part = *g.proto().mutable_nodes(0)->mutable_results(0)->mutable_tensor();
    part.mutable_strides(0)->set_value(pitch);
  }
  const int sums = Multiply(x, weights, rows, columns, depth, g);
  g.Output(g.Node("aten.add.Tensor", {lowering::Value(around), lowering::Value(sums)},
                  {rows, columns}, type));
  return Plan(g.proto());
}

// The end of a first layer: around it are rows of a table of embeddings.
v1::PlanResponse PlanProductWithTable(int64_t rows, int64_t columns, int64_t depth,
                                      int64_t table_rows) {
  GraphMaker g;
  const v1::DType type = v1::DTYPE_BFLOAT16;
  const int x = g.Input({rows, depth}, {}, type), weights = g.Input({columns, depth}, {}, type),
            table = g.Input({table_rows, columns}, {}, type),
            numbers = g.Input({rows}, {}, v1::DTYPE_INT64);
  const int sums = Multiply(x, weights, rows, columns, depth, g);
  const int around =
      g.Node("aten.embedding.default", {lowering::Value(table), lowering::Value(numbers)},
             {rows, columns}, type);
  g.Output(g.Node("aten.add.Tensor", {lowering::Value(around), lowering::Value(sums)},
                  {rows, columns}, type));
  return Plan(g.proto());
}

v1::CompileKernelRequest RequestOf(const v1::KernelSource& kernel) {
  v1::CompileKernelRequest request;
  request.set_source(kernel.source());
  *request.mutable_device() = *DescribeGpu("sm_90a");
  return request;
}

// Both are that one.
void ExpectOneKernel(const v1::PlanResponse& plan, const v1::PlanResponse& other) {
  ASSERT_EQ(plan.kernels_size(), 1);
  ASSERT_EQ(other.kernels_size(), 1);
  EXPECT_EQ(plan.kernels(0).source(), other.kernels(0).source());
}
bool Passes(const v1::PlanResponse& plan, int64_t value) {
  return absl::c_any_of(plan.program().steps(0).launch().symbols(),
                        [=](const v1::SymInt& symbol) { return symbol.value() == value; });
}
void ExpectThatTheBuildHas(const v1::KernelSource& kernel) {
  const v1::CompileKernelRequest request = RequestOf(kernel);
  const auto found = FindKernelAhead(KernelsAhead(), *KernelKeyOf(request));
  ASSERT_TRUE(found.has_value());
  const auto compiled = CompileKernel(request);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(*found, compiled->object());
}

int Count(absl::string_view text, absl::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(KernelsAheadTest, AListHasKernelsByTheirKeys) {
  const Digest one = Sha256("one"), two = Sha256("two");
  const std::string list = KernelAheadText(one, "a\nb 3\n") + KernelAheadText(two, "");
  EXPECT_EQ(FindKernelAhead(list, one), "a\nb 3\n");
  EXPECT_EQ(FindKernelAhead(list, two), "");
  EXPECT_EQ(FindKernelAhead(list, Sha256("three")), std::nullopt);
  EXPECT_EQ(FindKernelAhead("", one), std::nullopt);
  EXPECT_EQ(FindKernelAhead("no list\n", one), std::nullopt);
  ASSERT_EQ(ReadKernelsAhead(list).size(), 2u);
  EXPECT_EQ(ReadKernelsAhead(list)[0].key, one.ToHex());
  EXPECT_EQ(ReadKernelsAhead(list)[1].object, "");
  EXPECT_EQ(ReadKernelsAhead(list.substr(0, list.size() - 80)).size(), 0u) << "it ends early";
}

TEST(KernelsAheadTest, AttentionOfOtherSizesIsTheSameKernelAndABuildHasIt) {
  const float scale = 1 / std::sqrt(128.0f);
  const AttentionCase first = {.batches = 2,
                               .heads = 16,
                               .key_heads = 16,
                               .queries = 1024,
                               .keys = 1024,
                               .width = 128,
                               .is_causal = true,
                               .scale = scale};
  AttentionCase other = first;
  other.batches = 3;
  other.heads = 10;
  other.key_heads = 2;
  other.queries = 384;
  other.keys = 640;
  const v1::PlanResponse plan = Plan(first), other_plan = Plan(other);
  ASSERT_NO_FATAL_FAILURE(ExpectOneKernel(plan, other_plan));
  const v1::LaunchStep& launch = plan.program().steps(0).launch();
  const v1::LaunchStep& other_launch = other_plan.program().steps(0).launch();
  ASSERT_EQ(launch.symbols_size(), other_launch.symbols_size());
  EXPECT_EQ(launch.symbols_size(), Count(plan.kernels(0).source(), ", long size"));
  EXPECT_EQ(launch.symbols(0).value(), 2);
  EXPECT_EQ(other_launch.symbols(0).value(), 3);

  if (KernelsAhead().empty()) GTEST_SKIP() << "builds with sanitizers have no kernels ahead";
  ExpectThatTheBuildHas(plan.kernels(0));

  other.scale = 0.3;  // is in the kernel
  const v1::PlanResponse scaled = Plan(other);
  ASSERT_EQ(scaled.kernels_size(), 1);
  EXPECT_NE(scaled.kernels(0).source(), plan.kernels(0).source());
  EXPECT_EQ(FindKernelAhead(KernelsAhead(), *KernelKeyOf(RequestOf(scaled.kernels(0)))),
            std::nullopt);
}

TEST(KernelsAheadTest, ProductsOfOtherSizesAreTheSameKernelAndABuildHasIt) {
  const v1::PlanResponse plan = PlanProduct(2048, 4096, 4096, 4096);
  const v1::PlanResponse other = PlanProduct(4096, 2048, 5632, 3 * 5632);
  ASSERT_NO_FATAL_FAILURE(ExpectOneKernel(plan, other));
  const v1::LaunchStep& launch = plan.program().steps(0).launch();
  EXPECT_EQ(launch.symbols_size(), Count(plan.kernels(0).source(), ", long size"));
  for (const int64_t value : {2048, 4096 / 8, 4096}) EXPECT_TRUE(Passes(plan, value)) << value;
  for (const int64_t value : {4096, 2048 / 8, 5632, 3 * 5632}) {
    EXPECT_TRUE(Passes(other, value)) << value;
  }
  // Rows of results that end within a tile, and odd columns, are other kernels.
  EXPECT_NE(PlanProduct(2047, 4096, 4096, 4096).kernels(0).source(), plan.kernels(0).source());

  if (KernelsAhead().empty()) GTEST_SKIP() << "builds with sanitizers have no kernels ahead";
  ExpectThatTheBuildHas(plan.kernels(0));
}

TEST(KernelsAheadTest, ATablesNumberOfRowsIsOneOfTheLaunchToo) {
  const v1::PlanResponse plan = PlanProductWithTable(2048, 2048, 2048, 32000);
  const v1::PlanResponse other = PlanProductWithTable(4096, 1024, 1024, 151936);
  ASSERT_NO_FATAL_FAILURE(ExpectOneKernel(plan, other));
  EXPECT_TRUE(Passes(other, 151936));
  if (KernelsAhead().empty()) GTEST_SKIP() << "builds with sanitizers have no kernels ahead";
  ExpectThatTheBuildHas(plan.kernels(0));
}

// Where a GPU's kernel finds what comes behind its sizes follows from their number: it has to name
// those that only the sizes of buffers, its grid and its maps depend on, too.
TEST(KernelsAheadTest, KernelsOfGpusNameAllSizesThatALaunchPasses) {
  for (const int64_t queries : {1, 70}) {
    for (const auto mask : {v1::DTYPE_UNSPECIFIED, v1::DTYPE_BOOL}) {
      SCOPED_TRACE(absl::StrCat(queries, " queries, mask ", mask));
      const v1::PlanResponse plan =
          Plan({.queries = queries, .keys = 256, .mask = mask, .is_dynamic = true});
      ASSERT_EQ(plan.kernels_size(), 1);
      const v1::LaunchStep& launch = plan.program().steps(0).launch();
      EXPECT_GE(launch.symbols_size(), 1);
      EXPECT_EQ(Count(plan.kernels(0).source(), "long size"), launch.symbols_size());
    }
  }
}

}  // namespace
}  // namespace kiln
