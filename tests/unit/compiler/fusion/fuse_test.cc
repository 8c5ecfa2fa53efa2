// Passes as a whole: dead code, barriers, splits, determinism.
#include "compiler/fusion/fuse.h"

#include "absl/strings/str_cat.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/fusion/fuse_for_test.h"

namespace kiln::fusion {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(FuseTest, RefusesRepeats) {
  absl::StatusOr<ir::Module> module = ir::Parse(R"(module {
    buffer @y f32[8] strides[1] output
    repeat @all steps(4) {
      kernel @a (d0: 8) {
        phase () {
          %0 = const f32 1
          store f32 @y[d0], %0
        }
      }
    }
  })");
  ASSERT_TRUE(module.ok()) << module.status();
  const absl::Status status = Fuse(*module, {}, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("@all is from a stage after fusion"));
}

TEST(FuseTest, ReductionsOfNothingAreConstants) {
  const FusedModule fused = FuseEveryWay(R"(module {
    symbol s0 [2, 64] hint 8
    buffer @x f32[0,4,s0] strides[4*s0,s0,1] input(0)
    buffer @i i64[4,0] strides[1,1] input(1)
    buffer @sum f32[4] strides[1] output
    buffer @greatest f32[4] strides[1] output
    buffer @least i64[4] strides[1] output
    buffer @all bool[4] strides[1] output
    kernel @floats (d0: 4) {
      phase (r0: 0, r1: s0) {
        %0 = load f32 @x[r0, d0, r1]
        %1 = reduce.sum f32 %0
        %2 = reduce.max f32 %0
      }
      phase () {
        %3 = exp f32 %1
        store f32 @sum[d0], %3
        store f32 @greatest[d0], %2
      }
    }
    kernel @integers (d0: 4) {
      phase (r0: 0) {
        %0 = load i64 @i[d0, r0]
        %1 = const i64 3
        %2 = lt bool %0, %1
        %3 = reduce.min i64 %0
        %4 = reduce.all bool %2
      }
      phase () {
        store i64 @least[d0], %3
        store bool @all[d0], %4
      }
    }
    output @sum sizes[4] strides[1] offset 0
    output @greatest sizes[4] strides[1] offset 0
    output @least sizes[4] strides[1] offset 0
    output @all sizes[4] strides[1] offset 0
  })",
                                         {.symbols = {8}});
  EXPECT_THAT(fused.Text(), Not(HasSubstr("reduce")));
  EXPECT_THAT(fused.Text(), Not(HasSubstr("load")));
}

// 40000 elements, of which the first loop has none.
TEST(FuseTest, ALongReductionOfNothingIsNotSplit) {
  FuseCheck check;
  check.options.disabled_passes = {"collapse"};
  const FusedModule fused = FuseAndCheck(R"(module {
    buffer @x f32[0,40000] strides[40000,1] input(0)
    buffer @sum f32[] strides[] output
    kernel @all () {
      phase (r0: 0, r1: 40000) {
        %0 = load f32 @x[r0, r1]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @sum[], %1
      }
    }
    output @sum sizes[] strides[] offset 0
  })",
                                         check);
  EXPECT_EQ(fused.NumKernels(), 1);
}

TEST(FuseTest, DeadKernelsGoEvenWhereFusionIsOff) {
  FuseCheck check;
  check.options.enabled = false;
  const FusedModule fused = FuseAndCheck(R"(module {
    buffer @x f32[8] strides[1] input(0)
    buffer @t f32[8] strides[1] temp
    buffer @u f32[8] strides[1] temp
    buffer @y f32[8] strides[1] output
    kernel @a (d0: 8) {
      phase () {
        %0 = load f32 @x[d0]
        store f32 @t[d0], %0
      }
    }
    kernel @b (d0: 8) {
      phase () {
        %0 = load f32 @t[d0]
        store f32 @u[d0], %0
      }
    }
    kernel @c (d0: 8) {
      phase () {
        %0 = load f32 @x[d0]
        store f32 @y[d0], %0
      }
    }
    output @y sizes[8] strides[1] offset 0
  })",
                                         check);
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), Not(HasSubstr("temp")));
}

TEST(FuseTest, LibraryStepsKeepTheirArgumentsInMemory) {
  const FusedModule fused = FuseAndCheck(R"(module {
    buffer @x f32[8] strides[1] input(0)
    buffer @t f32[8] strides[1] temp
    buffer @l f32[8] strides[1] library
    buffer @u f32[8] strides[1] temp
    buffer @y f32[8] strides[1] output
    kernel @neg (d0: 8) from "neg" {
      phase () {
        %0 = load f32 @x[d0]
        %1 = neg f32 %0
        store f32 @t[d0], %1
      }
    }
    library "aten.cumsum.default" from "cumsum" (@t sizes[8] strides[1] offset 0, int 0) -> (@l)
    kernel @abs (d0: 8) from "abs" {
      phase () {
        %0 = load f32 @l[d0]
        %1 = abs f32 %0
        store f32 @u[d0], %1
      }
    }
    kernel @add (d0: 8) from "add" {
      phase () {
        %0 = load f32 @u[d0]
        %1 = load f32 @t[d0]
        %2 = add f32 %0, %1
        store f32 @y[d0], %2
      }
    }
    output @y sizes[8] strides[1] offset 0
  })",
                                         {.interpretable = false});
  // @add must not join @neg, for the library step runs between them.
  EXPECT_EQ(fused.NumKernels(), 2) << fused.Text();
  EXPECT_THAT(fused.Text(), HasSubstr("store f32 @t[d0]"));
}

TEST(FuseTest, KernelsAroundAStoreToAnInputStayAsTheyAre) {
  // The verifier does not take stores to inputs yet, so this module is only fused and printed.
  auto module = ir::Parse(R"(module {
    buffer @x f32[8] strides[1] input(0)
    buffer @t f32[8] strides[1] temp
    buffer @y f32[8] strides[1] output
    kernel @old (d0: 8) from "old" {
      phase () {
        %0 = load f32 @x[d0]
        store f32 @t[d0], %0
      }
    }
    kernel @write (d0: 8) from "write" {
      phase () {
        %0 = const f32 1
        store f32 @x[d0], %0
      }
    }
    kernel @read (d0: 8) from "read" {
      phase () {
        %0 = load f32 @t[d0]
        %1 = load f32 @x[d0]
        %2 = add f32 %0, %1
        store f32 @y[d0], %2
      }
    }
    output @y sizes[8] strides[1] offset 0
  })");
  ASSERT_TRUE(module.ok()) << module.status();
  const std::string before = ir::Print(*module);
  ASSERT_TRUE(Fuse(*module, {}, nullptr).ok());
  EXPECT_EQ(ir::Print(*module), before);
}

constexpr char kLongSum[] = R"(module {
    buffer @x f32[2,300,250] strides[75000,250,1] input(0)
    buffer @s f32[2] strides[1] output
    buffer @m f32[2] strides[1] output
    kernel @sum (d0: 2) from "sum" {
      phase (r0: 300, r1: 250) {
        %0 = load f32 @x[d0, r0, r1]
        %1 = reduce.sum f32 %0
        %2 = reduce.max f32 %0
      }
      phase () {
        %3 = const f32 75000
        %4 = div f32 %1, %3
        store f32 @s[d0], %4
        store f32 @m[d0], %2
      }
    }
    output @s sizes[2] strides[1] offset 0
    output @m sizes[2] strides[1] offset 0
  })";

TEST(FuseTest, LongReductionsAreSplit) {
  const FusedModule fused = FuseAndCheck(kLongSum);
  EXPECT_EQ(fused.NumKernels(), 2);
  EXPECT_THAT(fused.Text(), HasSubstr("kernel @sum_partial (d0: 2, d1: 150)"));
}

// 50021 is a prime.
std::string AllReductionsOf(const std::string& length) {
  return absl::StrCat(R"(module {
    symbol n [1, 1000000] hint 70000
    buffer @x f32[2,)",
                      length, R"(,2] strides[)", length == "n" ? "n*2" : "100042", R"(,2,1] input(0)
    buffer @s f32[2] strides[1] output
    buffer @p f32[2] strides[1] output
    buffer @g f32[2] strides[1] output
    buffer @l f32[2] strides[1] output
    buffer @o u8[2] strides[1] output
    buffer @a u8[2] strides[1] output
    kernel @all (d0: 2) from "all" {
      phase (r0: )",
                      length, R"(, r1: 2) {
        %0 = load f32 @x[d0, r0, r1]
        %1 = reduce.sum f32 %0
        %2 = const f32 1
        %3 = index i64 r0
        %4 = const i64 7
        %5 = eq bool %3, %4
        %6 = select f32 %5, %0, %2
        %7 = reduce.prod f32 %6
        %8 = reduce.max f32 %0
        %9 = reduce.min f32 %0
        %10 = const f32 4
        %11 = gt bool %0, %10
        %12 = reduce.any bool %11
        %13 = reduce.all bool %11
      }
      phase () {
        store f32 @s[d0], %1
        store f32 @p[d0], %7
        store f32 @g[d0], %8
        store f32 @l[d0], %9
        %14 = cast u8 %12
        store u8 @o[d0], %14
        %15 = cast u8 %13
        store u8 @a[d0], %15
      }
    }
    output @s sizes[2] strides[1] offset 0
    output @p sizes[2] strides[1] offset 0
    output @g sizes[2] strides[1] offset 0
    output @l sizes[2] strides[1] offset 0
    output @o sizes[2] strides[1] offset 0
    output @a sizes[2] strides[1] offset 0
  })");
}

TEST(FuseTest, ReductionsOfLengthsThatNothingDividesAreSplit) {
  const FusedModule fused = FuseAndCheck(AllReductionsOf("50021"), {.symbols = {1}});
  EXPECT_EQ(fused.NumKernels(), 2);
  EXPECT_THAT(fused.Text(), HasSubstr("kernel @all_partial (d0: 2, d1: 64)"));
  EXPECT_THAT(fused.Text(), HasSubstr("phase (r0: 37, r1: 2)"));  // 50021 - 64 * 781
}

TEST(FuseTest, ReductionsOfSymbolicLengthsAreSplit) {
  for (int64_t length : {1, 63, 64, 8191}) {
    const FusedModule fused = FuseAndCheck(AllReductionsOf("n"), {.symbols = {length}});
    EXPECT_EQ(fused.NumKernels(), 2);
    EXPECT_THAT(fused.Text(), HasSubstr("kernel @all_partial (d0: 2, d1: 64)"));
  }
}

TEST(FuseTest, ResultIsTheSameEveryTime) {
  EXPECT_EQ(FuseAndCheck(kLongSum).Text(), FuseAndCheck(kLongSum).Text());
}

TEST(FuseTest, SymbolicSizesCompareAsExpressions) {
  const FusedModule fused = FuseEveryWay(R"(module {
    symbol s0 [1, 100] hint 64
    symbol s1 [1, 100] hint 64
    buffer @x f32[s0,s1] strides[s1,1] input(0)
    buffer @e f32[s0,s1] strides[s1,1] temp
    buffer @s f32[s0] strides[1] temp
    buffer @y f32[s0,s1] strides[s1,1] output
    kernel @exp (d0: s0, d1: s1) from "exp" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = exp f32 %0
        store f32 @e[d0, d1], %1
      }
    }
    kernel @sum (d0: s0) from "sum" {
      phase (r0: s1) {
        %0 = load f32 @e[d0, r0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @s[d0], %1
      }
    }
    kernel @div (d0: s0, d1: s1) from "div" {
      phase () {
        %0 = load f32 @e[d0, d1]
        %1 = load f32 @s[d0]
        %2 = div f32 %0, %1
        store f32 @y[d0, d1], %2
      }
    }
    output @y sizes[s0,s1] strides[s1,1] offset 0
  })",
                                         {.symbols = {3, 7}});
  EXPECT_EQ(fused.NumKernels(), 1) << fused.Text();
}

TEST(FuseTest, AModuleThatAPassLeavesInvalidIsAnErrorWithThePass) {
  const auto fuse = [](const std::vector<std::string>& disabled) {
    absl::StatusOr<ir::Module> module = ir::Parse(R"(module {
      buffer @x f32[8] strides[1] input(0)
      buffer @y f32[8] strides[1] output
      kernel @past_the_end (d0: 8) from "exp" {
        phase () {
          %0 = load f32 @x[d0 + 1]
          %1 = exp f32 %0
          store f32 @y[d0], %1
        }
      }
      output @y sizes[8] strides[1] offset 0
    })");
    EXPECT_TRUE(module.ok()) << module.status();
    return Fuse(*module, {.disabled_passes = disabled, .verify_passes = true}, nullptr);
  };
  const absl::Status first = fuse({}), second = fuse({"collapse"});
  EXPECT_EQ(first.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(first.message()), HasSubstr("after pass collapse: kernel @past_the_end"));
  EXPECT_THAT(std::string(second.message()), HasSubstr("after pass inline: "));
}

}  // namespace
}  // namespace kiln::fusion
