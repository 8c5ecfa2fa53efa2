#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/fusion/fuse_for_test.h"

namespace kiln::fusion {
namespace {

using ::testing::HasSubstr;

// t = exp(x) by one kernel, y = log(t) by another; each with strides of its own.
std::string TwoKernels(const std::string& x, const std::string& t, const std::string& y,
                       const std::string& rows = "600", const std::string& kind = "temp") {
  return absl::StrReplaceAll(
      R"(module {
    buffer @x f32[ROWS,512] strides[OFX] input(0)
    buffer @t f32[ROWS,512] strides[OFT] KIND
    buffer @y f32[ROWS,512] strides[OFY] output
    kernel @exp (d0: 512, d1: ROWS) from "exp" {
      phase () {
        %0 = load f32 @x[d1, d0]
        %1 = exp f32 %0
        store f32 @t[d1, d0], %1
      }
    }
    kernel @log (d0: ROWS, d1: 512) from "log" {
      phase () {
        %0 = load f32 @t[d0, d1]
        %1 = log f32 %0
        store f32 @y[d0, d1], %1
      }
    }
    OUTPUT
    output @y sizes[ROWS,512] strides[OFY] offset 0
  })",
      {{"ROWS", rows},
       {"OFX", x},
       {"OFT", t},
       {"OFY", y},
       {"KIND", kind},
       {"OUTPUT", kind == "output" ? "output @t sizes[600,512] strides[1,600] offset 0" : ""}});
}

std::string LaidOut(const std::string& text) {
  FuseCheck check;
  check.options.disabled_passes = {"inline", "epilogue", "merge", "horizontal", "split"};
  return FuseAndCheck(text, check).Text();
}

TEST(LayoutsTest, ABufferLiesAsItsKernelsWalkFixedMemory) {
  EXPECT_THAT(LaidOut(TwoKernels("512,1", "1,600", "512,1")),
              HasSubstr("buffer @t f32[600,512] strides[512,1] temp"));
  EXPECT_THAT(LaidOut(TwoKernels("1,600", "512,1", "1,600")),
              HasSubstr("buffer @t f32[600,512] strides[1,600] temp"));
}

TEST(LayoutsTest, LoopsFollowTheStore) {
  EXPECT_THAT(LaidOut(TwoKernels("512,1", "1,600", "512,1")),
              HasSubstr("kernel @exp (d0: 600, d1: 512)"));
}

TEST(LayoutsTest, WhatIsAsGoodAsBeforeStays) {
  const std::string text = LaidOut(TwoKernels("1,600", "1,600", "512,1"));
  EXPECT_THAT(text, HasSubstr("buffer @t f32[600,512] strides[1,600] temp"));
  EXPECT_THAT(text, HasSubstr("kernel @exp (d0: 512, d1: 600)"));
}

// t = exp(x), where x lies by channels, and y the sums of windows of 3 of t's columns, whose
// weights lie by the window's taps; a factor of each channel is the other memory that is fixed.
constexpr char kWindowed[] = R"(module {
    buffer @x f32[64,30,30] strides[1,1920,64] input(0)
    buffer @f f32[64,3] strides[3,1] input(1)
    buffer @a f32[64] strides[1] input(2)
    buffer @t f32[64,30,30] strides[900,30,1] temp
    buffer @u f32[64,30,28] strides[840,28,1] temp
    buffer @y f32[64] strides[1] output
    kernel @exp (d0: 64, d1: 30, d2: 30) from "exp" {
      phase () {
        %0 = load f32 @x[d0, d1, d2]
        %1 = exp f32 %0
        store f32 @t[d0, d1, d2], %1
      }
    }
    kernel @windows (d0: 64, d1: 30, d2: 28) from "windows" {
      phase (r0: 3) {
        %0 = load f32 @f[d0, r0]
        %1 = load f32 @t[d0, d1, d2 + r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        %4 = load f32 @a[d0]
        %5 = mul f32 %3, %4
        store f32 @u[d0, d1, d2], %5
      }
    }
    kernel @sums (d0: 64) from "sums" {
      phase (r0: 30, r1: 28) {
        %0 = load f32 @u[d0, r0, r1]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @y[d0], %1
      }
    }
    output @y sizes[64] strides[1] offset 0
  })";

TEST(LayoutsTest, LanesBesideWindowsAreThoseOfChannels) {
  FuseCheck check;
  check.options.disabled_passes = {"inline", "epilogue", "merge", "horizontal", "split"};
  EXPECT_THAT(FuseAndCheck(kWindowed, check).Text(),
              HasSubstr("buffer @t f32[64,30,30] strides[900,30,1] temp"));
  check.options.lanes_beside_windows = true;
  const std::string text = FuseAndCheck(kWindowed, check).Text();
  EXPECT_THAT(text, HasSubstr("buffer @t f32[64,30,30] strides[1,1920,64] temp"));
  EXPECT_THAT(text, HasSubstr("buffer @u f32[64,30,28] strides[1,1792,64] temp"));
  EXPECT_THAT(text, HasSubstr("kernel @windows (d0: 30, d1: 28, d2: 64)"));
}

TEST(LayoutsTest, WhatOthersSeeAndWhatIsSmallStays) {
  EXPECT_THAT(LaidOut(TwoKernels("512,1", "1,600", "512,1", "600", "output")),
              HasSubstr("buffer @t f32[600,512] strides[1,600] output"));
  EXPECT_THAT(LaidOut(TwoKernels("512,1", "1,16", "512,1", "16")),
              HasSubstr("buffer @t f32[16,512] strides[1,16] temp"));
}

// y = t / sum(t) along rows, t = exp(x), which lies by columns.
std::string ScaledRows(const std::string& rows) {
  return absl::StrReplaceAll(R"(module {
    buffer @x f32[ROWS,512] strides[1,ROWS] input(0)
    buffer @t f32[ROWS,512] strides[1,ROWS] temp
    buffer @y f32[ROWS,512] strides[512,1] output
    kernel @exp (d0: 512, d1: ROWS) from "exp" {
      phase () {
        %0 = load f32 @x[d1, d0]
        %1 = exp f32 %0
        store f32 @t[d1, d0], %1
      }
    }
    kernel @scale (d0: ROWS) from "scale" {
      phase (r0: 512) {
        %0 = load f32 @t[d0, r0]
        %1 = reduce.sum f32 %0
      }
      phase (r0: 512) {
        %2 = load f32 @t[d0, r0]
        %3 = div f32 %2, %1
        store f32 @y[d0, r0], %3
      }
    }
    output @y sizes[ROWS,512] strides[512,1] offset 0
  })",
                             {{"ROWS", rows}});
}

TEST(LayoutsTest, RowsThatLieAcrossWhatIsLoadedGetItTransposed) {
  const FusedModule fused = FuseEveryWay(ScaledRows("600"));
  EXPECT_EQ(fused.NumKernels(), 2) << fused.Text();
  EXPECT_THAT(fused.Text(), HasSubstr("buffer @t f32[600,512] strides[512,1] temp"));
  EXPECT_THAT(fused.Text(), HasSubstr("kernel @exp (d0: 600, d1: 512)"));
}

TEST(LayoutsTest, SmallOnesAreReadAcross) {
  const FusedModule fused = FuseEveryWay(ScaledRows("64"));
  EXPECT_EQ(fused.NumKernels(), 1) << fused.Text();
}

}  // namespace
}  // namespace kiln::fusion
