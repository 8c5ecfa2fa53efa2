#include "compiler/schedule/bounded.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/verify.h"
#include "gmock/gmock.h"

namespace kiln::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr absl::string_view kCausal = R"(module {
  buffer @q f32[4,96,8] strides[768,8,1] input(0)
  buffer @k f32[4,96,8] strides[768,8,1] input(1)
  buffer @m f32[96] strides[1] input(2)
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

// The offsets of the loops over keys, in the kernels' order; nothing where no loop is bounded.
std::vector<int64_t> Offsets(absl::string_view from = "", absl::string_view to = "") {
  absl::StatusOr<ir::Module> module =
      ir::Parse(from.empty() ? std::string(kCausal) : absl::StrReplaceAll(kCausal, {{from, to}}));
  EXPECT_TRUE(module.ok()) << module.status();
  EXPECT_EQ(ir::Verify(*module), absl::OkStatus());
  const auto& repeat = std::get<ir::Repeat>(module->operations[0]);
  const BoundedLoops bounded = FindBoundedLoops(*module, repeat);
  if (bounded.empty()) return {};
  std::vector<int64_t> offsets = {bounded.at(repeat.kernels[0].outer[2])};
  for (size_t k = 1; k < repeat.kernels.size(); ++k) {
    for (const ir::Phase& phase : repeat.kernels[k].phases) {
      if (!phase.inner.empty()) offsets.push_back(bounded.at(phase.inner[0]));
    }
  }
  EXPECT_EQ(bounded.size(), offsets.size());
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
  EXPECT_THAT(Offsets("%6 = le bool %4, %5", "%6 = le bool %5, %4"), IsEmpty());
  EXPECT_THAT(Offsets("%1 = reduce.max f32 %0", "%1 = reduce.min f32 %0"), IsEmpty());
  EXPECT_THAT(Offsets("%3 = sub f32 %2, %1", "%5 = load f32 @m[r0]\n %3 = sub f32 %2, %5"),
              IsEmpty());
  EXPECT_THAT(Offsets("%4 = exp f32 %3", "%4 = cos f32 %3"), IsEmpty());
}

}  // namespace
}  // namespace kiln::schedule
