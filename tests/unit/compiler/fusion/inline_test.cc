#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/fusion/fuse_for_test.h"

namespace kiln::fusion {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(InlineTest, ChainOfPointwiseKernelsBecomesOne) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[6,8] strides[8,1] input(0)
    buffer @b f32[8] strides[1] input(1)
    buffer @t f32[6,8] strides[8,1] temp
    buffer @u f32[6,8] strides[8,1] temp
    buffer @y f32[6,8] strides[8,1] output
    kernel @add (d0: 6, d1: 8) from "add" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = load f32 @b[d1]
        %2 = add f32 %0, %1
        store f32 @t[d0, d1], %2
      }
    }
    kernel @exp (d0: 6, d1: 8) from "exp" {
      phase () {
        %0 = load f32 @t[d0, d1]
        %1 = exp f32 %0
        store f32 @u[d0, d1], %1
      }
    }
    kernel @neg (d0: 6, d1: 8) from "neg" {
      phase () {
        %0 = load f32 @u[d0, d1]
        %1 = neg f32 %0
        store f32 @y[d0, d1], %1
      }
    }
    output @y sizes[6,8] strides[8,1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), Not(HasSubstr("temp")));
  EXPECT_THAT(fused.Text(), HasSubstr("from \"add\", \"exp\", \"neg\""));
}

TEST(InlineTest, TransposedConsumerSubstitutesIndices) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[6,8] strides[8,1] input(0)
    buffer @t f32[6,8] strides[8,1] temp
    buffer @y f32[48] strides[1] output
    kernel @exp (d0: 6, d1: 8) from "exp" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = exp f32 %0
        store f32 @t[d0, d1], %1
      }
    }
    kernel @neg (d0: 48) from "neg" {
      phase () {
        %0 = load f32 @t[mod(d0, 6), floordiv(d0, 6)]
        %1 = neg f32 %0
        store f32 @y[d0], %1
      }
    }
    output @y sizes[48] strides[1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("@x[mod(d0, 6), floordiv(d0, 6)]"));
}

TEST(InlineTest, StoreThroughAReshapeIsSolvedForItsLoops) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[48] strides[1] input(0)
    buffer @t f32[6,8] strides[8,1] temp
    buffer @y f32[6,8] strides[8,1] output
    kernel @exp (d0: 48) from "exp" {
      phase () {
        %0 = load f32 @x[47 - d0]
        %1 = exp f32 %0
        store f32 @t[floordiv(d0, 8), mod(d0, 8)], %1
      }
    }
    kernel @neg (d0: 6, d1: 8) from "neg" {
      phase () {
        %0 = load f32 @t[d0, 7 - d1]
        %1 = neg f32 %0
        store f32 @y[d0, d1], %1
      }
    }
    output @y sizes[6,8] strides[8,1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 1);
}

TEST(InlineTest, MaskedLoadGuardsTheProducersLoads) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[6] strides[1] input(0)
    buffer @t f32[6] strides[1] temp
    buffer @y f32[10] strides[1] output
    kernel @exp (d0: 6) from "exp" {
      phase () {
        %0 = load f32 @x[d0]
        %1 = exp f32 %0
        store f32 @t[d0], %1
      }
    }
    kernel @pad (d0: 10) from "pad" {
      phase () {
        %0 = index i64 d0 - 2
        %1 = const i64 0
        %2 = ge bool %0, %1
        %3 = const i64 6
        %4 = lt bool %0, %3
        %5 = and bool %2, %4
        %6 = load f32 @t[d0 - 2] if %5 else 7
        store f32 @y[d0], %6
      }
    }
    output @y sizes[10] strides[1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 2) << "an expensive producer is not evaluated at more points";
}

constexpr char kMaskedScale[] = R"(module {
    buffer @x f32[6] strides[1] input(0)
    buffer @t f32[6] strides[1] temp
    buffer @y f32[10] strides[1] output
    kernel @scale (d0: 6) from "scale" {
      phase () {
        %0 = index i64 3*d0
        %1 = const i64 10
        %2 = lt bool %0, %1
        %3 = load f32 @x[d0] if %2 else 5
        %4 = const f32 3
        %5 = mul f32 %3, %4
        store f32 @t[d0], %5
      }
    }
    kernel @pad (d0: 10) from "pad" {
      phase () {
        %0 = index i64 d0 - 2
        %1 = const i64 0
        %2 = ge bool %0, %1
        %3 = const i64 6
        %4 = lt bool %0, %3
        %5 = and bool %2, %4
        %6 = load f32 @t[d0 - 2] if %5 else 7
        store f32 @y[d0], %6
      }
    }
    output @y sizes[10] strides[1] offset 0
  })";

// A division, read by another kernel as `load` says where `loops` are its loops, of 6 elements
// or 10.
std::string DivisionReadBy(const std::string& loops, const std::string& load) {
  const std::string size = absl::StrContains(loops, "10") ? "10" : "6";
  return absl::StrReplaceAll(R"(module {
    buffer @a i64[6] strides[1] input(0)
    buffer @b i64[6] strides[1] input(1)
    buffer @t i64[6] strides[1] temp
    buffer @y i64[SIZE] strides[1] output
    kernel @divide (d0: 6) from "divide" {
      phase () {
        %0 = load i64 @a[d0]
        %1 = load i64 @b[d0]
        %2 = const i64 1
        %3 = max i64 %1, %2
        %4 = nonzero i64 %3
        %5 = floordiv i64 %0, %4
        store i64 @t[d0], %5
      }
    }
    kernel @read (LOOPS) from "read" {
      phase () {
        %0 = index i64 d0 - 2
        %1 = const i64 0
        %2 = ge bool %0, %1
        %3 = const i64 6
        %4 = lt bool %0, %3
        %5 = and bool %2, %4
        %6 = load i64 LOAD
        store i64 @y[d0], %6
      }
    }
    output @y sizes[SIZE] strides[1] offset 0
  })",
                             {{"SIZE", size}, {"LOOPS", loops}, {"LOAD", load}});
}

TEST(InlineTest, DivisionsStayWhereAllOfThemRunAndNoOthers) {
  EXPECT_EQ(FuseEveryWay(DivisionReadBy("d0: 6", "@t[d0]")).NumKernels(), 1);
  EXPECT_EQ(FuseEveryWay(DivisionReadBy("d0: 6", "@t[5 - d0]")).NumKernels(), 2);
  EXPECT_EQ(FuseEveryWay(DivisionReadBy("d0: 6", "@t[min(d0, 2)]")).NumKernels(), 2);
  EXPECT_EQ(FuseEveryWay(DivisionReadBy("d0: 10", "@t[d0 - 2] if %5 else 7")).NumKernels(), 2);
}

TEST(InlineTest, MasksOfProducerAndConsumerAreCombined) {
  const FusedModule fused = FuseEveryWay(kMaskedScale);
  EXPECT_THAT(fused.Text(), HasSubstr("load f32 @x[d0 - 2] if"));
  EXPECT_THAT(fused.Text(), HasSubstr("select f32"));
  EXPECT_EQ(fused.NumKernels(), 1);
}

TEST(InlineTest, IndirectIndicesAreRenumbered) {
  // The producer gathers from @w by @i; the consumer gathers from the producer by @j.
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @w f32[5,4] strides[4,1] input(0)
    buffer @i i64[5] strides[1] input(1)
    buffer @j i64[7] strides[1] input(2)
    buffer @t f32[5,4] strides[4,1] temp
    buffer @y f32[7,4] strides[4,1] output
    kernel @gather (d0: 5, d1: 4) from "gather" {
      phase () {
        %0 = load i64 @i[d0]
        %1 = load f32 @w[[%0], d1]
        %2 = index i64 10*d0 + d1
        %3 = cast f32 %2
        %4 = add f32 %1, %3
        store f32 @t[d0, d1], %4
      }
    }
    kernel @again (d0: 7, d1: 4) from "again" {
      phase () {
        %0 = load i64 @j[d0]
        %1 = load f32 @t[[%0], 3 - d1]
        store f32 @y[d0, d1], %1
      }
    }
    output @y sizes[7,4] strides[4,1] offset 0
  })",
                                         {.int_max = 5});
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("load i64 @i[[%0]]"));
}

TEST(InlineTest, IndirectIndicesOfAMoveAreComposed) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @w f32[5,4] strides[4,1] input(0)
    buffer @j i64[7] strides[1] input(1)
    buffer @k i64[4] strides[1] input(2)
    buffer @t f32[4,5] strides[5,1] temp
    buffer @n i64[4,5] strides[5,1] temp
    buffer @y f32[7,4] strides[4,1] output
    kernel @transpose (d0: 4, d1: 5) from "t" {
      phase () {
        %0 = load f32 @w[d1, d0]
        store f32 @t[d0, d1], %0
      }
    }
    kernel @number (d0: 4, d1: 5) from "arange" {
      phase () {
        %0 = index i64 5*d0 + 2*d1
        %1 = load i64 @k[d0]
        %2 = add i64 %0, %1
        store i64 @n[d0, d1], %2
      }
    }
    kernel @gather (d0: 7, d1: 4) from "gather" {
      phase () {
        %0 = load i64 @j[d0]
        %1 = load f32 @t[d1, [%0]]
        %2 = load i64 @n[3 - d1, [%0]]
        %3 = cast f32 %2
        %4 = add f32 %1, %3
        store f32 @y[d0, d1], %4
      }
    }
    output @y sizes[7,4] strides[4,1] offset 0
  })",
                                         {.int_max = 5});
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("load f32 @w[[%0], d1]"));
  EXPECT_THAT(fused.Text(), HasSubstr("load i64 @k[-d1 + 3] using [%0 < 5]"));
}

// Were the numbers computed where they are used, an index outside would be no error.
TEST(InlineTest, WhatReadsNothingIsStoredForAnIndexThatMustBeChecked) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @j i64[7] strides[1] input(0)
    buffer @n i64[5] strides[1] temp
    buffer @y i64[7] strides[1] output
    kernel @number (d0: 5) from "arange" {
      phase () {
        %0 = index i64 2*d0
        store i64 @n[d0], %0
      }
    }
    kernel @gather (d0: 7) from "gather" {
      phase () {
        %0 = load i64 @j[d0]
        %1 = load i64 @n[[%0]]
        store i64 @y[d0], %1
      }
    }
    output @y sizes[7] strides[1] offset 0
  })",
                                         {.int_max = 5});
  EXPECT_EQ(fused.NumKernels(), 2);
}

TEST(InlineTest, ExpensiveProducerOfAReusedOperandIsStored) {
  const std::string text = R"(module {
    buffer @x f32[8,6] strides[6,1] input(0)
    buffer @w f32[6,5] strides[5,1] input(1)
    buffer @t f32[8,6] strides[6,1] temp
    buffer @y f32[8,5] strides[5,1] output
    kernel @op (d0: 8, d1: 6) from "op" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = OP f32 %0
        store f32 @t[d0, d1], %1
      }
    }
    kernel @mm contraction (d0: 8, d1: 5) from "mm" {
      phase (r0: 6) {
        %0 = load f32 @t[d0, r0]
        %1 = load f32 @w[r0, d1]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @y[d0, d1], %3
      }
    }
    output @y sizes[8,5] strides[5,1] offset 0
  })";
  std::string expensive = text, cheap = text;
  expensive.replace(expensive.find("OP"), 2, "exp");
  cheap.replace(cheap.find("OP"), 2, "neg");
  EXPECT_EQ(FuseEveryWay(expensive).NumKernels(), 2);
  EXPECT_EQ(FuseEveryWay(cheap).NumKernels(), 1);
}

TEST(InlineTest, ConstantsNeverReachMemory) {
  const FusedModule fused = FuseEveryWay(R"(module {
    buffer @x f32[6,8] strides[8,1] input(0)
    buffer @c f32[] strides[] temp
    buffer @tri bool[8,8] strides[8,1] temp
    buffer @y f32[6,8] strides[8,1] output
    buffer @z f32[6,8] strides[8,1] output
    kernel @full () from "full" {
      phase () {
        %0 = const f32 2
        store f32 @c[], %0
      }
    }
    kernel @tri (d0: 8, d1: 8) from "tril" {
      phase () {
        %0 = index i64 d0
        %1 = index i64 d1
        %2 = ge bool %0, %1
        store bool @tri[d0, d1], %2
      }
    }
    kernel @use (d0: 6, d1: 8) from "where" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = load f32 @c[]
        %2 = load bool @tri[d0, d1]
        %3 = select f32 %2, %0, %1
        store f32 @y[d0, d1], %3
      }
    }
    kernel @other (d0: 6, d1: 8) from "where2" {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = load f32 @c[]
        %2 = load bool @tri[d0 + 2, d1]
        %3 = select f32 %2, %1, %0
        store f32 @z[d0, d1], %3
      }
    }
    output @y sizes[6,8] strides[8,1] offset 0
    output @z sizes[6,8] strides[8,1] offset 0
  })");
  EXPECT_EQ(fused.NumKernels(), 2);
  EXPECT_THAT(fused.Text(), Not(HasSubstr("temp")));
}

// Padded rows, and who reads them.
std::string Padded(const std::string& reader) {
  return R"(module {
    buffer @x f32[6,8] strides[8,1] input(0)
    buffer @f f32[4,8] strides[8,1] input(1)
    buffer @p f32[8,8] strides[8,1] temp
    buffer @y f32[6,4] strides[4,1] output
    kernel @pad (d0: 8, d1: 8) from "pad" {
      phase () {
        %0 = index i64 d0 - 1
        %1 = const i64 0
        %2 = ge bool %0, %1
        %3 = const i64 6
        %4 = lt bool %0, %3
        %5 = and bool %2, %4
        %6 = load f32 @x[d0 - 1, d1] if %5 else 2
        store f32 @p[d0, d1], %6
      }
    }
    )" + reader +
         "\n output @y sizes[6,4] strides[4,1] offset 0\n }";
}

TEST(InlineTest, PaddingBecomesPartOfEachWindowThatReadsIt) {
  const FusedModule fused = FuseEveryWay(Padded(R"(kernel @pool (d0: 6, d1: 4) from "pool" {
      phase (r0: 3, r1: 2) {
        %0 = load f32 @p[d0 + r0, 2*d1 + r1]
        %1 = reduce.max f32 %0
      }
      phase () {
        store f32 @y[d0, d1], %1
      }
    })"));
  EXPECT_EQ(fused.NumKernels(), 1);
  EXPECT_THAT(fused.Text(), HasSubstr("else 2"));
}

TEST(InlineTest, PaddedRowsOfAProductAreReadFromMemory) {
  const FusedModule fused = FuseEveryWay(Padded(R"(kernel @mm contraction (d0: 6, d1: 4) from "mm" {
      phase (r0: 8) {
        %0 = load f32 @p[d0 + 2, r0]
        %1 = load f32 @f[d1, r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @y[d0, d1], %3
      }
    })"));
  EXPECT_EQ(fused.NumKernels(), 2);
}

}  // namespace
}  // namespace kiln::fusion
