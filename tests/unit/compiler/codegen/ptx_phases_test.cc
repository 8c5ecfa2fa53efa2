// Target ptx: kernels of several loops over few results, as batch norms of images with channels
// last.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::HasSubstr;

// Two sums, of which the second needs the first, statistics that stay, and an element-wise rest.
// `strides` are those of an image [n, channels, pixels].
std::string BatchNorm(const std::string& type, const std::string& n, int channels, int pixels,
                      bool channels_last) {
  const int image = channels * pixels;
  const std::string strides =
      channels_last ? StrCat(image, ",1,", channels) : StrCat(image, ",", pixels, ",1");
  return absl::StrReplaceAll(R"(module {
  symbol s0 [1, 1000] hint 8
  buffer @x TYPE[N,C,P] strides[STRIDES] input(0)
  buffer @weight f32[C] strides[1] input(1)
  buffer @y TYPE[N,C,P] strides[STRIDES] output
  buffer @mean f32[C] strides[1] output
  buffer @scale f32[C] strides[1] output
  kernel @norm (d0: C) {
    phase () {
      %0 = const f32 0.125
      %1 = load f32 @weight[d0]
      %2 = mul f32 %1, %0
    }
    phase (r0: N, r1: P) {
      %3 = load TYPE @x[r0, d0, r1]
      %4 = cast f32 %3
      %5 = reduce.sum f32 %4
    }
    phase () {
      %6 = mul f32 %5, %0
      store f32 @mean[d0], %6
    }
    phase (r0: N, r1: P) {
      %7 = load TYPE @x[r0, d0, r1]
      %8 = cast f32 %7
      %9 = sub f32 %8, %6
      %10 = mul f32 %9, %9
      %11 = reduce.sum f32 %10
      %12 = reduce.max f32 %9
    }
    phase () {
      %13 = max f32 %11, %12
      %14 = add f32 %13, %2
      store f32 @scale[d0], %14
    }
    phase (r0: N, r1: P) {
      %15 = load TYPE @x[r0, d0, r1]
      %16 = cast f32 %15
      %17 = sub f32 %16, %6
      %18 = mul f32 %17, %1
      %19 = add f32 %18, %12
      %20 = cast TYPE %19
      store TYPE @y[r0, d0, r1], %20
    }
  }
  output @y sizes[N,C,P] strides[STRIDES] offset 0
  output @mean sizes[C] strides[1] offset 0
  output @scale sizes[C] strides[1] offset 0
}
)",
                             {{"TYPE", type},
                              {"STRIDES", strides},
                              {"N", n},
                              {"C", StrCat(channels)},
                              {"P", StrCat(pixels)}});
}

// A mean, and sums of deviations from it and of their squares, of elements that lie `offset` away
// from inputs around 0; the variance as lowering makes it, and an element-wise rest where
// `normalizes`.
std::string Moments(const std::string& type, const std::string& n, int channels, int pixels,
                    bool channels_last, double offset, bool normalizes) {
  const int image = channels * pixels;
  const std::string strides =
      channels_last ? StrCat(image, ",1,", channels) : StrCat(image, ",", pixels, ",1");
  const std::string sizes = StrCat("[", n, ",", channels, ",", pixels, "] strides[", strides);
  const std::string rest = !normalizes ? "" : R"(
    phase (r0: N, r1: P) {
      %20 = load TYPE @x[r0, d0, r1]
      %21 = cast f32 %20
      %22 = add f32 %21, %16
      %23 = sub f32 %22, %6
      %24 = mul f32 %23, %15
      %25 = cast TYPE %24
      store TYPE @y[r0, d0, r1], %25
    })";
  return absl::StrReplaceAll(
      absl::StrCat(R"(module {
  symbol s0 [1, 1000] hint 8
  buffer @x TYPE[N,C,P] strides[STRIDES] input(0)
  IMAGE
  buffer @mean f32[C] strides[1] output
  buffer @variance f32[C] strides[1] output
  buffer @most f32[C] strides[1] output
  kernel @norm (d0: C) {
    phase (r0: N, r1: P) {
      %0 = load TYPE @x[r0, d0, r1]
      %1 = cast f32 %0
      %2 = const f32 OFFSET
      %3 = add f32 %1, %2
      %4 = reduce.sum f32 %3
    }
    phase () {
      %16 = const f32 OFFSET
      %17 = index i64 P*N
      %18 = cast f32 %17
      %6 = div f32 %4, %18
      store f32 @mean[d0], %6
    }
    phase (r0: N, r1: P) {
      %7 = load TYPE @x[r0, d0, r1]
      %8 = cast f32 %7
      %9 = add f32 %8, %16
      %10 = sub f32 %9, %6
      %11 = mul f32 %10, %10
      %12 = reduce.sum f32 %11
      %13 = reduce.sum f32 %10
      %14 = reduce.max f32 %9
    }
    phase () {
      %26 = mul f32 %13, %13
      %27 = div f32 %26, %18
      %28 = sub f32 %12, %27
      %15 = div f32 %28, %18
      store f32 @variance[d0], %15
      store f32 @most[d0], %14
    })",
                   rest, R"(
  }
  output @mean sizes[C] strides[1] offset 0
  output @variance sizes[C] strides[1] offset 0
  output @most sizes[C] strides[1] offset 0
  RESULT
}
)"),
      {{"IMAGE", normalizes ? StrCat("buffer @y ", type, sizes, "] output") : ""},
       {"RESULT", normalizes ? StrCat("output @y sizes", sizes, "] offset 0") : ""},
       {"TYPE", type},
       {"STRIDES", strides},
       {"N", n},
       {"C", StrCat(channels)},
       {"P", StrCat(pixels)},
       {"OFFSET", StrCat(offset)}});
}

// A sum of what is stored on the way, as of the gradients of two branches.
std::string StoredSum(const std::string& type, int n, int channels, int pixels) {
  return absl::StrReplaceAll(R"(module {
  buffer @a TYPE[N,P,C] strides[IMAGE,C,1] input(0)
  buffer @b TYPE[N,P,C] strides[IMAGE,C,1] input(1)
  buffer @y TYPE[N,P,C] strides[IMAGE,C,1] output
  buffer @sum f32[C] strides[1] output
  kernel @sums (d0: C) {
    phase (r0: N, r1: P) {
      %0 = load TYPE @a[r0, r1, d0]
      %1 = load TYPE @b[r0, r1, d0]
      %2 = cast f32 %0
      %3 = cast f32 %1
      %4 = add f32 %2, %3
      %5 = cast TYPE %4
      store TYPE @y[r0, r1, d0], %5
      %6 = reduce.sum f32 %4
    }
    phase () {
      store f32 @sum[d0], %6
    }
  }
  output @y sizes[N,P,C] strides[IMAGE,C,1] offset 0
  output @sum sizes[C] strides[1] offset 0
}
)",
                             {{"TYPE", type},
                              {"IMAGE", StrCat(channels * pixels)},
                              {"N", StrCat(n)},
                              {"C", StrCat(channels)},
                              {"P", StrCat(pixels)}});
}

TEST(PtxPhasesTest, LoopsOverColumnsBecomeKernels) {
  for (const std::string type : {"f32", "bf16", "f16"}) {
    SCOPED_TRACE(type);
    CheckModule(BatchNorm(type, "4", 40, 150, true),
                {.symbols = {1}, .tolerance = 0.01, .only_ptx = true});
    CheckModule(BatchNorm(type, "3", 7, 211, true),
                {.symbols = {1}, .tolerance = 0.01, .only_ptx = true});
    for (const int64_t n : {1, 5, 8}) {
      CheckModule(BatchNorm(type, "s0", 24, 150, true),
                  {.symbols = {n}, .tolerance = 0.01, .only_ptx = true});
    }
  }
  CheckModule(BatchNorm("f32", "4", 40, 150, true),
              {.symbols = {1}, .nan_every = 100, .only_ptx = true});
  // What no loop makes, parts of each sum and what adds them up, and the rest.
  const Made made = Compile(BatchNorm("f32", "32", 64, 784, true));
  ASSERT_EQ(made.kernels.size(), 6);
  EXPECT_THAT(made.objects[5], HasSubstr("ld.global.v4")) << made.schedules;
  EXPECT_THAT(made.objects[5], HasSubstr("st.global.v4"));
}

TEST(PtxPhasesTest, ShortColumnsAndManyStayOneKernel) {
  EXPECT_EQ(Compile(BatchNorm("f32", "4", 40, 50, true)).kernels.size(), 1);
  EXPECT_EQ(Compile(BatchNorm("f32", "4", 80000, 100, true)).kernels.size(), 1);
}

TEST(PtxPhasesTest, LongRowsBecomeKernelsAndOthersStay) {
  EXPECT_GT(Compile(BatchNorm("f32", "2", 4, 1 << 19, false)).kernels.size(), 3);
  EXPECT_EQ(Compile(BatchNorm("f32", "2", 4, 1 << 12, false)).kernels.size(), 1);
  EXPECT_EQ(Compile(BatchNorm("f32", "2", 4000, 1 << 12, false)).kernels.size(), 1);
}

TEST(PtxPhasesTest, MeanAndVarianceTakeOnePass) {
  for (const std::string type : {"f32", "bf16", "f16"}) {
    SCOPED_TRACE(type);
    // Parts that are equally long, parts that are not, and parts of a length that only a run knows.
    CheckModule(Moments(type, "4", 40, 150, true, 0, true), {.symbols = {1}, .only_ptx = true});
    CheckModule(Moments(type, "3", 7, 211, true, 0, true), {.symbols = {1}, .only_ptx = true});
    CheckModule(Moments(type, "1", 24, 1021, true, 3, true), {.symbols = {1}, .only_ptx = true});
    for (const int64_t n : {1, 2, 5, 8}) {
      CheckModule(Moments(type, "s0", 24, 150, true, 1, true), {.symbols = {n}, .only_ptx = true});
    }
    CheckModule(Moments(type, "2", 2, 1 << 15, false, 3, false),
                {.symbols = {1}, .only_ptx = true});
  }
  // Parts, what adds them up, and the rest.
  const Made made = Compile(Moments("f32", "32", 64, 784, true, 0, true));
  ASSERT_EQ(made.kernels.size(), 3) << made.schedules;
  EXPECT_EQ(Compile(Moments("f32", "32", 64, 784, true, 0, false)).kernels.size(), 2);
}

TEST(PtxPhasesTest, AVarianceInOnePassHasTheAccuracyOfTwo) {
  // Squares of 1e4 have no digits left of a variance of 1.
  CheckModule(Moments("f32", "8", 24, 784, true, 1e4, false),
              {.symbols = {1}, .tolerance = 1e-5, .only_ptx = true});
  CheckModule(Moments("f32", "2", 2, 1 << 16, false, 1e4, false),
              {.symbols = {1}, .tolerance = 1e-5, .only_ptx = true});
  CheckModule(Moments("f32", "4", 40, 150, true, 0, true),
              {.symbols = {1}, .nan_every = 1000, .only_ptx = true});
}

// What one of the kernels takes from memory has been stored by one before it, and not only by
// itself.
TEST(PtxPhasesTest, ResultsThatAreStoredLateAreHeldUntilThen) {
  const std::string text = R"(module {
  buffer @x f32[600,40] strides[40,1] input(0)
  buffer @most f32[40] strides[1] output
  buffer @y f32[600,40] strides[40,1] output
  kernel @softmax (d0: 40) {
    phase (r0: 600) {
      %0 = load f32 @x[r0, d0]
      %1 = reduce.max f32 %0
    }
    phase (r0: 600) {
      %2 = load f32 @x[r0, d0]
      %3 = sub f32 %2, %1
      %4 = exp f32 %3
      %5 = reduce.sum f32 %4
    }
    phase () {
      store f32 @most[d0], %1
    }
    phase (r0: 600) {
      %6 = load f32 @x[r0, d0]
      %7 = sub f32 %6, %1
      %8 = exp f32 %7
      %9 = div f32 %8, %5
      store f32 @y[r0, d0], %9
    }
  }
  output @most sizes[40] strides[1] offset 0
  output @y sizes[600,40] strides[40,1] offset 0
}
)";
  CheckModule(text, {.only_ptx = true});
  EXPECT_GT(Compile(text).kernels.size(), 2);
}

TEST(PtxPhasesTest, PartsStoreWhatTheirLoopsStore) {
  for (const std::string type : {"f32", "bf16"}) {
    SCOPED_TRACE(type);
    CheckModule(StoredSum(type, 4, 40, 600), {.tolerance = 0.01, .only_ptx = true});
    CheckModule(StoredSum(type, 8, 24, 1021), {.tolerance = 0.01, .only_ptx = true});
  }
  EXPECT_EQ(Compile(StoredSum("f32", 4, 40, 600)).kernels.size(), 2);
  // No number from 8 to 11 divides 1505, but 7 does.
  CheckModule(StoredSum("f32", 4, 40, 1505), {.tolerance = 0.01, .only_ptx = true});
  EXPECT_THAT(Compile(StoredSum("f32", 4, 40, 1505)).schedules, HasSubstr("for d0 < 28, task {"));
  // Nothing divides a prime: no part may store past the end.
  EXPECT_EQ(Compile(StoredSum("f32", 1, 40, 1021)).kernels.size(), 1);
}

}  // namespace
}  // namespace kiln::codegen
