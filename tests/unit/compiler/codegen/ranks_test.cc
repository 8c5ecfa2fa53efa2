// Schedules that the cost model does not rank first, against the reference interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 5;

std::string Product(int m, int n, int k) {
  return absl::StrReplaceAll(
      R"(module {
  buffer @a f32[M,K] strides[K,1] input(0)
  buffer @b f32[K,N] strides[N,1] input(1)
  buffer @y f32[M,N] strides[N,1] output
  kernel @mm contraction (d0: M, d1: N) {
    phase (r0: K) {
      %0 = load f32 @a[d0, r0]
      %1 = load f32 @b[r0, d1]
      %2 = mul f32 %0, %1
      %3 = reduce.sum f32 %2
    }
    phase () {
      %4 = tanh f32 %3
      store f32 @y[d0, d1], %4
    }
  }
  output @y sizes[M,N] strides[N,1] offset 0
}
)",
      {{"M,", absl::StrCat(m, ",")},
       {": M", absl::StrCat(": ", m)},
       {"N]", absl::StrCat(n, "]")},
       {"[N,", absl::StrCat("[", n, ",")},
       {": N", absl::StrCat(": ", n)},
       {"K]", absl::StrCat(k, "]")},
       {"[K,", absl::StrCat("[", k, ",")},
       {": K", absl::StrCat(": ", k)}});
}

std::string Softmax(int rows, int columns) {
  return absl::StrReplaceAll(R"(module {
  buffer @x f32[R,C] strides[C,1] input(0)
  buffer @y f32[R,C] strides[C,1] output
  kernel @softmax (d0: R) {
    phase (r0: C) {
      %0 = load f32 @x[d0, r0]
      %1 = reduce.max f32 %0
    }
    phase (r0: C) {
      %2 = load f32 @x[d0, r0]
      %3 = sub f32 %2, %1
      %4 = exp f32 %3
      %5 = reduce.sum f32 %4
    }
    phase (r0: C) {
      %6 = load f32 @x[d0, r0]
      %7 = sub f32 %6, %1
      %8 = exp f32 %7
      %9 = div f32 %8, %5
      store f32 @y[d0, r0], %9
    }
  }
  output @y sizes[R,C] strides[C,1] offset 0
}
)",
                             {{"[R,", absl::StrCat("[", rows, ",")},
                              {": R", absl::StrCat(": ", rows)},
                              {"C]", absl::StrCat(columns, "]")},
                              {"[C,", absl::StrCat("[", columns, ",")},
                              {": C", absl::StrCat(": ", columns)}});
}

TEST(RanksTest, AreAllRight) {
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    for (const auto& [m, n, k] : {std::array{5, 40, 33}, {29, 70, 65}, {64, 96, 128}}) {
      CheckModule(Product(m, n, k), {.tolerance = 1e-4, .rank = rank});
    }
    for (const auto& [rows, columns] : {std::array{3, 70}, {2, 1000}, {9, 16}}) {
      CheckModule(Softmax(rows, columns), {.rank = rank});
    }
  }
}

TEST(RanksTest, OfTargetCppAreSeveralTiles) {
  std::set<std::string> sources;
  for (int rank = 0; rank < kRanks; ++rank) {
    DeviceInfo device = TestDevice("avx512");
    device.rank = rank;
    const auto source = EmitText(Product(64, 96, 128), device);
    ASSERT_TRUE(source.ok()) << source.status();
    sources.insert(*source);
  }
  EXPECT_EQ(sources.size(), static_cast<size_t>(kRanks));
}

// Of few rows and of many, on the tensor cores.
TEST(RanksTest, OfTargetPtxAreSeveralTilesWithoutSpills) {
  for (const int m : {8, 512}) {
    std::set<std::string> schedules;
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(absl::StrCat(m, " rows, rank ", rank));
      const Made made =
          Compile(ProductAndMore("bf16", m, 4096, 4096, false, false), "sm_90a", rank);
      schedules.insert(made.schedules);
      ASSERT_EQ(made.objects.size(), 1);
      EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
      Assemble(made.objects[0], "sm_90a");
    }
    EXPECT_GE(schedules.size(), 4);
  }
}

}  // namespace
}  // namespace kiln::codegen
