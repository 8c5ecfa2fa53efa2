// What target gcu chooses, and whether its predictions hold on the simulator. Its results are
// compared by all other tests of this folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/codegen/gcu/launch.h"
#include "compiler/codegen/targets.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "compiler/schedule/gcu/groups.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/layout.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/gcu_device.h"
#include "tests/unit/compiler/codegen/gcu_launches.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using ::testing::HasSubstr;

TEST(GcuGroups, WhatFitsIsOneLaunchAndStaysOnTheChip) {
  ir::Module module = *ir::Parse(Chain(1, 16, 28, 4));
  Group(module);
  ASSERT_EQ(module.operations.size(), 1u);
  const auto& repeat = std::get<ir::Repeat>(module.operations[0]);
  EXPECT_TRUE(repeat.steps.empty());
  EXPECT_EQ(repeat.kernels.size(), 4u);
  const auto launch = gcu::MakeLaunch(module, module.operations[0], Reference());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->versions[0].l2.buffers.size(), 3u);
  EXPECT_EQ(launch->buffers.size(), 6u);  // weights, input, output
}

TEST(GcuGroups, WhatDoesNotFitRunsTileByTileOfTheBatch) {
  ir::Module module = *ir::Parse(Chain(64, 16, 112, 4));  // 51 MB a tensor
  Group(module);
  bool tiled = false;
  for (const ir::Operation& operation : module.operations) {
    const auto launch = gcu::MakeLaunch(module, operation, Reference());
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_LE(launch->kernel.l2_bytes, static_cast<uint32_t>(Reference().l2_bytes));
    const auto* repeat = std::get_if<ir::Repeat>(&operation);
    tiled = tiled || (repeat != nullptr && !repeat->steps.empty());
  }
  EXPECT_TRUE(tiled);
  ir::Module whole = *ir::Parse(Chain(64, 16, 112, 4));
  Group(whole, {"tlf"});
  for (const ir::Operation& operation : whole.operations) {
    const auto* repeat = std::get_if<ir::Repeat>(&operation);
    EXPECT_TRUE(repeat == nullptr || repeat->steps.empty());
  }
  ir::Module apart = *ir::Parse(Chain(64, 16, 112, 4));
  Group(apart, {"afe", "tlf"});
  EXPECT_EQ(apart.operations.size(), 4u);
}

TEST(GcuGroups, BuffersThatLiveTogetherLieApart) {
  ir::Module module = *ir::Parse(Chain(2, 32, 40, 6));
  Group(module);
  ASSERT_EQ(module.operations.size(), 1u);
  const auto versions = schedule::gcu::VersionsOf(module, module.operations[0]);
  ASSERT_TRUE(versions.ok());
  const auto plan = schedule::gcu::PlanL2(module, {}, versions->front());
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->buffers.size(), 5u);
  int64_t all = 0;
  for (const auto& a : plan->buffers) {
    all += a.bytes;
    EXPECT_LE(a.offset + a.bytes, plan->bytes);
    for (const auto& b : plan->buffers) {
      if (&a == &b || a.last < b.first || b.last < a.first) continue;
      EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset);
    }
  }
  EXPECT_LT(plan->bytes, all);  // places of dead buffers are taken again
}

TEST(GcuGroups, PredictionsHoldOnTheSimulator) {
  double error = 0;
  int count = 0;
  for (const std::string& text :
       {Chain(1, 16, 28, 4), Chain(2, 64, 28, 3), Chain(24, 32, 28, 3), Chain(1, 256, 14, 3)}) {
    ir::Module module = *ir::Parse(text);
    Group(module);
    for (const ir::Operation& operation : module.operations) {
      const auto launch = gcu::MakeLaunch(module, operation, Reference());
      ASSERT_TRUE(launch.ok()) << launch.status();
      const double seconds = Simulate(module, *launch);
      ASSERT_GT(seconds, 0);
      error += std::abs(launch->versions[0].seconds / seconds - 1);
      ++count;
    }
  }
  EXPECT_LT(error / count, 0.15);
}

TEST(GcuGroups, FusedIsFasterThanUnfusedWhereActivationsAreLong) {
  ir::Module fused = *ir::Parse(Chain(1, 16, 96, 4)), apart = *ir::Parse(Chain(1, 16, 96, 4));
  Group(fused);
  Group(apart, {"afe", "tlf"});
  ASSERT_EQ(fused.operations.size(), 1u);
  double together = 0, alone = 0;
  for (auto [module, sum] : {std::pair(&fused, &together), std::pair(&apart, &alone)}) {
    for (const ir::Operation& operation : module->operations) {
      const auto launch = gcu::MakeLaunch(*module, operation, Reference());
      ASSERT_TRUE(launch.ok()) << launch.status();
      *sum += Simulate(*module, *launch);
    }
  }
  EXPECT_LT(together * 1.3, alone);
}

// Each row's shares of its sum: rows of 256 KiB, of which so many are known at run time only.
std::string Shares(int64_t most_rows) {
  const std::string shape = "f32[s0,65536] strides[65536,1]";
  return absl::StrCat("module {\n symbol s0 [1, ", most_rows, "] hint 4\n buffer @x ", shape,
                      " input(0)\n buffer @t ", shape,
                      " temp\n buffer @u f32[s0] strides[1] temp\n buffer @y ", shape,
                      R"( output
  kernel @exps (d0: s0, d1: 65536) {
    phase () {
      %0 = load f32 @x[d0, d1]
      %1 = exp f32 %0
      store f32 @t[d0, d1], %1
    }
  }
  kernel @sums (d0: s0) {
    phase (r0: 65536) {
      %0 = load f32 @t[d0, r0]
      %1 = reduce.sum f32 %0
    }
    phase () {
      store f32 @u[d0], %1
    }
  }
  kernel @shares (d0: s0, d1: 65536) {
    phase () {
      %0 = load f32 @t[d0, d1]
      %1 = load f32 @u[d0]
      %2 = div f32 %0, %1
      store f32 @y[d0, d1], %2
    }
  }
  output @y sizes[s0,65536] strides[65536,1] offset 0
}
)");
}

TEST(GcuGroups, SizesOfRunTimeHaveVersions) {
  ir::Module module = *ir::Parse(Shares(1 << 20));
  Group(module);
  ASSERT_EQ(module.operations.size(), 1u);
  const auto& repeat = std::get<ir::Repeat>(module.operations[0]);
  ASSERT_GT(repeat.versions.size(), 1u);
  EXPECT_EQ(ir::Print(*ir::Parse(ir::Print(module))), ir::Print(module));
  const auto launch = gcu::MakeLaunch(module, module.operations[0], Reference());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_LE(launch->kernel.l2_bytes, static_cast<uint32_t>(Reference().l2_bytes));
  // All that fits is kept whole by the version for the largest such size, and not for one more.
  const gcu::LaunchVersion* whole = nullptr;
  for (const gcu::LaunchVersion& version : launch->versions) {
    if (version.plan.step == 0 && !version.plan.bucket.most.empty()) whole = &version;
  }
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->l2.buffers.size(), 2u);
  const int64_t rows = whole->plan.bucket.most[0];
  EXPECT_GE(rows, 55);
  EXPECT_LE(rows, Reference().l2_bytes / (65536 * 4));
  EXPECT_TRUE(launch->versions.back().plan.bucket.most.empty());
  EXPECT_GT(launch->versions.back().plan.step, 0);

  ir::Module plain = *ir::Parse(Shares(1 << 20));
  Group(plain, {"dafe"});
  for (const ir::Operation& operation : plain.operations) {
    const auto* one = std::get_if<ir::Repeat>(&operation);
    EXPECT_TRUE(one == nullptr || one->versions.empty());
  }
}

// Sizes at the limits of versions, and beyond them.
TEST(GcuGroups, EveryVersionIsRight) {
  ir::Module module = *ir::Parse(Shares(200));
  Group(module);
  std::vector<int64_t> sizes = {1};
  for (const ir::RepeatVersion& version : std::get<ir::Repeat>(module.operations[0]).versions) {
    if (version.most.empty()) continue;
    sizes.insert(sizes.end(), {version.most[0], version.most[0] + 1});
  }
  ASSERT_GE(sizes.size(), 5u);
  const auto launch = gcu::MakeLaunch(module, module.operations[0], Reference());
  ASSERT_TRUE(launch.ok()) << launch.status();
  GcuDevice device(Reference().profile);
  for (const int64_t rows : sizes) {
    std::vector<std::vector<float>> tensors;
    const std::vector<float>*x = nullptr, *y = nullptr;
    tensors.reserve(launch->buffers.size());
    for (const ir::BufferId id : launch->buffers) {
      const ir::Buffer& buffer = module.buffers[id];
      auto& tensor = tensors.emplace_back(static_cast<size_t>(rows) * 65536);
      if (buffer.kind == ir::BufferKind::kOutput) y = &tensor;
      if (buffer.kind != ir::BufferKind::kInput) continue;
      x = &tensor;
      for (size_t i = 0; i < tensor.size(); ++i) {
        tensor[i] = static_cast<float>(i * 7919 % 1009) / 500 - 1;
      }
    }
    ASSERT_TRUE(x != nullptr && y != nullptr);
    std::vector<HostBuffer> buffers;
    for (std::vector<float>& tensor : tensors) {
      buffers.push_back(
          {reinterpret_cast<char*>(tensor.data()), tensor.size() * sizeof(tensor[0])});
    }
    const auto times = device.Run(launch->kernel, buffers, std::vector<int64_t>{rows});
    ASSERT_TRUE(times.ok()) << rows << " rows: " << times.status();
    for (int64_t row = 0; row < rows; ++row) {
      const size_t begin = static_cast<size_t>(row) * 65536;
      double sum = 0;
      for (size_t i = begin; i < begin + 65536; ++i) sum += std::exp(double{(*x)[i]});
      for (size_t i = begin; i < begin + 65536; ++i) {
        const double expected = std::exp(double{(*x)[i]}) / sum;
        ASSERT_NEAR((*y)[i], expected, 1e-4 * expected) << rows << " rows, element " << i;
      }
    }
  }
}

// Rows of sequences of `batch`, normed, then two products over all of them as one matrix.
std::string Sequences(const std::string& symbol, const std::string& batch) {
  return absl::StrReplaceAll(R"(module {
SYMBOL  buffer @x f32[BATCH,24,32] strides[768,32,1] input(0)
  buffer @w f32[32,32] strides[32,1] input(1)
  buffer @n f32[BATCH,24,32] strides[768,32,1] temp
  buffer @a f32[24*BATCH,32] strides[32,1] temp
  buffer @b f32[24*BATCH,32] strides[32,1] temp
  buffer @y f32[BATCH,24,32] strides[768,32,1] output
  kernel @norm (d0: BATCH, d1: 24) {
    phase (r0: 32) {
      %0 = load f32 @x[d0, d1, r0]
      %1 = reduce.sum f32 %0
    }
    phase (r0: 32) {
      %2 = load f32 @x[d0, d1, r0]
      %3 = sub f32 %2, %1
      store f32 @n[d0, d1, r0], %3
    }
  }
  kernel @first contraction (d0: 24*BATCH, d1: 32) {
    phase (r0: 32) {
      %0 = load f32 @n[floordiv(d0, 24), mod(d0, 24), r0]
      %1 = load f32 @w[d1, r0]
      %2 = mul f32 %0, %1
      %3 = reduce.sum f32 %2
    }
    phase () {
      store f32 @a[d0, d1], %3
    }
  }
  kernel @second contraction (d0: 24*BATCH, d1: 32) {
    phase (r0: 32) {
      %0 = load f32 @a[d0, r0]
      %1 = load f32 @w[d1, r0]
      %2 = mul f32 %0, %1
      %3 = reduce.sum f32 %2
    }
    phase () {
      store f32 @b[d0, d1], %3
    }
  }
  kernel @last (d0: BATCH, d1: 24, d2: 32) {
    phase () {
      %0 = load f32 @b[24*d0 + d1, d2]
      %1 = load f32 @n[d0, d1, d2]
      %2 = add f32 %0, %1
      store f32 @y[d0, d1, d2], %2
    }
  }
  output @y sizes[BATCH,24,32] strides[768,32,1] offset 0
}
)",
                             {{"SYMBOL", symbol}, {"BATCH", batch}});
}

TEST(GcuGroups, KernelsBeforeAndAfterAReshapeHaveTheSameLoops) {
  for (const bool dynamic : {false, true}) {
    const std::string text =
        dynamic ? Sequences("  symbol s0 [1, 64] hint 4\n", "s0") : Sequences("", "5");
    const auto symbols = dynamic ? std::vector<int64_t>{5} : std::vector<int64_t>();
    ir::Module module = *ir::Parse(text);
    schedule::gcu::LayOut(module);
    ASSERT_EQ(ir::Verify(module), absl::OkStatus());
    for (const ir::Operation& operation : module.operations) {
      const auto& kernel = std::get<ir::Kernel>(operation);
      ASSERT_GE(kernel.outer.size(), 2u) << kernel.name;
      EXPECT_EQ(kernel.outer[0].extent(), module.buffers[0].sizes[0]) << kernel.name;
      EXPECT_TRUE(kernel.outer[1].extent().is_const(24)) << kernel.name;
    }
    for (const ir::Buffer& buffer : module.buffers) {
      if (buffer.kind == ir::BufferKind::kTemp) EXPECT_EQ(buffer.sizes.size(), 3u) << buffer.name;
    }
    CheckModule(text, {.symbols = symbols, .tolerance = 2e-4});
  }
}

// A reader that needs the rows as one, here turned around, keeps them so.
TEST(GcuGroups, WhatIsReadAsOneDimensionStaysOne) {
  std::string text = Sequences("", "5");
  text = absl::StrReplaceAll(text, {{"load f32 @a[d0, r0]", "load f32 @a[119 - d0, r0]"}});
  ir::Module module = *ir::Parse(text);
  schedule::gcu::LayOut(module);
  ASSERT_EQ(ir::Verify(module), absl::OkStatus());
  for (const ir::Buffer& buffer : module.buffers) {
    if (buffer.name == "a") EXPECT_EQ(buffer.sizes.size(), 2u);
  }
  CheckModule(text, {.tolerance = 2e-4});
}

constexpr char kIndices[] = R"(module {
  buffer @x i64[8] strides[1] input(0)
  buffer @y i64[8] strides[1] output
  kernel @k (d0: 8) {
    phase () {
      %0 = load i64 @x[d0]
      %1 = add i64 %0, %0
      store i64 @y[d0], %1
    }
  }
  output @y sizes[8] strides[1] offset 0
}
)";

TEST(GcuTarget, WhatTheDeviceLacksIsAKernelOfTheHost) {
  ir::Module module = *ir::Parse(kIndices);
  const auto target = TestTarget(TestDevice(kGcuIsa));
  auto tree = target->Schedule(module, module.operations[0]);
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_FALSE(tree->reasons.empty());
  EXPECT_THAT(tree->reasons[0], HasSubstr("on the host: the GCU has no"));
  const auto emitted = target->Print(module, *tree);
  ASSERT_TRUE(emitted.ok()) << emitted.status();
  EXPECT_EQ(emitted->binary, 0);
}

TEST(GcuTarget, PlansOfLaunchesSayHowTheyRun) {
  const auto target = TestTarget(TestDevice(kGcuIsa));
  const auto plans_of = [&](const std::string& text) {
    ir::Module module = *ir::Parse(text);
    target->Tile(module);
    std::vector<schedule::LaunchPlan> plans;
    for (const ir::Operation& operation : module.operations) {
      const auto tree = target->Schedule(module, operation);
      EXPECT_TRUE(tree.ok()) << tree.status();
      if (tree.ok()) plans.insert(plans.end(), tree->plans.begin(), tree->plans.end());
    }
    return plans;
  };
  // Fits L2 as it is.
  const std::vector<schedule::LaunchPlan> whole = plans_of(Chain(1, 16, 28, 4));
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].strategy, "AFE");
  EXPECT_EQ(whole[0].sizes, "");
  EXPECT_TRUE(whole[0].typical);
  EXPECT_EQ(whole[0].kernels, 4);
  EXPECT_GT(whole[0].l2_peak_bytes, 16 * 28 * 28 * 4);
  EXPECT_EQ(whole[0].l2_bytes, 16 << 20);
  EXPECT_EQ(whole[0].tile, 0);
  EXPECT_GT(whole[0].predicted_seconds, 10e-6) << "the launch alone takes that";
  EXPECT_GT(whole[0].unfused_seconds, whole[0].predicted_seconds);
  // 51 MB a tensor: images are taken some at a time.
  bool tiled = false;
  for (const schedule::LaunchPlan& plan : plans_of(Chain(64, 16, 112, 4))) {
    EXPECT_LE(plan.l2_peak_bytes, plan.l2_bytes);
    if (plan.strategy != "TLF") continue;
    tiled = true;
    EXPECT_EQ(plan.split_dimension, 0);
    EXPECT_THAT(plan.split_buffer, HasSubstr(" f32[64, 16, 112, 112]"));
    EXPECT_EQ(plan.tiles, (64 + plan.tile - 1) / plan.tile);
    EXPECT_GT(plan.tiles, 1);
  }
  EXPECT_TRUE(tiled);
}

TEST(GcuTarget, PrintsTheSameTextAgain) {
  const auto target = TestTarget(TestDevice(kGcuIsa));
  std::vector<std::string> texts;
  for (int i = 0; i < 2; ++i) {
    ir::Module module = *ir::Parse(Chain(3, 16, 28, 3));
    target->Tile(module);
    std::string& text = texts.emplace_back();
    for (const ir::Operation& operation : module.operations) {
      const auto emitted = target->Emit(module, operation);
      ASSERT_TRUE(emitted.ok()) << emitted.status();
      EXPECT_EQ(emitted->binary, 1);
      text += emitted->source;
    }
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(GcuTarget, OtherDevicesAreRefused) {
  const TargetKind& kind = **FindTarget("gcu");
  DeviceInfo device;
  device.arch = "gcu-1";
  EXPECT_THAT(std::string(kind.make(device).status().message()),
              HasSubstr("known are gcu-16m, gcu-s60"));
  device.arch = "gcu-16m";
  device.features = {"pdp-11"};
  EXPECT_THAT(std::string(kind.make(device).status().message()), HasSubstr("not 'pdp-11'"));
}

TEST(GcuTarget, DrawsWhatLiesInL2) {
  const auto target = TestTarget(TestDevice(kGcuIsa));
  ir::Module module = *ir::Parse(Chain(1, 16, 28, 4));
  target->Tile(module);
  const std::string picture = target->Picture(module);
  EXPECT_THAT(picture, HasSubstr("<svg "));
  EXPECT_THAT(picture, HasSubstr("k0: 4 kernels, L2 peak"));
  EXPECT_THAT(picture, HasSubstr("<title>t2: "));
  EXPECT_THAT(picture, HasSubstr("<title>k1: compute "));
}

}  // namespace
}  // namespace kiln::codegen
