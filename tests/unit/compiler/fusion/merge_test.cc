#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/fusion/fuse_for_test.h"

namespace kiln::fusion {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// softmax(x * 0.5 + mask) over the last dimension, one kernel an operator.
constexpr char kSoftmax[] = R"(module {
    buffer @x f32[64,9] strides[9,1] input(0)
    buffer @mask f32[9] strides[1] input(1)
    buffer @s f32[64,9] strides[9,1] temp
    buffer @m f32[64,1] strides[1,1] temp
    buffer @e f32[64,9] strides[9,1] temp
    buffer @sum f32[64,1] strides[1,1] temp
    buffer @y f32[64,9] strides[9,1] output
    kernel @scale (d0: 64, d1: 9) from "scale" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = const f32 0.5
        %2 = mul f32 %0, %1
        %3 = load f32 @mask[d1]
        %4 = add f32 %2, %3
        store f32 @s[d0, d1], %4
      }
    }
    kernel @max (d0: 64) from "amax" {
      phase (r0: 9) {
        %0 = load f32 @s[d0, r0]
        %1 = reduce.max f32 %0
      }
      phase () {
        store f32 @m[d0, 0], %1
      }
    }
    kernel @exp (d0: 64, d1: 9) from "exp" {
      phase () {
        %0 = load f32 @s[d0, d1]
        %1 = load f32 @m[d0, 0]
        %2 = sub f32 %0, %1
        %3 = exp f32 %2
        store f32 @e[d0, d1], %3
      }
    }
    kernel @sum (d0: 64) from "sum" {
      phase (r0: 9) {
        %0 = load f32 @e[d0, r0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @sum[d0, 0], %1
      }
    }
    kernel @div (d0: 64, d1: 9) from "div" {
      phase () {
        %0 = load f32 @e[d0, d1]
        %1 = load f32 @sum[d0, 0]
        %2 = div f32 %0, %1
        store f32 @y[d0, d1], %2
      }
    }
    output @y sizes[64,9] strides[9,1] offset 0
  })";

TEST(MergeTest, SoftmaxIsOneKernel) {
  const FusedModule fused = FuseEveryWay(kSoftmax);
  EXPECT_EQ(fused.NumKernels(), 1) << fused.Text();
  // exp is computed once: its row stays in memory, everything else is in registers.
  EXPECT_THAT(fused.Text(), HasSubstr("buffer @e"));
  EXPECT_THAT(fused.Text(), Not(HasSubstr("buffer @s ")));
  EXPECT_THAT(fused.Text(), Not(HasSubstr("buffer @m ")));
}

// Residual add, then layer norm with affine parameters; the sum is needed again.
constexpr char kAddLayerNorm[] = R"(module {
    buffer @a f32[1,64,12] strides[768,12,1] input(0)
    buffer @b f32[1,64,12] strides[768,12,1] input(1)
    buffer @g f32[12] strides[1] input(2)
    buffer @x f32[1,64,12] strides[768,12,1] output
    buffer @mean f32[1,64,1] strides[64,1,1] temp
    buffer @var f32[1,64,1] strides[64,1,1] temp
    buffer @y f32[1,64,12] strides[768,12,1] output
    kernel @add (d0: 1, d1: 64, d2: 12) from "add" {
      phase () {
        %0 = load f32 @a[d0, d1, d2]
        %1 = load f32 @b[d0, d1, d2]
        %2 = add f32 %0, %1
        store f32 @x[d0, d1, d2], %2
      }
    }
    kernel @mean (d0: 1, d1: 64) from "mean" {
      phase (r0: 12) {
        %0 = load f32 @x[d0, d1, r0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        %2 = const f32 12
        %3 = div f32 %1, %2
        store f32 @mean[d0, d1, 0], %3
      }
    }
    kernel @var (d0: 1, d1: 64) from "var" {
      phase () {
        %0 = load f32 @mean[d0, d1, 0]
      }
      phase (r0: 12) {
        %1 = load f32 @x[d0, d1, r0]
        %2 = sub f32 %1, %0
        %3 = mul f32 %2, %2
        %4 = reduce.sum f32 %3
      }
      phase () {
        store f32 @var[d0, d1, 0], %4
      }
    }
    kernel @norm (d0: 1, d1: 64, d2: 12) from "norm" {
      phase () {
        %0 = load f32 @x[d0, d1, d2]
        %1 = load f32 @mean[d0, d1, 0]
        %2 = sub f32 %0, %1
        %3 = load f32 @var[d0, d1, 0]
        %4 = const f32 0.01
        %5 = add f32 %3, %4
        %6 = rsqrt f32 %5
        %7 = mul f32 %2, %6
        %8 = load f32 @g[d2]
        %9 = mul f32 %7, %8
        store f32 @y[d0, d1, d2], %9
      }
    }
    output @x sizes[1,64,12] strides[768,12,1] offset 0
    output @y sizes[1,64,12] strides[768,12,1] offset 0
  })";

TEST(MergeTest, ResidualAddAndLayerNormAreOneKernel) {
  const FusedModule fused = FuseEveryWay(kAddLayerNorm);
  EXPECT_EQ(fused.NumKernels(), 1) << fused.Text();
  EXPECT_THAT(fused.Text(), Not(HasSubstr("temp")));
}

TEST(MergeTest, SiblingReductionsShareAPhase) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[64,40] strides[40,1] input(0)
    buffer @lo f32[64] strides[1] output
    buffer @hi f32[64] strides[1] output
    kernel @min (d0: 64) from "amin" {
      phase (r0: 40) {
        %0 = load f32 @x[d0, r0]
        %1 = reduce.min f32 %0
      }
      phase () {
        store f32 @lo[d0], %1
      }
    }
    kernel @max (d0: 64) from "amax" {
      phase (r0: 40) {
        %0 = load f32 @x[d0, r0]
        %1 = reduce.max f32 %0
      }
      phase () {
        store f32 @hi[d0], %1
      }
    }
    output @lo sizes[64] strides[1] offset 0
    output @hi sizes[64] strides[1] offset 0
  })");
  ASSERT_EQ(fused.NumKernels(), 1);
  EXPECT_EQ(std::get<ir::Kernel>(fused.module.operations[0]).phases.size(), 2u) << fused.Text();
}

// Updates of four parameters, of which the last reads what the first has made.
TEST(MergeTest, SmallKernelsOfEqualLoopsShareALaunch) {
  const std::string update = R"(
    kernel @k_N (d0: 300) from "update_N" {
      phase () {
        %0 = load f32 @x_N[d0]
        %1 = load f32 @FROM[0]
        %2 = mul f32 %0, %1
        store f32 @y_N[d0], %2
      }
    }
    kernel @step_N () from "step_N" {
      phase (r0: 7) {
        %0 = load f32 @x_N[r0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @s_N[], %1
      }
    })";
  std::string buffers, kernels, outputs;
  for (int n = 0; n < 4; ++n) {
    const std::string number = std::to_string(n);
    buffers += absl::StrReplaceAll(R"(
    buffer @x_N f32[300] strides[1] input(N)
    buffer @y_N f32[300] strides[1] output
    buffer @s_N f32[] strides[] output)",
                                   {{"_N", "_" + number}, {"(N)", "(" + number + ")"}});
    kernels +=
        absl::StrReplaceAll(update, {{"_N", "_" + number}, {"FROM", n == 3 ? "y_0" : "x_0"}});
    outputs += absl::StrReplaceAll(R"(
    output @y_N sizes[300] strides[1] offset 0
    output @s_N sizes[] strides[] offset 0)",
                                   {{"_N", "_" + number}});
  }
  const std::string text = "module {" + buffers + kernels + outputs + "\n}";
  EXPECT_EQ(FuseAndCheck(text).NumKernels(), 8);
  const FusedModule fused = FuseAndCheck(text, {.options = {.costly_launches = true}});
  // All sums in one; of the updates the last waits for the first.
  EXPECT_EQ(fused.NumKernels(), 3) << fused.Text();
}

TEST(MergeTest, NoCycleThroughAThirdKernel) {
  // @cols depends on @rows and @mix on both, but rows and columns have different loops.
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[64,64] strides[64,1] input(0)
    buffer @r f32[64] strides[1] output
    buffer @c f32[64] strides[1] output
    buffer @y f32[64,64] strides[64,1] output
    kernel @rows (d0: 64) from "rows" {
      phase (r0: 64) {
        %0 = load f32 @x[d0, r0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @r[d0], %1
      }
    }
    kernel @cols (d0: 64) from "cols" {
      phase (r0: 64) {
        %0 = load f32 @x[r0, d0]
        %1 = load f32 @r[r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @c[d0], %3
      }
    }
    kernel @mix (d0: 64, d1: 64) from "mix" {
      phase () {
        %0 = load f32 @r[d0]
        %1 = load f32 @c[d1]
        %2 = mul f32 %0, %1
        store f32 @y[d0, d1], %2
      }
    }
    output @r sizes[64] strides[1] offset 0
    output @c sizes[64] strides[1] offset 0
    output @y sizes[64,64] strides[64,1] offset 0
  })");
  EXPECT_GE(fused.NumKernels(), 2);
}

TEST(MergeTest, ExpensiveValueWithTwoReadersIsComputedOnce) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[6,8] strides[8,1] input(0)
    buffer @e f32[6,8] strides[8,1] temp
    buffer @y f32[6,8] strides[8,1] output
    buffer @z f32[6,8] strides[8,1] output
    kernel @exp (d0: 6, d1: 8) from "exp" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = exp f32 %0
        store f32 @e[d0, d1], %1
      }
    }
    kernel @neg (d0: 6, d1: 8) from "neg" {
      phase () {
        %0 = load f32 @e[d0, d1]
        %1 = neg f32 %0
        store f32 @y[d0, d1], %1
      }
    }
    kernel @sq (d0: 6, d1: 8) from "sq" {
      phase () {
        %0 = load f32 @e[d0, d1]
        %1 = mul f32 %0, %0
        store f32 @z[d0, d1], %1
      }
    }
    output @y sizes[6,8] strides[8,1] offset 0
    output @z sizes[6,8] strides[8,1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), Not(HasSubstr("temp")));
}

TEST(MergeTest, FullReductionDoesNotSwallowLargePointwiseKernels) {
  const FusedModule fused = FuseAndCheck(R"(module {
    buffer @x f32[40000] strides[1] input(0)
    buffer @y f32[40000] strides[1] output
    buffer @s f32[] strides[] output
    kernel @exp (d0: 40000) from "exp" {
      phase () {
        %0 = load f32 @x[d0]
        %1 = exp f32 %0
        store f32 @y[d0], %1
      }
    }
    kernel @sum () from "sum" {
      phase (r0: 40000) {
        %0 = load f32 @y[r0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @s[], %1
      }
    }
    output @y sizes[40000] strides[1] offset 0
    output @s sizes[] strides[] offset 0
  })");
  // exp, partial sums, sum.
  EXPECT_EQ(fused.NumKernels(), 3) << fused.Text();
}

// y = exp(x), which is an output, and its sums down the columns or along the rows.
std::string StoredAndSummed(const std::string& rows, const std::string& sum_at, bool of_columns) {
  return absl::StrReplaceAll(R"(module {
    buffer @x f32[ROWS,512] strides[512,1] input(0)
    buffer @y f32[ROWS,512] strides[512,1] output
    buffer @s f32[KEPT] strides[1] output
    kernel @exp (d0: ROWS, d1: 512) from "exp" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = exp f32 %0
        store f32 @y[d0, d1], %1
      }
    }
    kernel @sum (d0: KEPT) from "sum" {
      phase (r0: SUMMED) {
        %0 = load f32 @y[AT]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @s[d0], %1
      }
    }
    output @y sizes[ROWS,512] strides[512,1] offset 0
    output @s sizes[KEPT] strides[1] offset 0
  })",
                             {{"ROWS", rows},
                              {"KEPT", of_columns ? "512" : rows},
                              {"SUMMED", of_columns ? rows : "512"},
                              {"AT", sum_at}});
}

TEST(MergeTest, WhatIsStoredIsNotWalkedDownItsColumnsUnlessItIsSmall) {
  const FuseCheck check{.interpretable = false};
  const FusedModule columns = FuseEveryWay(StoredAndSummed("600", "r0, d0", true), check);
  EXPECT_EQ(columns.NumKernels(), 2) << columns.Text();
  const FusedModule rows = FuseEveryWay(StoredAndSummed("600", "d0, r0", false), check);
  EXPECT_EQ(rows.NumKernels(), 1) << rows.Text();
  const FusedModule small = FuseEveryWay(StoredAndSummed("64", "r0, d0", true));
  EXPECT_EQ(small.NumKernels(), 1) << small.Text();
}

}  // namespace
}  // namespace kiln::fusion
