#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/fusion/fuse_for_test.h"

namespace kiln::fusion {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// x[8,6] @ w[6,4] + b, then gelu, then + residual.
constexpr char kLinearGeluAdd[] = R"(module {
    buffer @x f32[8,6] strides[6,1] input(0)
    buffer @w f32[6,4] strides[4,1] input(1)
    buffer @b f32[4] strides[1] input(2)
    buffer @r f32[1,8,4] strides[32,4,1] input(3)
    buffer @mm f32[8,4] strides[4,1] temp
    buffer @lin f32[8,4] strides[4,1] temp
    buffer @act f32[1,8,4] strides[32,4,1] temp
    buffer @y f32[1,8,4] strides[32,4,1] output
    kernel @mm contraction (d0: 8, d1: 4) from "mm" {
      phase (r0: 6) {
        %0 = load f32 @x[d0, r0]
        %1 = load f32 @w[r0, d1]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @mm[d0, d1], %3
      }
    }
    kernel @bias (d0: 8, d1: 4) from "bias" {
      phase () {
        %0 = load f32 @mm[d0, d1]
        %1 = load f32 @b[d1]
        %2 = add f32 %0, %1
        store f32 @lin[d0, d1], %2
      }
    }
    kernel @gelu (d0: 1, d1: 8, d2: 4) from "gelu" {
      phase () {
        %0 = load f32 @lin[d1, d2]
        %1 = const f32 0.70710678
        %2 = mul f32 %0, %1
        %3 = erf f32 %2
        %4 = const f32 1
        %5 = add f32 %3, %4
        %6 = const f32 0.5
        %7 = mul f32 %0, %6
        %8 = mul f32 %5, %7
        store f32 @act[d0, d1, d2], %8
      }
    }
    kernel @add (d0: 1, d1: 8, d2: 4) from "add" {
      phase () {
        %0 = load f32 @act[d0, d1, d2]
        %1 = load f32 @r[d0, d1, d2]
        %2 = add f32 %0, %1
        store f32 @y[d0, d1, d2], %2
      }
    }
    output @y sizes[1,8,4] strides[32,4,1] offset 0
  })";

TEST(EpilogueTest, LinearGeluAndResidualAreOneKernel) {
  const FusedModule fused = FuseEveryWay(kLinearGeluAdd);
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), Not(HasSubstr("temp")));
}

TEST(EpilogueTest, DecisionsNameBothAndTheReason) {
  const FusedModule fused = FuseAndCheck(kLinearGeluAdd);
  bool found = false;
  for (const Decision& decision : fused.decisions) {
    found |= decision.producer == "mm" && decision.fused &&
             decision.reason == "epilogue of a contraction";
  }
  EXPECT_TRUE(found);
}

TEST(EpilogueTest, ResultThatOthersReadIsStoredAsWell) {
  std::string text = kLinearGeluAdd;
  text.replace(text.find("@lin f32[8,4] strides[4,1] temp"), 31,
               "@lin f32[8,4] strides[4,1] output");
  text.insert(text.rfind('}'), "output @lin sizes[8,4] strides[4,1] offset 0\n");
  const FusedModule fused = FuseEveryWay(text);
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("store f32 @lin[d0, d1]"));
}

TEST(EpilogueTest, HeadSplitAndPermuteRelabelTheLoops) {
  // [8, 2*3] is stored as [head 2, 8, 3].
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[8,5] strides[5,1] input(0)
    buffer @w f32[5,6] strides[6,1] input(1)
    buffer @mm f32[8,6] strides[6,1] temp
    buffer @q f32[2,8,3] strides[24,3,1] output
    kernel @mm contraction (d0: 8, d1: 6) from "mm" {
      phase (r0: 5) {
        %0 = load f32 @x[d0, r0]
        %1 = load f32 @w[r0, d1]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @mm[d0, d1], %3
      }
    }
    kernel @permute (d0: 2, d1: 8, d2: 3) from "clone" {
      phase () {
        %0 = load f32 @mm[d1, 3*d0 + d2]
        store f32 @q[d0, d1, d2], %0
      }
    }
    output @q sizes[2,8,3] strides[24,3,1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("store f32 @q[floordiv(d1, 3), d0, mod(d1, 3)]"));
}

TEST(EpilogueTest, ConvolutionTakesBatchNormReluAndResidual) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[2,3,5,5] strides[75,25,5,1] input(0)
    buffer @w f32[4,3,2,2] strides[12,4,2,1] input(1)
    buffer @mean f32[4] strides[1] input(2)
    buffer @scale f32[4] strides[1] input(3)
    buffer @skip f32[2,4,4,4] strides[64,16,4,1] input(4)
    buffer @conv f32[2,4,4,4] strides[64,16,4,1] temp
    buffer @bn f32[2,4,4,4] strides[64,16,4,1] temp
    buffer @sum f32[2,4,4,4] strides[64,16,4,1] temp
    buffer @y f32[2,4,4,4] strides[64,16,4,1] output
    kernel @conv contraction (d0: 2, d1: 4, d2: 4, d3: 4) from "conv" {
      phase (r0: 3, r1: 2, r2: 2) {
        %0 = load f32 @x[d0, r0, d2 + r1, d3 + r2]
        %1 = load f32 @w[d1, r0, r1, r2]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @conv[d0, d1, d2, d3], %3
      }
    }
    kernel @bn (d0: 2, d1: 4, d2: 4, d3: 4) from "bn" {
      phase () {
        %0 = load f32 @conv[d0, d1, d2, d3]
        %1 = load f32 @mean[d1]
        %2 = sub f32 %0, %1
        %3 = load f32 @scale[d1]
        %4 = mul f32 %2, %3
        store f32 @bn[d0, d1, d2, d3], %4
      }
    }
    kernel @add (d0: 2, d1: 4, d2: 4, d3: 4) from "add" {
      phase () {
        %0 = load f32 @bn[d0, d1, d2, d3]
        %1 = load f32 @skip[d0, d1, d2, d3]
        %2 = add f32 %0, %1
        store f32 @sum[d0, d1, d2, d3], %2
      }
    }
    kernel @relu (d0: 2, d1: 4, d2: 4, d3: 4) from "relu" {
      phase () {
        %0 = load f32 @sum[d0, d1, d2, d3]
        %1 = const f32 0
        %2 = max f32 %0, %1
        store f32 @y[d0, d1, d2, d3], %2
      }
    }
    output @y sizes[2,4,4,4] strides[64,16,4,1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 1);
}

TEST(EpilogueTest, SymbolicRowsMatch) {
  const FusedModule fused = FuseEveryWay(R"(module {
    symbol s0 [2, 64] hint 8
    buffer @x f32[s0,6] strides[6,1] input(0)
    buffer @w f32[6,4] strides[4,1] input(1)
    buffer @mm f32[s0,4] strides[4,1] temp
    buffer @y f32[2,s0,2] strides[2*s0,2,1] output
    kernel @mm contraction (d0: s0, d1: 4) from "mm" {
      phase (r0: 6) {
        %0 = load f32 @x[d0, r0]
        %1 = load f32 @w[r0, d1]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @mm[d0, d1], %3
      }
    }
    kernel @exp (d0: 2, d1: s0, d2: 2) from "exp" {
      phase () {
        %0 = load f32 @mm[d1, 2*d0 + d2]
        %1 = exp f32 %0
        store f32 @y[d0, d1, d2], %1
      }
    }
    output @y sizes[2,s0,2] strides[2*s0,2,1] offset 0
  })",
                                         {.symbols = {5}});
  EXPECT_EQ(fused.NumKernels(), 1);
}

TEST(EpilogueTest, BroadcastConsumerStaysApart) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[8,6] strides[6,1] input(0)
    buffer @w f32[6,4] strides[4,1] input(1)
    buffer @mm f32[8,4] strides[4,1] temp
    buffer @y f32[3,8,4] strides[32,4,1] output
    kernel @mm contraction (d0: 8, d1: 4) from "mm" {
      phase (r0: 6) {
        %0 = load f32 @x[d0, r0]
        %1 = load f32 @w[r0, d1]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @mm[d0, d1], %3
      }
    }
    kernel @exp (d0: 3, d1: 8, d2: 4) from "exp" {
      phase () {
        %0 = load f32 @mm[d1, d2]
        %1 = exp f32 %0
        store f32 @y[d0, d1, d2], %1
      }
    }
    output @y sizes[3,8,4] strides[32,4,1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 2);
}

}  // namespace
}  // namespace kiln::fusion
