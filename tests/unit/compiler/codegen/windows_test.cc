// Windows over planes, with and without a border: laid out once in a task's own memory, or with the
// border left apart, against the reference interpreter.
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
  int planes = 8, size = 14, taps = 3, stride = 1, dilation = 1;
  int before = 1, after = 1;  // the border; elements cut off, where negative
  std::string type = "f32";
  bool takes_most = false;  // a pooling, else a convolution
  bool masks = true;        // where the border is not empty

  int out() const { return (size + before + after - dilation * (taps - 1) - 1) / stride + 1; }
};

// y[c, h, w] = the sum over taps of f[c, i, j] * x[c, h * stride + i * dilation - before, ...], or
// the greatest of x there, with the border at the identity; then an activation.
std::string Module(const Windows& w) {
  constexpr char kComparisons[] = R"(%0 = const i64 0
            %1 = const i64 S
            %2 = index i64 ROW
            %3 = ge bool %2, %0
            %4 = lt bool %2, %1
            %5 = and bool %3, %4
            %6 = index i64 COLUMN
            %7 = ge bool %6, %0
            %8 = and bool %5, %7
            %9 = lt bool %6, %1
            %10 = and bool %8, %9)";
  const auto place = [&](int outer, int tap) {
    return StrCat(w.stride, "*d", outer, " + ", w.dilation, "*r", tap, " - (", w.before, ")");
  };
  const std::string comparisons =
      w.masks ? absl::StrReplaceAll(
                    kComparisons,
                    {{"ROW", place(1, 0)}, {"COLUMN", place(2, 1)}, {"S", StrCat(w.size)}})
              : "";
  return absl::StrReplaceAll(
      R"(module {
        buffer @x TYPE[C,S,S] strides[PLANE,S,1] input(0)
        buffer @f f32[C,K,K] strides[TAPS,K,1] input(1)
        buffer @y f32[C,O,O] strides[RESULT,O,1] output
        kernel @windows (d0: C, d1: O, d2: O) from "windows" {
          phase (r0: K, r1: K) {
            COMPARISONS
            %11 = load TYPE @x[d0, ROW, COLUMN]MASK
            %12 = cast f32 %11
            %13 = load f32 @f[d0, r0, r1]
            %14 = mul f32 %12, %13
            %15 = REDUCE
          }
          phase () {
            %16 = const f32 0.25
            %17 = mul f32 %15, %16
            store f32 @y[d0, d1, d2], %17
          }
        }
        output @y sizes[C,O,O] strides[RESULT,O,1] offset 0
      })",
      {{"TYPE", w.type},
       {"COMPARISONS", comparisons},
       {"PLANE", StrCat(w.size * w.size)},
       {"TAPS", StrCat(w.taps * w.taps)},
       {"RESULT", StrCat(w.out() * w.out())},
       {"ROW", place(1, 0)},
       {"COLUMN", place(2, 1)},
       {"MASK", !w.masks       ? ""
                : w.takes_most ? " if %10 else -inf"
                               : " if %10 else 0.5"},
       {"REDUCE", w.takes_most ? "reduce.max f32 %12" : "reduce.sum f32 %14"},
       {"C", StrCat(w.planes)},
       {"S", StrCat(w.size)},
       {"K", StrCat(w.taps)},
       {"O", StrCat(w.out())}});
}

std::vector<std::string> ReasonsOf(const std::string& text,
                                   const std::vector<std::string>& features) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  EXPECT_TRUE(module.ok()) << module.status() << text;
  if (!module.ok()) return {};
  DeviceInfo device;
  device.features = features;
  device.l1_bytes = 32 << 10;
  const auto tree =
      schedule::cpu::ScheduleKernel(*module, std::get<ir::Kernel>(module->operations[0]), device);
  EXPECT_TRUE(tree.ok()) << tree.status();
  return tree.ok() ? tree->reasons : std::vector<std::string>();
}

std::vector<std::string> OnAvx2(const std::string& text) {
  return ReasonsOf(text, {"avx2", "fma"});
}

constexpr char kStaged[] = "laid out once for all windows", kApart[] = "the border apart";

TEST(WindowsTest, NarrowOrStridedPlanesAreLaidOut) {
  const Windows cases[] = {
      {},
      {.size = 7},
      {.size = 15, .stride = 2},
      {.size = 14, .stride = 2, .before = 0},
      {.size = 13, .taps = 5, .stride = 2, .before = 2, .after = 3},
      {.size = 20, .taps = 3, .stride = 3, .dilation = 2, .before = 2, .after = 4},
      {.size = 17, .before = -2, .after = 4},
      {.size = 12, .takes_most = true},
      {.size = 21, .stride = 2, .takes_most = true},
      {.planes = 9, .size = 8, .taps = 7, .before = 3, .after = 3},
      {.size = 13, .type = "bf16"},
      {.size = 16, .stride = 2, .before = 0, .after = 0, .masks = false},
      {.size = 5, .taps = 3, .before = 3, .after = 3},
  };
  for (const Windows& w : cases) {
    const std::string text = Module(w);
    SCOPED_TRACE(text);
    EXPECT_THAT(OnAvx2(text), Contains(HasSubstr(kStaged)));
    CheckModule(text, {.tolerance = w.type == "bf16" ? 2e-4 : 2e-5});
  }
}

TEST(WindowsTest, TheBorderOfLongRowsIsLeftApart) {
  const Windows cases[] = {
      {.planes = 1, .size = 37},
      {.planes = 1, .size = 50, .taps = 4, .dilation = 3, .before = 6, .after = 5},
      {.planes = 2, .size = 70, .stride = 2},
      {.planes = 2, .size = 34, .takes_most = true},
  };
  for (const Windows& w : cases) {
    const std::string text = Module(w);
    SCOPED_TRACE(text);
    EXPECT_THAT(OnAvx2(text), Contains(HasSubstr(kApart)));
    CheckModule(text);
  }
}

TEST(WindowsTest, FewNarrowPlanesAndWholeOnesStayPlainLoops) {
  const Windows cases[] = {
      {.planes = 2, .size = 12},
      {.planes = 2, .size = 42, .before = 0, .after = 0, .masks = false},
      {.size = 9, .taps = 2, .stride = 4, .before = 0, .after = 3},
      {.size = 14, .taps = 1, .before = 0, .after = 0, .masks = false},
  };
  for (const Windows& w : cases) {
    const std::string text = Module(w);
    SCOPED_TRACE(text);
    EXPECT_THAT(OnAvx2(text), Not(Contains(HasSubstr(kStaged))));
    EXPECT_THAT(OnAvx2(text), Not(Contains(HasSubstr(kApart))));
    CheckModule(text);
  }
}

TEST(WindowsTest, AnotherReductionOverOneElementLeavesPlainLoops) {
  const std::string text =
      absl::StrReplaceAll(Module({.size = 6}), {{"phase () {",
                                                 R"(phase (r0: 1) {
            %18 = load f32 @f[d0, r0, 1]
            %19 = reduce.sum f32 %18
          }
          phase () {)"},
                                                {"%16 = const f32 0.25", "%16 = neg f32 %19"}});
  EXPECT_THAT(OnAvx2(text), Not(Contains(HasSubstr(kStaged))));
  CheckModule(text);
}

}  // namespace
}  // namespace kiln::codegen
