#include "client/launches_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::LaunchPlan& AddPlan(v1::Artifact& artifact, const std::string& symbol, double predicted_us) {
  v1::Debug::KernelSource& kernel = *artifact.mutable_debug()->add_kernels();
  kernel.set_symbol(symbol);
  kernel.add_ops("convolution");
  kernel.add_ops("relu");
  artifact.mutable_program()->add_steps()->mutable_launch()->set_kernel(symbol);
  v1::LaunchPlan& plan = *kernel.add_plans();
  plan.set_strategy("AFE");
  plan.set_typical(true);
  plan.set_kernels(3);
  plan.set_l2_peak_bytes(3 << 19);
  plan.set_l2_bytes(16 << 20);
  plan.set_predicted_us(predicted_us);
  plan.set_unfused_us(4 * predicted_us);
  return plan;
}

void AddTime(v1::Artifact& artifact, const std::string& symbol, double mean_us) {
  v1::DeviceTimes& times = *artifact.mutable_debug()->mutable_device_times();
  times.set_device("gcu-16m");
  v1::LaunchTime& time = *times.add_launches();
  time.set_kernel(symbol);
  time.set_launches(1);
  time.set_mean_us(mean_us);
}

TEST(LaunchesText, PlansStandBesideTimesWithTheirErrors) {
  v1::Artifact artifact;
  AddPlan(artifact, "a", 110);
  artifact.mutable_program()->add_steps()->mutable_launch()->set_kernel("a");
  v1::LaunchPlan& tiled = AddPlan(artifact, "b", 45);
  tiled.set_strategy("TLF");
  tiled.set_tile(2);
  tiled.set_tiles(16);
  tiled.set_split_buffer("relu f32[32, 64, 56, 56]");
  AddTime(artifact, "a", 100);
  AddTime(artifact, "b", 50);
  const std::string text = LaunchesText(artifact);
  EXPECT_THAT(text, HasSubstr("simulated: on gcu-16m, random inputs\n"));
  EXPECT_THAT(text, HasSubstr("a, 2 launches: convolution, relu\n"));
  EXPECT_THAT(
      text, HasSubstr("        3    1.50 of 16      110.0      440.0      100.0    +10.0  AFE\n"));
  EXPECT_THAT(text, HasSubstr("     45.0      180.0       50.0    -10.0  TLF, 16 tiles of 2 in "
                              "dimension 0 of relu f32[32, 64, 56, 56]\n"));
  EXPECT_THAT(text, HasSubstr("all 3 launches: predicted 265.0 us, unfused 1060.0 us, simulated "
                              "250.0 us, error +6.0 %; mean error of a launch 10.0 %\n"));
}

TEST(LaunchesText, WhatPreparesParametersIsNoLaunchOfARun) {
  v1::Artifact artifact;
  AddPlan(artifact, "once", 1000);
  AddPlan(artifact, "a", 10);
  artifact.mutable_program()->set_prepare_steps(1);
  AddTime(artifact, "a", 8);
  const std::string text = LaunchesText(artifact);
  EXPECT_THAT(text, Not(HasSubstr("once")));
  EXPECT_THAT(text, HasSubstr("all 1 launches: predicted 10.0 us, unfused 40.0 us, simulated 8.0"));
}

TEST(LaunchesText, ATimeStandsBesideTheVersionThatRan) {
  v1::Artifact artifact;
  AddPlan(artifact, "a", 10).set_sizes("s0 <= 8");
  v1::LaunchPlan& other = *artifact.mutable_debug()->mutable_kernels(0)->add_plans();
  other = artifact.debug().kernels(0).plans(0);
  artifact.mutable_debug()->mutable_kernels(0)->mutable_plans(0)->set_typical(false);
  other.set_sizes("other sizes");
  other.set_predicted_us(30);
  AddTime(artifact, "a", 40);
  const std::string text = LaunchesText(artifact);
  EXPECT_THAT(text, HasSubstr("     10.0       40.0          -        -  DAFE: AFE for s0 <= 8\n"));
  EXPECT_THAT(text,
              HasSubstr("     30.0       40.0       40.0    -25.0  DAFE: AFE for other sizes\n"));
  EXPECT_THAT(text, HasSubstr("all 1 launches: predicted 30.0 us"));
}

TEST(LaunchesText, WithoutARunThereArePredictionsAlone) {
  v1::Artifact artifact;
  AddPlan(artifact, "a", 10);
  const std::string text = LaunchesText(artifact);
  EXPECT_THAT(text, HasSubstr("simulated: not run\n"));
  EXPECT_THAT(text, HasSubstr("all 1 launches: predicted 10.0 us, unfused 40.0 us\n"));
  EXPECT_THAT(text, Not(HasSubstr("mean error")));
}

TEST(LaunchesText, OtherTargetsHaveNone) {
  v1::Artifact artifact;
  artifact.mutable_debug()->add_kernels()->set_symbol("a");
  EXPECT_EQ(LaunchesText(artifact), "");
}

TEST(LaunchesText, LaunchesOfAKernelAreOneRow) {
  runtime::DeviceRun ran;
  ran.device = "gcu-16m";
  ran.launches = {{"a", 10, 64}, {"b", 5, 0}, {"a", 20, 32}};
  const v1::DeviceTimes times = TimesOf(ran);
  EXPECT_EQ(times.device(), "gcu-16m");
  ASSERT_EQ(times.launches_size(), 2);
  EXPECT_EQ(times.launches(0).kernel(), "a");
  EXPECT_EQ(times.launches(0).launches(), 2);
  EXPECT_DOUBLE_EQ(times.launches(0).mean_us(), 15);
  EXPECT_EQ(times.launches(0).l2_peak_bytes(), 64);
  EXPECT_EQ(times.launches(1).kernel(), "b");
}

}  // namespace
}  // namespace kiln
