#include "compiler/schedule/bounded.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/verify.h"
#include "gmock/gmock.h"

namespace kiln::schedule {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::Field;
using ::testing::IsEmpty;

constexpr absl::string_view kCausal = R"(module {
  buffer @q f32[4,96,8] strides[768,8,1] input(0)
  buffer @k f32[4,96,8] strides[768,8,1] input(1)
  buffer @m f32[96] strides[1] input(2)
  buffer @n f32[96,96] strides[96,1] input(3)
  buffer @s f32[4,96,96] strides[9216,96,1] tile
  buffer @e f32[4,96,96] strides[9216,96,1] tile
  buffer @y f32[4,96,8] strides[768,8,1] output
  repeat @r steps(1, 48) {
    kernel @scores contraction (d0: 4, d1: 96, d2: 96) {
      phase (r0: 8) {
        %0 = load f32 @q[d0, d1, r0]
        %1 = load f32 @k[d0, d2, r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        %4 = index i64 d2
        %5 = index i64 d1
        %6 = le bool %4, %5
        %7 = const f32 -inf
        %8 = select f32 %6, %3, %7
        store f32 @s[d0, d1, d2], %8
      }
    }
    kernel @weights (d0: 4, d1: 96) {
      phase (r0: 96) {
        %0 = load f32 @s[d0, d1, r0]
        %1 = reduce.max f32 %0
      }
      phase (r0: 96) {
        %2 = load f32 @s[d0, d1, r0]
        %3 = sub f32 %2, %1
        %4 = exp f32 %3
        store f32 @e[d0, d1, r0], %4
      }
    }
    kernel @product contraction (d0: 4, d1: 96, d2: 8) {
      phase (r0: 96) {
        %0 = load f32 @e[d0, d1, r0]
        %1 = load f32 @k[d0, r0, d2]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @y[d0, d1, d2], %3
      }
    }
  }
  output @y sizes[4,96,8] strides[768,8,1] offset 0
}
)";

using Texts = std::vector<std::pair<absl::string_view, absl::string_view>>;

// The bounds of the loops over keys, in the kernels' order; nothing where no loop is bounded.
std::vector<Bound> Bounds(const Texts& changes) {
  absl::StatusOr<ir::Module> module = ir::Parse(absl::StrReplaceAll(kCausal, changes));
  EXPECT_TRUE(module.ok()) << module.status();
  EXPECT_EQ(ir::Verify(*module), absl::OkStatus());
  const auto& repeat = std::get<ir::Repeat>(module->operations[0]);
  const BoundedLoops bounded = FindBoundedLoops(*module, repeat);
  if (bounded.empty()) return {};
  std::vector<Bound> bounds = {bounded.at(repeat.kernels[0].outer[2])};
  for (size_t k = 1; k < repeat.kernels.size(); ++k) {
    for (const ir::Phase& phase : repeat.kernels[k].phases) {
      if (!phase.inner.empty()) bounds.push_back(bounded.at(phase.inner[0]));
    }
  }
  EXPECT_EQ(bounded.size(), bounds.size());
  return bounds;
}

// Of those that end late only, and all alike, the offsets of the ends.
std::vector<int64_t> Offsets(absl::string_view from = "", absl::string_view to = "") {
  std::vector<int64_t> offsets;
  for (const Bound& bound : Bounds(from.empty() ? Texts() : Texts{{from, to}})) {
    EXPECT_EQ(bound.begin, std::nullopt);
    offsets.push_back(bound.end.value_or(-1));
  }
  return offsets;
}

TEST(BoundedTest, CausalAttentionEndsAtTheRow) {
  EXPECT_THAT(Offsets(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Offsets("%6 = le bool %4, %5", "%6 = lt bool %4, %5"), IsEmpty());
  EXPECT_THAT(Offsets("%6 = le bool %4, %5", "%6 = ge bool %5, %4"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Offsets("%5 = index i64 d1", "%5 = index i64 d1 + 3"), ElementsAre(3, 3, 3, 3));
}

// Each of these would change with iterations beyond the row.
TEST(BoundedTest, WhatLateIterationsChangeIsNotBounded) {
  EXPECT_THAT(Offsets("%7 = const f32 -inf", "%7 = const f32 -1e30"), IsEmpty());
  EXPECT_THAT(Offsets("%8 = select f32 %6, %3, %7", "%8 = select f32 %6, %7, %3"), IsEmpty());
  EXPECT_THAT(Offsets("%1 = reduce.max f32 %0", "%1 = reduce.min f32 %0"), IsEmpty());
  EXPECT_THAT(Offsets("%3 = sub f32 %2, %1", "%5 = load f32 @n[d1, r0]\n %3 = sub f32 %2, %5"),
              IsEmpty());
  EXPECT_THAT(Offsets("%4 = exp f32 %3", "%4 = cos f32 %3"), IsEmpty());
}

// A weight with which a row's or a column's logarithm of a sum is taken into account.
TEST(BoundedTest, StatisticsAreTakenToBeFinite) {
  for (const char* at : {"d1", "r0"}) {
    const std::string load = absl::StrCat("%5 = load f32 @m[", at, "]\n %3 = sub f32 %2, %5");
    EXPECT_THAT(Offsets("%3 = sub f32 %2, %1", load), ElementsAre(0, 0, 0, 0));
  }
}

TEST(BoundedTest, KeysFromTheRowOn) {
  for (const Bound& bound : Bounds({{"%6 = le bool %4, %5", "%6 = le bool %5, %4"}})) {
    EXPECT_EQ(bound.begin, 0);
    EXPECT_EQ(bound.end, std::nullopt);
  }
}

TEST(BoundedTest, SlidingWindowsBeginAndEndAtTheRow) {
  const auto is = [](int64_t begin, int64_t end) {
    return AllOf(Field(&Bound::begin, Eq(begin)), Field(&Bound::end, Eq(end)));
  };
  constexpr absl::string_view kCompare =
      "%6 = le bool %4, %5\n        %7 = const f32 -inf\n"
      "        %8 = select f32 %6, %3, %7\n";
  const std::string as_bool = R"(%6 = le bool %4, %5
        %7 = const f32 -inf
        %10 = const i64 20
        %11 = sub i64 %5, %10
        %12 = gt bool %4, %11
        %13 = and bool %6, %12
        %8 = select f32 %13, %3, %7
)";
  EXPECT_THAT(Bounds({{kCompare, as_bool}}),
              ElementsAre(is(-19, 0), is(-19, 0), is(-19, 0), is(-19, 0)));
  const std::string added = absl::StrReplaceAll(
      as_bool, {{"%8 = select f32 %13, %3, %7",
                 "%14 = not bool %13\n %15 = const f32 0\n %16 = select f32 %14, %7, %15\n"
                 " %8 = add f32 %3, %16"}});
  EXPECT_THAT(Bounds({{kCompare, added}}),
              ElementsAre(is(-19, 0), is(-19, 0), is(-19, 0), is(-19, 0)));
  // A window that a row itself is not in.
  const std::string beside = absl::StrReplaceAll(as_bool, {{"i64 20", "i64 -1"}});
  for (const Bound& bound : Bounds({{kCompare, beside}})) EXPECT_EQ(bound.begin, std::nullopt);
}

}  // namespace
}  // namespace kiln::schedule
