#include "client/runtime/launch_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/loader.h"
#include "client/runtime/executor.h"
#include "kiln/client.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kStep = 1;

// Step 1 has two alternatives.
v1::Program ThreeCandidates() {
  v1::Program program;
  program.add_steps()->mutable_launch()->set_kernel("other");
  v1::LaunchStep& launch = *program.add_steps()->mutable_launch();
  launch.set_kernel("k");
  launch.set_alternatives(2);
  launch.set_choice(std::string(32, 'c'));
  program.add_steps()->mutable_launch()->set_kernel("k1");
  program.add_steps()->mutable_launch()->set_kernel("k2");
  return program;
}

class LaunchChoicesTest : public ::testing::Test {
 protected:
  int Choose(bool repeats = true, bool may_time = true) {
    return choices_.Choose(kStep, repeats, may_time,
                           [this](int candidate) -> absl::StatusOr<double> {
                             ++timed_[static_cast<size_t>(candidate)];
                             const double us = us_[static_cast<size_t>(candidate)];
                             if (us < 0) return absl::InternalError("it faults");
                             return us;
                           });
  }
  std::vector<uint32_t> Decided() {
    std::vector<uint32_t> out;
    for (const auto& one : choices_.TakeDecided()) {
      EXPECT_EQ(one.key, std::string(32, 'c'));
      out.push_back(one.chosen);
    }
    return out;
  }

  runtime::LaunchChoices choices_{ThreeCandidates()};
  std::vector<double> us_ = {10, 8, 9};
  std::vector<int> timed_ = {0, 0, 0};
};

TEST_F(LaunchChoicesTest, TheFastestIsTakenFromThenOnAndToldOnce) {
  EXPECT_TRUE(choices_.any());
  EXPECT_EQ(Choose(), 1);
  const std::vector<int> timed = timed_;
  EXPECT_GT(timed[0], 1);
  EXPECT_EQ(timed[0], timed[1]);
  EXPECT_EQ(timed[0], timed[2]);
  us_ = {1, 1, 1};
  EXPECT_EQ(Choose(), 1);
  EXPECT_EQ(timed_, timed) << "nothing is timed again";
  EXPECT_EQ(choices_.timed(), 1);
  EXPECT_THAT(Decided(), ElementsAre(1));
  EXPECT_THAT(Decided(), IsEmpty());
  EXPECT_EQ(Choose(), 1);
}

TEST_F(LaunchChoicesTest, WhatIsHardlyFasterIsChance) {
  us_ = {10, 9.9, 9.85};
  EXPECT_EQ(Choose(), 0);
  EXPECT_THAT(Decided(), ElementsAre(0));
}

TEST_F(LaunchChoicesTest, OneThatFailsIsLeftOutAtOnce) {
  us_ = {-1, -1, 30};
  EXPECT_EQ(Choose(), 2);
  EXPECT_EQ(timed_[0], 1);
  EXPECT_THAT(Decided(), ElementsAre(2));
}

TEST_F(LaunchChoicesTest, WhereAllFailTheCompilersRuns) {
  us_ = {-1, -1, -1};
  EXPECT_EQ(Choose(), 0);
}

TEST_F(LaunchChoicesTest, ALaunchThatCannotRunTwiceStaysAsItIs) {
  EXPECT_EQ(Choose(/*repeats=*/false), 0);
  EXPECT_THAT(timed_, ElementsAre(0, 0, 0));
  EXPECT_EQ(choices_.timed(), 0);
  EXPECT_THAT(Decided(), ElementsAre(0)) << "nobody need try again";
}

TEST_F(LaunchChoicesTest, ARunThatCannotTimeLeavesItToALaterOne) {
  EXPECT_EQ(Choose(/*repeats=*/true, /*may_time=*/false), 0);
  EXPECT_THAT(Decided(), IsEmpty());
  EXPECT_EQ(Choose(), 1);
}

TEST(Alternatives, AreTimedInARunWhoseResultIsAsEver) {
  auto program = Program::Load(ToArtifactFile(Sealed(AddEitherWay(4))), 1);
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<float> a = {1, 2, 3, 4}, b = {10, 20, 30, 40};
  const int64_t size = 4;
  for (int run = 0; run < 3; ++run) {
    auto outputs = (*program)->Run({Vector(a.data(), size), Vector(b.data(), size)});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const auto* out = static_cast<const float*>(outputs->span()[0].data);
    EXPECT_THAT(std::vector<float>(out, out + 4), ElementsAre(12, 24, 36, 48));
    EXPECT_EQ((*program)->loaded().executor().choices().TakeDecided().size(), run == 0 ? 1 : 0);
  }
}

TEST(Alternatives, UnsoundOnesAreRefused) {
  const auto error = [](const std::function<void(v1::Program&)>& damage) {
    v1::Artifact artifact = AddEitherWay(4);
    damage(*artifact.mutable_program());
    const absl::Status status = Program::Load(ToArtifactFile(Sealed(artifact)), 1).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  };
  const auto launch = [](v1::Program& p, int step) {
    return p.mutable_steps(step)->mutable_launch();
  };
  EXPECT_THAT(error([&](v1::Program& p) { launch(p, 1)->set_alternatives(2); }),
              HasSubstr("more alternatives than there are steps"));
  EXPECT_THAT(error([&](v1::Program& p) { launch(p, 1)->set_alternatives(4294967295); }),
              HasSubstr("more alternatives than there are steps"));
  EXPECT_THAT(error([&](v1::Program& p) { launch(p, 1)->set_choice("short"); }),
              HasSubstr("no key of their choice"));
  EXPECT_THAT(error([&](v1::Program& p) { launch(p, 0)->set_alternatives(1); }),
              HasSubstr("prepare step with alternatives"));
  EXPECT_THAT(error([&](v1::Program& p) {
                launch(p, 2)->set_alternatives(1);
                *p.add_steps() = p.steps(2);
              }),
              HasSubstr("as an alternative, which is none"));
  EXPECT_THAT(error([&](v1::Program& p) {
                *p.add_buffers() = p.buffers(3);
                p.mutable_buffers(4)->set_kind(v1::Buffer::KIND_WORKSPACE);
                p.mutable_workspace_bytes()->set_value(16);
                launch(p, 2)->set_buffers(2, 4);
              }),
              HasSubstr("writes other buffers"));
}

}  // namespace
}  // namespace kiln::testing
