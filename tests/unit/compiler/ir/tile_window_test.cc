// Bounds inference, against what loops read when every place is enumerated.
#include "compiler/ir/tile_window.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "gmock/gmock.h"

namespace kiln::ir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TileWindow, ReachOfAWindow) {
  IntContext ints;
  const IntExpr row = ints.NewVar(ints.Const(20)), tap = ints.NewVar(ints.Const(3));
  const IntExpr index = ints.Add(ints.Add(ints.Mul(row, 2), ints.Mul(tap, 3)), -4);
  EXPECT_EQ(ReachOf(ints, index, row, {}), (TileWindow{2, -4, 2}));
  EXPECT_EQ(ReachOf(ints, index, row, {3, -1, 5}), (TileWindow{6, -6, 12}));
  // A loop of symbolic length reaches as far as its greatest.
  const IntExpr some = ints.NewVar(ints.NewSymbol("s0", 2, 9, 4));
  EXPECT_EQ(ReachOf(ints, ints.Sub(row, some), row, {}), (TileWindow{1, -8, 0}));
}

TEST(TileWindow, NoWindow) {
  IntContext ints;
  const IntExpr row = ints.NewVar(ints.Const(20)), tap = ints.NewVar(ints.Const(3));
  EXPECT_EQ(ReachOf(ints, tap, row, {}), std::nullopt);
  EXPECT_EQ(ReachOf(ints, ints.Sub(tap, row), row, {}), std::nullopt);
  EXPECT_EQ(ReachOf(ints, ints.FloorDiv(row, 2), row, {}), std::nullopt);
  EXPECT_EQ(ReachOf(ints, ints.Mul(row, tap), row, {}), std::nullopt);
  EXPECT_EQ(ReachOf(ints, ints.Add(row, ints.Indirect(0, ints.Const(4))), row, {}), std::nullopt);
}

TEST(TileWindow, CoversAndJoins) {
  EXPECT_TRUE(Covers({2, -1, 3}, {2, 0, 3}));
  EXPECT_FALSE(Covers({2, -1, 3}, {2, -2, 0}));
  EXPECT_FALSE(Covers({2, -9, 9}, {1, 0, 0}));
  EXPECT_EQ(JoinWindows({2, -1, 0}, {2, 0, 4}), (TileWindow{2, -1, 4}));
  EXPECT_EQ(JoinWindows({2, -1, 0}, {1, 0, 0}), std::nullopt);
}

constexpr absl::string_view kChain = R"(module {
  buffer @x f32[64] strides[1] input(0)
  buffer @a f32[64] strides[1] tile
  buffer @b f32[64] strides[1] tile
  buffer @y f32[30] strides[1] output
  repeat @r steps(4) {
    kernel @first (d0: 64) {
      phase () {
        %0 = load f32 @x[d0]
        store f32 @a[d0], %0
      }
    }
    kernel @second (d0: 64) {
      phase () {
        %0 = load f32 @a[d0]
        store f32 @b[d0], %0
      }
    }
    kernel @third (d0: 30) {
      phase (r0: 5) {
        %0 = load f32 @b[2*d0 + r0]
        %1 = load f32 @a[2*d0 + 3]
        %2 = add f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @y[d0], %3
      }
    }
  }
  output @y sizes[30] strides[1] offset 0
}
)";

TEST(TileWindow, InfersFromTheLastKernelToTheFirst) {
  const absl::StatusOr<Module> module = Parse(kChain);
  ASSERT_TRUE(module.ok()) << module.status();
  const auto windows = InferWindows(*module, std::get<Repeat>(module->operations[0]));
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_THAT(*windows, ElementsAre(ElementsAre(TileWindow{2, 0, 4}),
                                    ElementsAre(TileWindow{2, 0, 4}), ElementsAre(TileWindow{})));
}

TEST(TileWindow, SaysWhereThereIsNone) {
  const auto inferred = [](absl::string_view from, absl::string_view to) {
    const absl::StatusOr<Module> module = Parse(absl::StrReplaceAll(kChain, {{from, to}}));
    EXPECT_TRUE(module.ok()) << module.status();
    return InferWindows(*module, std::get<Repeat>(module->operations[0])).status();
  };
  const absl::Status status = inferred("@a[2*d0 + 3]", "@a[d0 + 3]");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("@a is loaded at different speeds"));
  EXPECT_THAT(std::string(inferred("@b[2*d0 + r0]", "@b[floordiv(d0, 2) + r0]").message()),
              HasSubstr("@b is loaded at places that are no window: kernel @third"));
  EXPECT_THAT(std::string(inferred("store f32 @b[d0]", "store f32 @b[63 - d0]").message()),
              HasSubstr("@b is stored elsewhere"));
}

// A chain of windows: what the tiles read of the first loop, by enumeration, is what the composed
// window says, to the place.
TEST(TileWindow, ReachIsTheHullOfWhatIsRead) {
  std::mt19937_64 random(7);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    IntContext ints;
    const int step = pick(1, 5), tile = pick(0, 4);
    TileWindow window;
    std::set<int> read;
    for (int i = 0; i < step; ++i) read.insert(tile * step + i);
    for (int depth = pick(1, 4); depth > 0; --depth) {
      const int stride = pick(1, 3), dilation = pick(1, 3), taps = pick(1, 4), before = pick(-2, 4);
      const IntExpr at = ints.NewVar(ints.Const(1000)), tap = ints.NewVar(ints.Const(taps));
      const IntExpr index =
          ints.Add(ints.Add(ints.Mul(at, stride), ints.Mul(tap, dilation)), -before);
      const auto reach = ReachOf(ints, index, at, window);
      ASSERT_TRUE(reach.has_value());
      window = *reach;
      std::set<int> before_it;
      for (const int place : read) {
        for (int t = 0; t < taps; ++t) before_it.insert(place * stride + t * dilation - before);
      }
      read = before_it;
    }
    EXPECT_EQ(window.scale * tile * step + window.low, *read.begin());
    EXPECT_EQ(window.scale * (tile * step + step - 1) + window.high, *read.rbegin());
    EXPECT_EQ(window.Span(step), *read.rbegin() - *read.begin() + 1);
  }
}

}  // namespace
}  // namespace kiln::ir
