#include "compiler/joint_launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// to = from * factor
std::string Scale(const std::string& from, const std::string& to, double factor = 2) {
  return absl::StrReplaceAll(R"(
  kernel @FROM_to_TO (d0: 64) {
    phase () {
      %0 = load f32 @FROM[d0]
      %1 = const f32 FACTOR
      %2 = mul f32 %0, %1
      store f32 @TO[d0], %2
    }
  })",
                             {{"FROM", from}, {"TO", to}, {"FACTOR", absl::StrCat(factor)}});
}

std::vector<std::vector<size_t>> Find(const std::vector<std::string>& inputs,
                                      const std::vector<std::string>& temps,
                                      const std::vector<std::string>& outputs,
                                      const std::string& kernels, size_t most_buffers = 480) {
  std::string text = "module {\n";
  const auto add = [&](const std::string& name, const std::string& kind) {
    absl::StrAppend(&text, "buffer @", name, " f32[64] strides[1] ", kind, "\n");
  };
  for (size_t i = 0; i < inputs.size(); ++i) add(inputs[i], absl::StrCat("input(", i, ")"));
  for (const std::string& name : temps) add(name, "temp");
  for (const std::string& name : outputs) add(name, "output");
  text += kernels;
  for (const std::string& name : outputs) {
    absl::StrAppend(&text, "\noutput @", name, " sizes[64] strides[1] offset 0");
  }
  absl::StatusOr<ir::Module> module = ir::Parse(text + "\n}\n");
  EXPECT_TRUE(module.ok()) << module.status() << text;
  const absl::StatusOr<memory::Plan> plan = memory::PlanMemory(*module);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return FindJointLaunches(*module, *plan, ir::Identify(*module), most_buffers);
}

TEST(JointLaunchesTest, EqualKernelsOfOtherBuffersAreOne) {
  EXPECT_THAT(Find({"a", "b", "c"}, {}, {"x", "y", "z"},
                   Scale("a", "x") + Scale("b", "y") + Scale("c", "z")),
              ElementsAre(ElementsAre(0, 1, 2), IsEmpty(), IsEmpty()));
  EXPECT_THAT(Find({"a", "b", "c"}, {}, {"x", "y", "z"},
                   Scale("a", "x") + Scale("b", "y", 3) + Scale("c", "z")),
              ElementsAre(ElementsAre(0, 2), IsEmpty(), IsEmpty()));
  EXPECT_THAT(Find({"a", "b", "c"}, {}, {"x", "y", "z"},
                   Scale("a", "x") + Scale("b", "y") + Scale("c", "z"), 4),
              ElementsAre(ElementsAre(0, 1), IsEmpty(), IsEmpty()));
}

TEST(JointLaunchesTest, WhatReadsAnothersResultWaits) {
  EXPECT_THAT(Find({"a"}, {}, {"x", "y"}, Scale("a", "x") + Scale("x", "y")),
              ElementsAre(IsEmpty(), IsEmpty()));
  // Of something between, too.
  EXPECT_THAT(
      Find({"a", "b"}, {}, {"x", "y", "z"}, Scale("a", "x") + Scale("b", "y", 3) + Scale("y", "z")),
      ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
}

TEST(JointLaunchesTest, BuffersOfOneInputAreOnePlace) {
  // Without memory plans of their own: @b is the input that @a is, and is stored to.
  ir::Module module = *ir::Parse(absl::StrCat(R"(module {
  buffer @a f32[64] strides[1] input(0)
  buffer @b f32[64] strides[1] input(0)
  buffer @c f32[64] strides[1] input(1)
  buffer @x f32[64] strides[1] output)",
                                              Scale("a", "x"), Scale("c", "b"), "\n}\n"));
  const memory::Plan plan{.offsets = std::vector<ir::IntExpr>(4),
                          .in_place_of = std::vector<ir::BufferId>(4, -1)};
  EXPECT_THAT(FindJointLaunches(module, plan, ir::Identify(module), 480),
              ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(JointLaunchesTest, MemoryThatIsUsedAgainIsNotWrittenEarlier) {
  // @s and @t lie in one place, which the second kernel still reads.
  EXPECT_THAT(Find({"a", "b"}, {"s", "t"}, {"x", "y"},
                   Scale("a", "s") + Scale("s", "x", 3) + Scale("b", "t") + Scale("t", "y", 5)),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), IsEmpty()));
}

}  // namespace
}  // namespace kiln
