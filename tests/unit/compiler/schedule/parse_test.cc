// The textual form: what it says comes back, and what it cannot say is an error with its line.
#include "compiler/schedule/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/verify.h"

namespace kiln::schedule {
namespace {

using ::testing::HasSubstr;

constexpr char kEverything[] = R"text(module {
  symbol s0 [2, 512] hint 128
  buffer @x f32[s0,64] strides[64,1] input(0)
  buffer @n i64[s0] strides[1] input(1)
  buffer @y f32[s0,64] strides[64,1] output
  schedule @"a name" from "relu_1", "a \"b\"" threads r0 {
    because "rows: 128 of 64, against lanes of rows (3.5 times the loads)"
    open a0 f32[64*s0] in global
    for d0 < s0, task {
      open a1 f32[64] in l2
      open a2 f32[96] in l1
      micro pack_transposed(a2[0], @x[64*d0]; 16, 4, 6, 16)
      micro zero(a1[0]; 64)
      if r0 < 4 {
        micro multiply<16, 1, 1>(a1[0], @x[64*d0], a2[0]; 6, 64, 1)
      } else {
        let r1 < 65 = 64*d0
        micro copy_rows<1>(a1[0], @x[64*d0]; 1, 64, 1, 6)
      }
      for r2 < 64 from 0 to 64 step 32 {
        open a3 f32[8] sum cascade in reg
        open a4 f32[8] argmax in reg
        for r3 < 64 from r2 to min(64, r2 + 32), vector 8 {
          %0 = load f32 @x[64*d0 + r3]
          prefetch @x[64*d0 + r3 + 64], 8
          %1 = load i64 @n[d0]
          %2 = load f32 @x[64*[%1 < s0] + r3]
          update a4[mod(r3, 8)], %2 at 2*r3
        }
        %3 = combine i64 a4
        %4 = combine f32 a3
      }
    }
    for d1 < 64*s0, task vector 16 {
      %5 = const f32 1.5
      store f32 @y[d1], %5 stream
    }
  }
  output @y sizes[s0,64] strides[64,1] offset 0
}
)text";

TEST(ScheduleTextTest, ComesBack) {
  absl::StatusOr<Scheduled> parsed = Parse(kEverything);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(Print(parsed->module, parsed->trees), kEverything);
}

TEST(ScheduleTextTest, GroupsOfATeamComeBack) {
  constexpr char kGroups[] = R"text(module {
  buffer @x f32[8,64] strides[64,1] input(0)
  buffer @y f32[8,64] strides[64,1] output
  schedule @k team 128 {
    for r0 < 8, group 32 {
      for r1 < 64, vector 64 {
        %0 = load f32 @x[64*r0 + r1]
        store f32 @y[64*r0 + r1], %0
      }
    }
  }
  output @y sizes[8,64] strides[64,1] offset 0
}
)text";
  absl::StatusOr<Scheduled> parsed = Parse(kGroups);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(Print(parsed->module, parsed->trees), kGroups);
  EXPECT_EQ(Verify(parsed->module, parsed->trees[0]), absl::OkStatus());
}

void ExpectError(const std::string& from, const std::string& to, const std::string& what) {
  std::string text = kEverything;
  ASSERT_THAT(text, HasSubstr(from));
  text = absl::StrReplaceAll(text, {{from, to}});
  const auto parsed = Parse(text);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << to;
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(what)) << to;
}

TEST(ScheduleTextTest, Errors) {
  ExpectError(", task {", ", tasks {", "line 9: expected 'task', 'vector' or 'group'");
  ExpectError("in l2", "in l9", "line 10: expected 'reg', 'l1', 'l2' or 'global'");
  ExpectError("micro zero(a1[0]; 64)", "micro zero(a9[0]; 64)", "line 13: expected memory");
  ExpectError("micro zero(a1[0]; 64)", "micro zero(a1[0])", "line 13: expected ';'");
  ExpectError("micro zero(a1[0]; 64)", "micro one(a1[0]; 64)", "line 13: expected a micro-kernel");
  ExpectError("let r1 < 65", "let d0 < 65", "line 17: 'd0' is in scope already");
  ExpectError("[%1 < s0]", "[%1]", "bound of an indirect index is missing");
  ExpectError("open a2", "open a1", "line 12: 'a1' is opened twice");
  ExpectError("sum cascade", "total cascade", "line 21: expected a kind of reduction");
  ExpectError("%4 = combine", "%4 = combined", "line 31: expected an operation");
}

TEST(ScheduleTextTest, NestingIsBounded) {
  std::string text = "module {\n schedule @k {\n";
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "for q", i, " < 2 {\n");
  const auto parsed = Parse(text);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("nested too deep"));
}

}  // namespace
}  // namespace kiln::schedule
