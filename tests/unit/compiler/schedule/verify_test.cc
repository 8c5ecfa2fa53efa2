// What the verifier refuses, and what the interpreter finds that no verifier can.
#include "compiler/schedule/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/schedule/interpret.h"
#include "compiler/schedule/parse.h"
#include "compiler/schedule/print.h"

namespace kiln::schedule {
namespace {

using ::testing::HasSubstr;

// A module with @x f32[64], @n i64[64] and the output @y f32[64].
std::string Module(const std::string& body) {
  return absl::StrCat(R"(module {
  buffer @x f32[64] strides[1] input(0)
  buffer @n i64[64] strides[1] input(1)
  buffer @y f32[64] strides[1] output
  schedule @k {
)",
                      body, R"(
  }
  output @y sizes[64] strides[1] offset 0
})");
}

absl::Status Check(const std::string& body) {
  absl::StatusOr<Scheduled> scheduled = Parse(Module(body));
  EXPECT_TRUE(scheduled.ok()) << scheduled.status() << "\n" << body;
  if (!scheduled.ok()) return scheduled.status();
  return Verify(scheduled->module, scheduled->trees[0]);
}

void ExpectRefused(const std::string& body, const std::string& why) {
  const absl::Status status = Check(body);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << body;
  EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << body;
}

constexpr char kSum[] = R"(
    open a0 f32[16] sum in reg
    for r0 < 64, vector 16 {
      %0 = load f32 @x[r0]
      update a0[mod(r0, 16)], %0
    }
    %1 = combine f32 a0
    for d0 < 64, task vector 16 {
      store f32 @y[d0], %1
    })";

std::string SumWith(const std::string& from, const std::string& to) {
  std::string text = kSum;
  EXPECT_THAT(text, HasSubstr(from));
  return absl::StrReplaceAll(text, {{from, to}});
}

TEST(ScheduleVerifyTest, TakesARightTree) {
  EXPECT_TRUE(Check(kSum).ok()) << Check(kSum);
}

TEST(ScheduleVerifyTest, AccessesOutside) {
  ExpectRefused(SumWith("@x[r0]", "@x[r0 + 1]"), "reaches 64 of 64");
  ExpectRefused(SumWith("@y[d0]", "@y[d0 - 1]"), "reaches -1 of 64");
  ExpectRefused(SumWith("r0 < 64, vector", "r0 < 64 from 0 to 80, vector"), "variable's range");
  ExpectRefused("let r0 < 8 = 9", "variable's range");
  ExpectRefused(R"(open a0 f32[16] in l1
    micro zero(a0[1]; 16))",
                "micro zero, window 0: reaches 16 of 16");
}

// A window that only the ranges of lets and minima keep inside.
TEST(ScheduleVerifyTest, ProvesTiles) {
  const std::string tiles = R"(
    for d0 < 4, task {
      let r0 < 65 = 20*d0
      let r1 < 65 = min(64, 20*d0 + 20)
      for r2 < 64 from r0 to r1, vector 4 {
        %0 = load f32 @x[r2]
        store f32 @y[r2], %0
      }
    })";
  EXPECT_TRUE(Check(tiles).ok()) << Check(tiles);
  ExpectRefused(absl::StrReplaceAll(tiles, {{"min(64, 20*d0 + 20)", "20*d0 + 20"}}), "range");
}

TEST(ScheduleVerifyTest, Scopes) {
  ExpectRefused(SumWith("@y[d0], %1", "@y[d0], %0"), "%0 is not in scope");
  ExpectRefused(R"(
    for d0 < 64, task {
      open a0 f32[1] in l1
    }
    for r0 < 4 {
      open a1 f32[1] in l1
      %0 = load f32 @x[r0]
      store f32 a1[0], %0
      %0 = load f32 a1[0]
    })",
                "%0 is defined twice");
  ExpectRefused(R"(
    for r0 < 4 {
      open a0 f32[1] in l1
    }
    %0 = load f32 a0[0])",
                "is not open");
}

TEST(ScheduleVerifyTest, Types) {
  ExpectRefused(SumWith("load f32 @x", "load f32 @n"), "type is not the memory's");
  ExpectRefused(SumWith("open a0 f32", "open a0 f64"), "another type than its value");
  ExpectRefused(SumWith("combine f32", "combine f64"), "value has another type");
}

TEST(ScheduleVerifyTest, Bindings) {
  ExpectRefused("for r0 < 4, vector 4 {\n for r1 < 4, vector 4 {\n}\n}", "stands in another");
  ExpectRefused("for r0 < 4 {\n for d0 < 4, task {\n}\n}", "tasks stands in another loop");
  ExpectRefused("for d0 < 4 from 1 to 4, task {\n}", "does not begin at 0");
  ExpectRefused("for r0 < 4, vector 1 {\n}", "has 1 lanes");
  ExpectRefused("for r0 < 4, vector 4 {\n if r0 < 2 {\n}\n}", "lanes would branch apart");
}

TEST(ScheduleVerifyTest, Accumulators) {
  ExpectRefused(SumWith("mod(r0, 16)", "0"), "one element for each lane");
  ExpectRefused(SumWith("mod(r0, 16)", "mod(r0, 8)"), "one element for each lane");
  ExpectRefused(SumWith("a0 f32[16]", "a0 f32[8]"), "one element for each lane");
  ExpectRefused(SumWith("r0 < 64, vector", "r0 < 64 from 1 to 64, vector"), "begin at a multiple");
  ExpectRefused(SumWith("%1 = combine f32 a0", "%1 = load f32 a0[0]"), "accessed as memory");
  ExpectRefused(SumWith("in reg", "in l1"), "is no register");
}

TEST(ScheduleVerifyTest, TasksThatShareAnAccumulator) {
  ExpectRefused(R"(
    open a0 f32[1] sum in reg
    for d0 < 64, task {
      %0 = load f32 @x[d0]
      update a0[0], %0
    })",
                "tasks or groups share an accumulator");
}

TEST(ScheduleVerifyTest, Groups) {
  // The trees of this test have teams of one thread.
  ExpectRefused("for r0 < 4, group 2 {\n}", "a team of 1 has no groups of 2");
  ExpectRefused("for r0 < 4, group 1 {\n for r1 < 4, group 1 {\n}\n}",
                "in one of lanes or of groups");
  ExpectRefused("for r0 < 4, vector 4 {\n for r1 < 4, group 1 {\n}\n}",
                "in one of lanes or of groups");
  ExpectRefused("for r0 < 4, group 1 {\n %0 = load f32 @x[r0]\n store f32 @y[3], %0\n}",
                "each iteration of a parallel loop stores there");
}

TEST(ScheduleVerifyTest, StoresOfAllIterationsToOnePlace) {
  ExpectRefused("for d0 < 4, task {\n %0 = load f32 @x[d0]\n store f32 @y[3], %0\n}",
                "each iteration of a parallel loop stores there");
  ExpectRefused("for r0 < 4, vector 4 {\n %0 = load f32 @x[r0]\n store f32 @y[3], %0\n}",
                "each iteration of a parallel loop stores there");
  // To memory of its own it may, and to a place that a let derives from the loop.
  EXPECT_TRUE(Check(R"(
    for d0 < 4, task {
      open a0 f32[1] in l1
      %0 = load f32 @x[d0]
      store f32 a0[0], %0
      let r0 < 64 = 2*d0
      store f32 @y[r0], %0
    })")
                  .ok());
}

TEST(ScheduleVerifyTest, TheStackIsBounded) {
  ExpectRefused("open a0 f64[60000] in l1\nopen a1 f64[6000] in l1", "memory exceeds 524288");
  EXPECT_TRUE(
      Check("for r0 < 4 {\nopen a0 f64[60000] in l1\n}\nfor r1 < 4 {\nopen a1 f64[60000] in "
            "l1\n}")
          .ok());
}

absl::Status RunTree(const std::string& body) {
  absl::StatusOr<Scheduled> scheduled = Parse(Module(body));
  EXPECT_TRUE(scheduled.ok()) << scheduled.status();
  const absl::Status verified = Verify(scheduled->module, scheduled->trees[0]);
  EXPECT_TRUE(verified.ok()) << verified;
  const HostTensor x{DType::kF32, {64}, {1}, std::string(64 * 4, '\0')};
  const HostTensor n{DType::kI64, {64}, {1}, std::string(64 * 8, '\0')};
  return Interpret(scheduled->module, scheduled->trees, {x, n}, {}, {}).status();
}

TEST(ScheduleInterpretTest, FindsRaces) {
  const std::string body = R"(
    for d0 < 64, task {
      %0 = load f32 @x[d0]
      store f32 @y[mod(d0, 7)], %0
    })";
  EXPECT_THAT(std::string(RunTree(body).message()), HasSubstr("race for element"));
  // One reads what another writes.
  EXPECT_THAT(std::string(RunTree(R"(
    open a0 f32[64] in l1
    for r0 < 64 {
      %0 = load f32 @x[r0]
      store f32 a0[r0], %0
    }
    for r1 < 64, vector 8 {
      %1 = load f32 a0[-r1 + 63]
      store f32 a0[r1], %1
    })")
                              .message()),
              HasSubstr("race for element"));
  EXPECT_TRUE(RunTree(absl::StrReplaceAll(body, {{"mod(d0, 7)", "mod(3*d0, 64)"}})).ok());
}

// Gradients of one head of 2 queries and 3 keys, which add to @s.
constexpr char kGradients[] = R"(module {
  buffer @x bf16[192] strides[1] input(0)
  buffer @r f32[2] strides[1] input(1)
  buffer @y bf16[384] strides[1] output
  buffer @s f32[128] strides[1] output
  schedule @k team 256 zeroed @s {
    for d0 < 3, task {
      micro attend_gradients<64, 64, 2, 1, 0, 16256, 0>(@y[64*d0], @y[64*d0 + 192], @s[0], @x[0], @x[64*d0], @x[64*d0], @x[64], @r[0], @r[0]; 1, d0, 2, 64, 64, 64, 64, 64, 64, 64, 1, 1, 0, 0, 0, 0, 0)
    }
  }
  output @y sizes[384] strides[1] offset 0
  output @s sizes[128] strides[1] offset 0
})";

// Tasks may add to one element of a buffer that is zero before, where nothing else touches it.
TEST(ScheduleVerifyTest, AdditionsGoToWhatIsZeroBefore) {
  const auto check = [](const std::string& from, const std::string& to) {
    EXPECT_THAT(std::string(kGradients), HasSubstr(from));
    const absl::StatusOr<Scheduled> scheduled =
        Parse(absl::StrReplaceAll(kGradients, {{from, to}}));
    EXPECT_TRUE(scheduled.ok()) << scheduled.status();
    return std::string(Verify(scheduled->module, scheduled->trees[0]).message());
  };
  EXPECT_EQ(check("zeroed @s", "zeroed @s"), "");
  const absl::StatusOr<Scheduled> scheduled = Parse(kGradients);
  ASSERT_TRUE(scheduled.ok()) << scheduled.status();
  EXPECT_THAT(Print(scheduled->module, scheduled->trees), HasSubstr("team 256 zeroed @s {"));
  EXPECT_THAT(check(" zeroed @s", ""), HasSubstr("window 2: that buffer is not zeroed"));
  EXPECT_THAT(check("zeroed @s", "zeroed @s zeroed @y"), HasSubstr("tasks add to that buffer"));
  EXPECT_THAT(check("for d0", "for r0 < 2 { %0 = load f32 @s[r0] } for d0"),
              HasSubstr("tasks add to that buffer"));
  EXPECT_THAT(check("@r[0], @r[0];", "@r[0], @s[0];"), HasSubstr("tasks add to that buffer"));
  EXPECT_THAT(check("@s f32[128]", "@s f32[127]"), HasSubstr("reaches 127 of 127"));
}

TEST(ScheduleInterpretTest, FindsMemoryThatNothingWasStoredTo) {
  EXPECT_THAT(std::string(RunTree(R"(
    open a0 f32[64] in l1
    for r0 < 64 from 1 to 64 {
      %0 = load f32 @x[r0]
      store f32 a0[r0], %0
    }
    for r1 < 64, vector 8 {
      %1 = load f32 a0[r1]
      store f32 @y[r1], %1
    })")
                              .message()),
              HasSubstr("nothing was stored to"));
}

TEST(ScheduleInterpretTest, ChecksIndexTensors) {
  const std::string body = R"(
    for d0 < 64, task {
      %0 = load i64 @n[d0]
      %1 = load f32 @x[[%0 < 64] + d0]
      store f32 @y[d0], %1
    })";
  EXPECT_TRUE(RunTree(body).ok()) << RunTree(body);
}

}  // namespace
}  // namespace kiln::schedule
