#include "compiler/kernels_ahead.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/compiler.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/device_gpu.h"
#include "tests/unit/compiler/codegen/attention_graphs.h"

namespace kiln {
namespace {

using codegen::AttentionCase;

v1::PlanResponse Plan(const AttentionCase& c) {
  v1::PlanRequest request;
  *request.mutable_graph() = codegen::AttentionGraph(c).proto();
  *request.mutable_device() = *DescribeGpu("sm_90a");
  auto plan = PlanGraph(request, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::PlanResponse();
}

v1::CompileKernelRequest RequestOf(const v1::KernelSource& kernel) {
  v1::CompileKernelRequest request;
  request.set_source(kernel.source());
  *request.mutable_device() = *DescribeGpu("sm_90a");
  return request;
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
  ASSERT_EQ(plan.kernels_size(), 1);
  ASSERT_EQ(other_plan.kernels_size(), 1);
  EXPECT_EQ(plan.kernels(0).source(), other_plan.kernels(0).source());
  const v1::LaunchStep& launch = plan.program().steps(0).launch();
  const v1::LaunchStep& other_launch = other_plan.program().steps(0).launch();
  ASSERT_EQ(launch.symbols_size(), other_launch.symbols_size());
  EXPECT_EQ(launch.symbols_size(), Count(plan.kernels(0).source(), ", long size"));
  EXPECT_EQ(launch.symbols(0).value(), 2);
  EXPECT_EQ(other_launch.symbols(0).value(), 3);

  if (KernelsAhead().empty()) GTEST_SKIP() << "builds with sanitizers have no kernels ahead";
  const v1::CompileKernelRequest request = RequestOf(plan.kernels(0));
  const auto found = FindKernelAhead(KernelsAhead(), *KernelKeyOf(request));
  ASSERT_TRUE(found.has_value());
  const auto compiled = CompileKernel(request);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(*found, compiled->object());

  other.scale = 0.3;  // is in the kernel
  const v1::PlanResponse scaled = Plan(other);
  ASSERT_EQ(scaled.kernels_size(), 1);
  EXPECT_NE(scaled.kernels(0).source(), plan.kernels(0).source());
  EXPECT_EQ(FindKernelAhead(KernelsAhead(), *KernelKeyOf(RequestOf(scaled.kernels(0)))),
            std::nullopt);
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
