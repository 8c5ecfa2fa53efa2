// What a graph has twice is computed once, unless somebody would notice.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/fusion/fuse_for_test.h"

namespace kiln::fusion {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kMerged[] = "both compute the same";

int NumDecisions(const FusedModule& fused, absl::string_view reason) {
  int count = 0;
  for (const Decision& decision : fused.decisions) count += decision.reason == reason ? 1 : 0;
  return count;
}

// Two tables that are read at far more places than they have, each by a kernel of its own; `%`s of
// `text` are those of the tables' kernels.
struct Tables {
  std::string first = "%1 = cos f32 %0", second = "%1 = cos f32 %0";
  std::string first_load = "load f32 @x[d0]", second_load = "load f32 @x[d0]";
  std::string first_kind = "temp", second_kind = "temp";
  std::string more_buffers, between, outputs;
};

std::string Text(const Tables& tables) {
  return absl::StrCat(R"(module {
    buffer @x f32[16] strides[1] input(0)
    buffer @q f32[64,16] strides[16,1] input(1)
    buffer @k f32[32,16] strides[16,1] input(2)
    buffer @t f32[16] strides[1] )",
                      tables.first_kind, "\n    buffer @u f32[16] strides[1] ", tables.second_kind,
                      R"(
    buffer @y f32[64,16] strides[16,1] output
    buffer @z f32[32,16] strides[16,1] output
)",
                      tables.more_buffers, R"(
    kernel @table (d0: 16) from "cos" {
      phase () {
        %0 = )",
                      tables.first_load, "\n        ", tables.first, R"(
        store f32 @t[d0], %1
      }
    }
    kernel @turn (d0: 64, d1: 16) from "mul" {
      phase () {
        %0 = load f32 @q[d0, d1]
        %1 = load f32 @t[d1]
        %2 = mul f32 %0, %1
        store f32 @y[d0, d1], %2
      }
    }
)",
                      tables.between, R"(
    kernel @table_2 (d0: 16) from "cos_1" {
      phase () {
        %0 = )",
                      tables.second_load, "\n        ", tables.second, R"(
        store f32 @u[d0], %1
      }
    }
    kernel @turn_2 (d0: 32, d1: 16) from "mul_1" {
      phase () {
        %0 = load f32 @k[d0, d1]
        %1 = load f32 @u[d1]
        %2 = add f32 %0, %1
        store f32 @z[d0, d1], %2
      }
    }
    output @y sizes[64,16] strides[16,1] offset 0
    output @z sizes[32,16] strides[16,1] offset 0
)",
                      tables.outputs, "}\n");
}

TEST(RepeatsTest, EqualKernelsAreOne) {
  const FusedModule fused = FuseEveryWay(Text({}));
  EXPECT_EQ(fused.NumKernels(), 3);
  EXPECT_EQ(NumDecisions(fused, kMerged), 1);
  EXPECT_THAT(fused.Text(), Not(HasSubstr("kernel @table_2")));
}

TEST(RepeatsTest, WithoutThePassBothStay) {
  FuseCheck check;
  check.options.disabled_passes = {"repeats"};
  EXPECT_EQ(FuseAndCheck(Text({}), check).NumKernels(), 4);
}

TEST(RepeatsTest, NamesOfValuesDoNotCount) {
  Tables tables;
  tables.first = "%9 = exp f32 %0\n %1 = cos f32 %9";
  tables.second = "%5 = exp f32 %0\n %1 = cos f32 %5";
  EXPECT_EQ(FuseEveryWay(Text(tables)).NumKernels(), 3);
}

TEST(RepeatsTest, OtherOperatorsAndOperandsAreNotEqual) {
  for (const auto& [first, second] : {
           std::pair("%1 = cos f32 %0", "%1 = sin f32 %0"),
           std::pair("%9 = const f32 0\n %8 = div f32 %9, %0\n %1 = div f32 %0, %8",
                     "%9 = const f32 -0\n %8 = div f32 %9, %0\n %1 = div f32 %0, %8"),
           std::pair("%9 = const f32 2\n %8 = cos f32 %0\n %1 = pow f32 %8, %9",
                     "%9 = const f32 3\n %8 = cos f32 %0\n %1 = pow f32 %8, %9"),
           std::pair("%9 = cos f32 %0\n %8 = exp f32 %0\n %1 = div f32 %9, %8",
                     "%9 = cos f32 %0\n %8 = exp f32 %0\n %1 = div f32 %8, %9"),
           std::pair("%9 = cast i64 %0\n %8 = cast f32 %9\n %1 = cos f32 %8",
                     "%9 = cast i32 %0\n %8 = cast f32 %9\n %1 = cos f32 %8"),
       }) {
    SCOPED_TRACE(second);
    Tables tables;
    tables.first = first;
    tables.second = second;
    const FusedModule fused = FuseEveryWay(Text(tables));
    EXPECT_EQ(NumDecisions(fused, kMerged), 0);
    EXPECT_EQ(fused.NumKernels(), 4);
  }
}

TEST(RepeatsTest, OtherPlacesAreNotEqual) {
  Tables tables;
  tables.second_load = "load f32 @x[15 - d0]";
  EXPECT_EQ(NumDecisions(FuseEveryWay(Text(tables)), kMerged), 0);
}

TEST(RepeatsTest, OtherLayoutsAreNotEqual) {
  Tables tables;
  const std::string text =
      absl::StrReplaceAll(Text(tables), {{"@u f32[16] strides[1]", "@u f32[16] strides[2]"}});
  EXPECT_EQ(NumDecisions(FuseEveryWay(text), kMerged), 0);
}

TEST(RepeatsTest, WhatReadsEqualValuesIsEqual) {
  Tables tables;
  tables.more_buffers = R"(
    buffer @w f32[16] strides[1] temp
    buffer @v f32[16] strides[1] temp
    buffer @s f32[16] strides[1] output)";
  // A third table, of one that is equal to the others' by way of a kernel that is equal to theirs.
  tables.between = R"(
    kernel @own (d0: 16) from "cos_2" {
      phase () {
        %0 = load f32 @x[d0]
        %1 = cos f32 %0
        store f32 @w[d0], %1
      }
    }
    kernel @more (d0: 16, d1: 1) from "sum" {
      phase (r0: 16) {
        %0 = load f32 @w[r0]
        %1 = load f32 @t[r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @v[d0], %3
      }
    }
    kernel @more_2 (d0: 16, d1: 1) from "sum_1" {
      phase (r0: 16) {
        %0 = load f32 @t[r0]
        %1 = load f32 @w[r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @s[d0], %3
      }
    }
    kernel @reader (d0: 16) from "add" {
      phase () {
        %0 = load f32 @v[15 - d0]
        store f32 @r[d0], %0
      }
    })";
  tables.more_buffers += "\n    buffer @r f32[16] strides[1] output";
  tables.outputs = R"(    output @s sizes[16] strides[1] offset 0
    output @r sizes[16] strides[1] offset 0
)";
  const FusedModule fused = FuseEveryWay(Text(tables));
  EXPECT_THAT(fused.Text(), Not(HasSubstr("kernel @more_2")));
  EXPECT_EQ(NumDecisions(fused, kMerged), 3);
}

// A user may write into one of two outputs.
TEST(RepeatsTest, OutputsStayApart) {
  Tables tables;
  tables.first_kind = tables.second_kind = "output";
  tables.outputs = R"(    output @t sizes[16] strides[1] offset 0
    output @u sizes[16] strides[1] offset 0
)";
  const FusedModule fused = FuseEveryWay(Text(tables));
  EXPECT_EQ(fused.NumKernels(), 4);
  EXPECT_GE(NumDecisions(fused, "the user has both"), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("output @t"));
  EXPECT_THAT(fused.Text(), HasSubstr("output @u"));
}

TEST(RepeatsTest, AnOutputServesTheReadersOfWhatEqualsIt) {
  for (const bool first : {false, true}) {
    SCOPED_TRACE(first);
    Tables tables;
    (first ? tables.first_kind : tables.second_kind) = "output";
    tables.outputs =
        absl::StrCat("    output @", first ? "t" : "u", " sizes[16] strides[1] offset 0\n");
    const FusedModule fused = FuseEveryWay(Text(tables));
    EXPECT_EQ(fused.NumKernels(), 3);
    EXPECT_THAT(fused.Text(), HasSubstr(first ? "output @t" : "output @u"));
    EXPECT_THAT(fused.Text(), Not(HasSubstr(" temp")));
  }
}

// Reads come before all writes, as the verifier sees to.
TEST(RepeatsTest, WritesToTwoInputsStay) {
  const std::string writes = R"(
    kernel @write (d0: 16) from "mutation" {
      phase () {
        %0 = load f32 @t[d0]
        store f32 @x[d0], %0
      }
    }
    kernel @write_2 (d0: 16) from "mutation" {
      phase () {
        %0 = load f32 @u[d0]
        store f32 @w[d0], %0
      }
    }
    output @y)";
  Tables tables;
  tables.more_buffers = "    buffer @w f32[16] strides[1] input(3)";
  FuseCheck check;
  check.interpretable = false;
  const FusedModule fused =
      FuseAndCheck(absl::StrReplaceAll(Text(tables), {{"\n    output @y", writes}}), check);
  EXPECT_EQ(NumDecisions(fused, kMerged), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("load f32 @t[d0]\n      store f32 @x[d0]"));
  EXPECT_THAT(fused.Text(), HasSubstr("load f32 @t[d0]\n      store f32 @w[d0]"));
}

TEST(RepeatsTest, LibraryStepsStay) {
  FuseCheck check;
  check.interpretable = false;
  const FusedModule fused = FuseAndCheck(R"(module {
    buffer @x f32[16] strides[1] input(0)
    buffer @a f32[16] strides[1] library
    buffer @b f32[16] strides[1] library
    buffer @y f32[16] strides[1] output
    library "aten.bernoulli.default" from "one" (@x sizes[16] strides[1] offset 0) -> (@a)
    library "aten.bernoulli.default" from "two" (@x sizes[16] strides[1] offset 0) -> (@b)
    kernel @add (d0: 16) from "add" {
      phase () {
        %0 = load f32 @a[d0]
        %1 = load f32 @b[d0]
        %2 = add f32 %0, %1
        store f32 @y[d0], %2
      }
    }
    output @y sizes[16] strides[1] offset 0
  })",
                                         check);
  EXPECT_EQ(NumDecisions(fused, kMerged), 0);
  EXPECT_THAT(fused.Text(), HasSubstr("from \"two\""));
}

TEST(RepeatsTest, KernelsThatAreOneLaunchAreOneWithTheirEqual) {
  const std::string text = R"(module {
    buffer @x f32[16] strides[1] input(0)
    buffer @a f32[16] strides[1] temp
    buffer @b f32[16] strides[1] temp
    buffer @c f32[16] strides[1] temp
    buffer @d f32[16] strides[1] temp
    buffer @y f32[64,16] strides[16,1] output
    repeat @one steps() {
      kernel @first (d0: 16) from "sin" {
        phase () {
          %0 = load f32 @x[d0]
          %1 = sin f32 %0
          store f32 @a[d0], %1
        }
      }
      kernel @second (d0: 16) from "sin" {
        phase () {
          %0 = load f32 @a[15 - d0]
          %1 = exp f32 %0
          store f32 @b[d0], %1
        }
      }
    }
    repeat @two steps() {
      kernel @third (d0: 16) from "sin_1" {
        phase () {
          %0 = load f32 @x[d0]
          %1 = sin f32 %0
          store f32 @c[d0], %1
        }
      }
      kernel @fourth (d0: 16) from "sin_1" {
        phase () {
          %0 = load f32 @c[15 - d0]
          %1 = OPERATOR f32 %0
          store f32 @d[d0], %1
        }
      }
    }
    kernel @read (d0: 64, d1: 16) from "add" {
      phase () {
        %0 = load f32 @b[d1]
        %1 = load f32 @d[d1]
        %2 = add f32 %0, %1
        store f32 @y[d0, d1], %2
      }
    }
    output @y sizes[64,16] strides[16,1] offset 0
  })";
  const FusedModule same = FuseEveryWay(absl::StrReplaceAll(text, {{"OPERATOR", "exp"}}));
  EXPECT_EQ(NumDecisions(same, kMerged), 1);
  EXPECT_THAT(same.Text(), Not(HasSubstr("repeat @two")));
  const FusedModule apart = FuseEveryWay(absl::StrReplaceAll(text, {{"OPERATOR", "tanh"}}));
  EXPECT_EQ(NumDecisions(apart, kMerged), 0);
  EXPECT_THAT(apart.Text(), HasSubstr("repeat @two"));
}

TEST(RepeatsTest, WhatLibraryStepsReadIsOne) {
  FuseCheck check;
  check.interpretable = false;
  const FusedModule fused = FuseAndCheck(R"(module {
    buffer @x f32[16] strides[1] input(0)
    buffer @t f32[16] strides[1] temp
    buffer @u f32[16] strides[1] temp
    buffer @a f32[16] strides[1] library
    buffer @b f32[16] strides[1] library
    kernel @one (d0: 16) from "exp" {
      phase () {
        %0 = load f32 @x[d0]
        %1 = exp f32 %0
        store f32 @t[d0], %1
      }
    }
    kernel @two (d0: 16) from "exp_1" {
      phase () {
        %0 = load f32 @x[d0]
        %1 = exp f32 %0
        store f32 @u[d0], %1
      }
    }
    library "aten.sort.default" from "sort" (@t sizes[16] strides[1] offset 0) -> (@a)
    library "aten.cumsum.default" from "cumsum" (@u sizes[16] strides[1] offset 0, int 0) -> (@b)
    output @a sizes[16] strides[1] offset 0
    output @b sizes[16] strides[1] offset 0
  })",
                                         check);
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("from \"cumsum\" (@t "));
}

// Random numbers of two nodes are numbers of two streams.
TEST(RepeatsTest, StreamsOfRandomNumbersStayApart) {
  const auto text = [](int second) {
    return absl::StrReplaceAll(R"(module {
    buffer @seed i64[1] strides[1] input(0)
    buffer @t i64[16] strides[1] output
    buffer @u i64[16] strides[1] temp
    buffer @z i64[64,16] strides[16,1] output
    kernel @one (d0: 16) from "rand" {
      phase () {
        %0 = load i64 @seed[0]
        %1 = const i64 0
        %2 = index i64 d0
        %3 = philox i64 %0, %1, %2
        store i64 @t[d0], %3
      }
    }
    kernel @two (d0: 16) from "rand_1" {
      phase () {
        %0 = load i64 @seed[0]
        %1 = const i64 STREAM
        %2 = index i64 d0
        %3 = philox i64 %0, %1, %2
        store i64 @u[d0], %3
      }
    }
    kernel @read (d0: 64, d1: 16) from "expand" {
      phase () {
        %0 = load i64 @u[d1]
        %1 = index i64 d0
        %2 = add i64 %0, %1
        store i64 @z[d0, d1], %2
      }
    }
    output @t sizes[16] strides[1] offset 0
    output @z sizes[64,16] strides[16,1] offset 0
  })",
                               {{"STREAM", absl::StrCat(second)}});
  };
  EXPECT_EQ(NumDecisions(FuseEveryWay(text(1)), kMerged), 0);
  EXPECT_EQ(NumDecisions(FuseEveryWay(text(0)), kMerged), 1);  // one node's, read twice
}

// A check that both make is made once, and one that only the second makes stays.
TEST(RepeatsTest, ChecksThatDifferStay) {
  const auto text = [](absl::string_view divisor) {
    return absl::StrReplaceAll(R"(module {
    buffer @x i64[16] strides[1] input(0)
    buffer @t i64[16] strides[1] temp
    buffer @u i64[16] strides[1] temp
    buffer @y i64[64,16] strides[16,1] output
    buffer @z i64[64,16] strides[16,1] output
    kernel @one (d0: 16) from "div" {
      phase () {
        %0 = load i64 @x[d0]
        %1 = const i64 7
        %2 = const i64 3
        %3 = nonzero i64 %2
        %4 = floordiv i64 %1, %3
        %5 = add i64 %4, %0
        store i64 @t[d0], %5
      }
    }
    kernel @two (d0: 16) from "div_1" {
      phase () {
        %0 = load i64 @x[d0]
        %1 = const i64 7
        %2 = const i64 3
        %3 = DIVISOR
        %4 = floordiv i64 %1, %3
        %5 = add i64 %4, %0
        store i64 @u[d0], %5
      }
    }
    kernel @read (d0: 64, d1: 16) {
      phase () {
        %0 = load i64 @t[d1]
        store i64 @y[d0, d1], %0
      }
    }
    kernel @read_2 (d0: 64, d1: 16) {
      phase () {
        %0 = load i64 @u[15 - d1]
        store i64 @z[d0, d1], %0
      }
    }
    output @y sizes[64,16] strides[16,1] offset 0
    output @z sizes[64,16] strides[16,1] offset 0
  })",
                               {{"DIVISOR", divisor}});
  };
  EXPECT_EQ(NumDecisions(FuseEveryWay(text("nonzero i64 %2")), kMerged), 1);
  EXPECT_EQ(NumDecisions(FuseEveryWay(text("const i64 3")), kMerged), 0);
}

// Tables of so many elements, each read backwards by one kernel, which cannot compute it as it
// goes.
std::string LargeText(int elements) {
  const std::string rows = absl::StrReplaceAll(Text({}), {{"[64,", "[2,"},
                                                          {"[32,", "[2,"},
                                                          {"d0: 64", "d0: 2"},
                                                          {"d0: 32", "d0: 2"},
                                                          {"@t[d1]", "@t[15 - d1]"},
                                                          {"@u[d1]", "@u[15 - d1]"}});
  return absl::StrReplaceAll(rows,
                             {{"16", absl::StrCat(elements)}, {"15", absl::StrCat(elements - 1)}});
}

TEST(RepeatsTest, LargeTablesThatStayInMemoryAnywayAreOne) {
  const FusedModule fused = FuseAndCheck(LargeText(1 << 17));
  EXPECT_EQ(NumDecisions(fused, "each is perhaps computed where it is used"), 1);
  EXPECT_EQ(NumDecisions(fused, kMerged), 1);
  EXPECT_EQ(fused.NumKernels(), 3);
}

// They are more than a 32nd of the inputs and outputs, and than what never counts.
TEST(RepeatsTest, LargeTablesAreNotHeldFarBeyondTheirUse) {
  FuseCheck check;
  check.options.disabled_passes = {
      "horizontal"};  // these are near enough for one kernel to store both
  const FusedModule fused = FuseAndCheck(LargeText(1 << 19), check);
  EXPECT_EQ(NumDecisions(fused, kMerged), 0);
  EXPECT_EQ(NumDecisions(fused, "it would be in memory for too long"), 1);
  EXPECT_EQ(fused.NumKernels(), 4);
}

}  // namespace
}  // namespace kiln::fusion
