// Target ptx: functions whose values are rounded to 16 bits, and the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// f(x) of a tensor of `type`: `body` takes %1 and makes %9, which is stored as `result`.
std::string Function(const std::string& type, const std::string& body, const std::string& result) {
  return absl::StrReplaceAll(R"(module {
  buffer @x TYPE[64,1024] strides[1024,1] input(0)
  buffer @y RESULT[64,1024] strides[1024,1] output
  kernel @f (d0: 64, d1: 1024) {
    phase () {
      %0 = load TYPE @x[d0, d1]
      %1 = cast f32 %0
      BODY
      store RESULT @y[d0, d1], %9
    }
  }
  output @y sizes[64,1024] strides[1024,1] offset 0
}
)",
                             {{"TYPE", type}, {"BODY", body}, {"RESULT", result}});
}

// x / (1 + e^-x).
constexpr char kSilu[] = R"(%2 = neg f32 %1
      %3 = exp f32 %2
      %4 = const f32 1
      %5 = add f32 %4, %3
      %6 = div f32 %1, %5
      )";
std::string Silu(const std::string& type, const std::string& rest, const std::string& result) {
  return Function(type, absl::StrCat(kSilu, rest), result);
}
std::string SourceOf(const std::string& text) {
  return Compile(text).kernels[0].source;
}

TEST(PtxShortTest, OfResultsOf16Bits) {
  for (const std::string type : {"bf16", "f16"}) {
    EXPECT_THAT(SourceOf(Silu(type, absl::StrCat("%9 = cast ", type, " %6"), type)),
                AllOf(HasSubstr("KShortExp("), HasSubstr("KShortOver("), Not(HasSubstr("KExp("))));
  }
  EXPECT_THAT(SourceOf(Silu("bf16", "%9 = mul f32 %6, %1", "f32")),
              AllOf(HasSubstr("KExp("), Not(HasSubstr("KShort"))));
}

TEST(PtxShortTest, NotOfWhatIsComparedOrMadeWhole) {
  for (const std::string rest :
       {"%7 = floor f32 %6\n %9 = cast bf16 %7",
        "%7 = lt bool %6, %1\n %8 = select f32 %7, %1, %4\n %9 = cast bf16 %8",
        "%7 = cast i32 %6\n %8 = cast f32 %7\n %9 = cast bf16 %8"}) {
    SCOPED_TRACE(rest);
    EXPECT_THAT(SourceOf(Silu("bf16", rest, "bf16")),
                AllOf(HasSubstr("KExp("), Not(HasSubstr("KShort"))));
  }
  // Rounded before that.
  EXPECT_THAT(SourceOf(Silu("bf16",
                            "%7 = cast bf16 %6\n %8 = cast f32 %7\n %10 = floor f32 %8\n"
                            " %9 = cast bf16 %10",
                            "bf16")),
              AllOf(HasSubstr("KShortExp("), HasSubstr("KShortOver(")));
}

// Exponentials of a row less its greatest value, over their sum, or the place of the greatest.
std::string Rows(const std::string& result, const std::string& reduced, const std::string& stored) {
  return absl::StrReplaceAll(R"(module {
  buffer @x bf16[64,1024] strides[1024,1] input(0)
  buffer @y RESULT[64] strides[1] output
  kernel @rows (d0: 64) {
    phase (r0: 1024) {
      %0 = load bf16 @x[d0, r0]
      %1 = cast f32 %0
      %2 = exp f32 %1
      %3 = reduce.REDUCED %2
    }
    phase () {
      STORED
      store RESULT @y[d0], %9
    }
  }
  output @y sizes[64] strides[1] offset 0
}
)",
                             {{"RESULT", result}, {"REDUCED", reduced}, {"STORED", stored}});
}

TEST(PtxShortTest, ThroughReductions) {
  EXPECT_THAT(SourceOf(Rows("bf16", "sum f32", "%9 = cast bf16 %3")), HasSubstr("KShortExp("));
  EXPECT_THAT(SourceOf(Rows("f32", "sum f32", "%8 = const f32 1\n %9 = add f32 %8, %3")),
              Not(HasSubstr("KShort")));
  EXPECT_THAT(SourceOf(Rows("bf16", "argmax i64", "%8 = cast f32 %3\n %9 = cast bf16 %8")),
              Not(HasSubstr("KShort")));
}

TEST(PtxShortTest, NumbersOfEverySize) {
  for (const double scale : {1e-3, 1.0, 40.0}) {
    for (const int nan_every : {0, 97}) {
      for (const std::string type : {"bf16", "f16"}) {
        SCOPED_TRACE(absl::StrCat(type, " ", scale));
        CheckModule(Silu(type, absl::StrCat("%9 = cast ", type, " %6"), type),
                    {.scale = scale, .nan_every = nan_every, .only_ptx = true});
      }
      CheckModule(Silu("f32", "%9 = mul f32 %6, %1", "f32"),
                  {.scale = scale, .nan_every = nan_every, .only_ptx = true});
      CheckModule(
          Function("f32", "%2 = max f32 %1, %0\n %3 = exp f32 %2\n %9 = min f32 %3, %1", "f32"),
          {.scale = scale, .nan_every = nan_every, .only_ptx = true});
    }
  }
}

}  // namespace
}  // namespace kiln::codegen
