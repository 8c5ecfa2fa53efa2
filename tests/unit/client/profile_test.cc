// Times of a program's steps, their table and their trace.
#include "client/cli/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kiln/v1/artifact.pb.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Profile, TimesEveryStepInItsOrder) {
  auto program = Program::Load(ToArtifactFile(testing::Sealed(testing::AddAndDouble(4))), 1);
  ASSERT_TRUE(program.ok()) << program.status();
  float data[4] = {1, 2, 3, 4};
  const int64_t size = 4;
  const kiln_tensor tensor = testing::Vector(data, size);
  auto steps = Profile(**program, {tensor, tensor}, 5);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_EQ((*steps)[0].name, "test_add");
  EXPECT_EQ((*steps)[0].begin_us, 0);
  EXPECT_GE((*steps)[1].begin_us, (*steps)[0].last_us);
  for (const StepTime& step : *steps) EXPECT_GT(step.median_us, 0);
  EXPECT_FALSE(Profile(**program, {tensor}, 1).ok());
}

TEST(Profile, TheTableBeginsWithWhatTakesLongest) {
  const StepTime small{KILN_STEP_KERNEL, "small", "add_1", 25, 20, 0, 25};
  const StepTime large{KILN_STEP_LIBRARY, "aten.topk.default", "topk", 50, 40, 25, 50};
  const std::string text = ProfileTable({small, large, small}, 2);
  EXPECT_THAT(text, AllOf(HasSubstr("3, 100.0 us in all"),
                          HasSubstr("50.0 us  50.0 %       40.0 us  library"),
                          HasSubstr("small (2 of it)  add_1")));
  EXPECT_LT(text.find("aten.topk.default"), text.find("small"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(ProfileTable({}, 2), Not(HasSubstr("nan")));
}

TEST(Profile, ATraceHasAnEventAStep) {
  const std::string text = ChromeTrace({StepTime{KILN_STEP_KERNEL, "k\"1", "add", 3, 3, 1.5, 2}});
  EXPECT_THAT(text, AllOf(HasSubstr("\"name\": \"k\\\"1\""), HasSubstr("\"ph\": \"X\""),
                          HasSubstr("\"ts\": 1.500"), HasSubstr("\"dur\": 2.000"),
                          HasSubstr("\"nodes\": \"add\"")));
}

}  // namespace
}  // namespace kiln::cli
