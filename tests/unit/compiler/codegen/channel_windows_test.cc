// Windows over places whose channels lie side by side, as vectors of channels, against the
// reference interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "compiler/schedule/cpu/schedule.h"
#include "tests/unit/compiler/codegen/check_module.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

struct Windows {
  int images = 1, size = 9, channels = 20, taps = 3, stride = 1, dilation = 1;
  int before = 1, after = 1;  // the border; elements cut off, where negative
  std::string type = "f32";
  std::string reduce = "reduce.sum f32 %14", outside = "0";
  bool masks = true;     // where the border is not empty
  bool dynamic = false;  // the number of rows is a symbol

  int out() const { return (size + before + after - dilation * (taps - 1) - 1) / stride + 1; }
};

// y[n, h, w, c] = the sum over taps of f[c, i, j] * x[n, h * stride + i * dilation - before, ...,
// c] or the greatest of x there; then a factor and an addend of the channel.
std::string Module(const Windows& w) {
  constexpr char kComparisons[] = R"(%0 = const i64 0
            %1 = const i64 ROWS
            %2 = index i64 ROW
            %3 = ge bool %2, %0
            %4 = lt bool %2, SIZE
            %5 = and bool %3, %4
            %6 = index i64 COLUMN
            %7 = ge bool %6, %0
            %8 = and bool %5, %7
            %16 = const i64 S
            %9 = lt bool %6, %16
            %10 = and bool %8, %9)";
  const auto place = [&](int outer, int tap) {
    return StrCat(w.stride, "*d", outer, " + ", w.dilation, "*r", tap, " - (", w.before, ")");
  };
  const std::string rows = w.dynamic ? "s0" : StrCat(w.size);
  const std::string comparisons =
      w.masks ? absl::StrReplaceAll(kComparisons,
                                    {{"%1 = const i64 ROWS", StrCat("%1 = index i64 ", rows)},
                                     {"SIZE", "%1"},
                                     {"ROW", place(1, 0)},
                                     {"COLUMN", place(2, 1)},
                                     {"S", StrCat(w.size)}})
              : "";
  const int covered = w.dilation * (w.taps - 1) + 1 - w.before - w.after;
  const std::string out_rows =
      w.dynamic ? StrCat("floordiv(s0 - (", covered, "), ", w.stride, ") + 1") : StrCat(w.out());
  return absl::StrReplaceAll(
      R"(module {
        SYMBOL
        buffer @x TYPE[N,ROWS,S,C] strides[ROWS*LINE,LINE,C,1] input(0)
        buffer @f TYPE[C,K,K] strides[TAPS,K,1] input(1)
        buffer @a f32[C] strides[1] input(2)
        buffer @y f32[N,HIGH,O,C] strides[(HIGH)*RESULT,RESULT,C,1] output
        kernel @windows (d0: N, d1: HIGH, d2: O, d3: C) from "windows" {
          phase (r0: K, r1: K) {
            %13 = load TYPE @f[d3, r0, r1]
            COMPARISONS
            %11 = load TYPE @x[d0, ROW, COLUMN, d3]MASK
            %12 = cast f32 %11
            %17 = cast f32 %13
            %14 = mul f32 %17, %12
            %15 = REDUCE
          }
          phase () {
            %18 = load f32 @a[d3]
            %19 = mul f32 %15, %18
            %20 = add f32 %19, %18
            store f32 @y[d0, d1, d2, d3], %20
          }
        }
        output @y sizes[N,HIGH,O,C] strides[(HIGH)*RESULT,RESULT,C,1] offset 0
      })",
      {{"SYMBOL", w.dynamic ? "symbol s0 [5, 64] hint 9" : ""},
       {"TYPE", w.type},
       {"COMPARISONS", comparisons},
       {"ROWS", rows},
       {"LINE", StrCat(w.size * w.channels)},
       {"RESULT", StrCat(w.out() * w.channels)},
       {"HIGH", out_rows},
       {"TAPS", StrCat(w.taps * w.taps)},
       {"ROW", place(1, 0)},
       {"COLUMN", place(2, 1)},
       {"MASK", w.masks ? StrCat(" if %10 else ", w.outside) : ""},
       {"REDUCE", w.reduce},
       {"N", StrCat(w.images)},
       {"C", StrCat(w.channels)},
       {"S", StrCat(w.size)},
       {"K", StrCat(w.taps)},
       {"O", StrCat(w.out())}});
}

std::vector<std::string> ReasonsOf(const std::string& text) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  EXPECT_TRUE(module.ok()) << module.status() << text;
  if (!module.ok()) return {};
  DeviceInfo device;
  device.features = {"avx2", "fma"};
  const auto tree =
      schedule::cpu::ScheduleKernel(*module, std::get<ir::Kernel>(module->operations[0]), device);
  EXPECT_TRUE(tree.ok()) << tree.status();
  return tree.ok() ? tree->reasons : std::vector<std::string>();
}

constexpr char kTaken[] = "vectors of channels";

void CheckTaken(const Windows& w, CheckOptions options = {}) {
  const std::string text = Module(w);
  SCOPED_TRACE(text);
  EXPECT_THAT(ReasonsOf(text), Contains(HasSubstr(kTaken)));
  if (w.type != "f32") options.tolerance = 2e-4;
  CheckModule(text, options);
}

TEST(ChannelWindowsTest, SumsOfWeightedWindows) {
  const Windows cases[] = {
      {},
      {.size = 3, .channels = 4},
      {.size = 2, .channels = 16},
      {.size = 7, .channels = 96},
      {.size = 15, .channels = 37, .stride = 2},
      {.size = 14, .channels = 8, .stride = 2, .before = 0},
      {.size = 13, .taps = 5, .stride = 2, .before = 2, .after = 3},
      {.size = 20, .channels = 33, .taps = 3, .stride = 3, .dilation = 2, .before = 2, .after = 4},
      {.size = 11, .taps = 7, .before = 3, .after = 3},
      {.size = 17, .before = -2, .after = 4},
      {.size = 5, .before = 3, .after = 3},
      {.images = 3, .size = 6, .channels = 24},
      {.size = 16, .stride = 2, .before = 0, .after = 0, .masks = false},
      {.images = 2, .size = 4, .channels = 130, .taps = 2, .before = 0, .after = 1},
  };
  for (const Windows& w : cases) CheckTaken(w);
}

TEST(ChannelWindowsTest, OfNarrowNumbers) {
  for (const std::string type : {"bf16", "f16"}) {
    CheckTaken({.channels = 72, .type = type});
    CheckTaken({.size = 12, .channels = 19, .taps = 5, .stride = 2, .before = 2, .type = type});
  }
}

TEST(ChannelWindowsTest, PoolingKeepsNothing) {
  const std::string most = "reduce.max f32 %12", sum = "reduce.sum f32 %12";
  for (const Windows& w :
       {Windows{.stride = 2, .reduce = most, .outside = "-inf"},
        Windows{.size = 8, .channels = 5, .reduce = sum},
        Windows{.channels = 48, .type = "bf16", .reduce = most, .outside = "-inf"},
        Windows{.size = 12,
                .taps = 3,
                .stride = 2,
                .before = 0,
                .after = 0,
                .reduce = sum,
                .masks = false}}) {
    CheckTaken(w, {.nan_every = 17});
  }
}

TEST(ChannelWindowsTest, OfSizesThatAreKnownLater) {
  for (const int64_t rows : {5, 6, 23}) {
    CheckTaken({.dynamic = true}, {.symbols = {rows}});
    CheckTaken({.channels = 16, .stride = 2, .before = 2, .dynamic = true}, {.symbols = {rows}});
  }
}

TEST(ChannelWindowsTest, WhatCountsOutsideOfTheImageIsNotLeftOut) {
  for (const Windows& w :
       {Windows{.outside = "0.5"}, Windows{.reduce = "reduce.max f32 %14", .outside = "0"}}) {
    const std::string text = Module(w);
    SCOPED_TRACE(text);
    EXPECT_THAT(ReasonsOf(text), Not(Contains(HasSubstr(kTaken))));
    CheckModule(text);
  }
}

TEST(ChannelWindowsTest, WhatIsTheSameOnceAndOftenCountsOnce) {
  for (const std::string reduce : {"reduce.max f32 %12", "reduce.min f32 %12"}) {
    for (const int border : {1, 4}) {
      const std::string text =
          Module({.before = border, .after = border, .reduce = reduce, .outside = "0.25"});
      SCOPED_TRACE(text);
      EXPECT_THAT(ReasonsOf(text), Contains(HasSubstr(kTaken)));
      CheckModule(text);
    }
  }
}

// As max pooling has it: the greatest, the place of the first of them, and that of the last NaN.
TEST(ChannelWindowsTest, PlacesOfTheGreatest) {
  constexpr char kMax[] = "reduce.max f32 %12";
  for (Windows w : {Windows{}, Windows{.images = 2, .channels = 64, .stride = 2},
                    Windows{.before = 0, .after = 0, .masks = false}, Windows{.dilation = 2},
                    Windows{.before = 4, .after = 4}, Windows{.taps = 7, .before = 3, .after = 3},
                    Windows{.taps = 7, .before = 0, .after = 0, .masks = false},
                    Windows{.type = "bf16"}, Windows{.dynamic = true}}) {
    w.reduce = kMax;
    w.outside = "-inf";
    for (const bool with_value : {false, true}) {
      const std::string places =
          StrCat("%21 = ne bool %12, %12\n%22 = index i64 ", w.taps, "*r0 + r1\n",
                 "%23 = cast i32 %22\n%24 = const i32 -1\n%25 = select i32 %21, %23, %24\n",
                 "%26 = reduce.argmax i64 %12\n%27 = reduce.max i32 %25\n%15 = ", kMax);
      const std::string sum = with_value ? "%20 = add f32 %19, %30" : "%20 = add f32 %30, %18";
      const std::string text = absl::StrReplaceAll(
          Module(w), {{StrCat("%15 = ", kMax), places},
                      {"%20 = add f32 %19, %18",
                       StrCat("%28 = cast f32 %26\n%29 = cast f32 %27\n%31 = const f32 100\n",
                              "%32 = mul f32 %28, %31\n%30 = add f32 %29, %32\n", sum)}});
      SCOPED_TRACE(text);
      EXPECT_THAT(ReasonsOf(text), Contains(HasSubstr(kTaken)));
      CheckModule(text, {.symbols = w.dynamic ? std::vector<int64_t>{11} : std::vector<int64_t>{},
                         .integral_floats = true});
      if (!with_value) {
        CheckModule(text, {.symbols = w.dynamic ? std::vector<int64_t>{11} : std::vector<int64_t>{},
                           .nan_every = 5,
                           .integral_floats = true});
      }
    }
  }
}

// An answer that is used for more than the mask, or a mask of something else, stays as it is.
TEST(ChannelWindowsTest, OtherMasksStay) {
  for (const auto& [from, to] :
       {std::pair{"%10 = and bool %8, %9", "%10 = or bool %8, %9"},
        std::pair{"%9 = lt bool %6, %16", "%21 = index i64 d3\n%9 = lt bool %21, %16"},
        std::pair{"%17 = cast f32 %13",
                  "%21 = cast f32 %13\n%22 = const f32 1\n"
                  "%17 = select f32 %3, %21, %22"}}) {
    const std::string text = absl::StrReplaceAll(Module({.before = 0, .after = 2}), {{from, to}});
    SCOPED_TRACE(text);
    EXPECT_THAT(ReasonsOf(text), Not(Contains(HasSubstr(kTaken))));
  }
}

}  // namespace
}  // namespace kiln::codegen
