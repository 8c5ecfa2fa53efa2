// Target ptx: reductions of columns, whose rows groups of threads share.
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
using ::testing::Not;

// y[d] = scale[d] * KIND over rows of (x[r, d] * scale[d]); what is computed in SUM is of TYPE in
// memory. s0 and s1 are symbols of few rows, and few columns, at a guess.
std::string Columns(const std::string& type, const std::string& sum, const std::string& kind,
                    const std::string& rows, const std::string& columns) {
  return absl::StrReplaceAll(
      R"(module {
  symbol s0 [1, 20000] hint 200
  symbol s1 [1, 1000] hint 100
  buffer @x TYPE[ROWS,COLUMNS] strides[COLUMNS,1] input(0)
  buffer @scale TYPE[COLUMNS] strides[1] input(1)
  buffer @y TYPE[COLUMNS] strides[1] output
  kernel @reduce (d0: COLUMNS) {
    phase () {
      %0 = load TYPE @scale[d0]
      %1 = cast SUM %0
    }
    phase (r0: ROWS) {
      %2 = load TYPE @x[r0, d0]
      %3 = cast SUM %2
      %4 = mul SUM %3, %1
      %5 = reduce.KIND SUM %4
    }
    phase () {
      %6 = mul SUM %5, %1
      %7 = cast TYPE %6
      store TYPE @y[d0], %7
    }
  }
  output @y sizes[COLUMNS] strides[1] offset 0
}
)",
      {{"TYPE", type}, {"SUM", sum}, {"KIND", kind}, {"ROWS", rows}, {"COLUMNS", columns}});
}

TEST(PtxColumnsTest, GroupsOfThreadsShareRows) {
  const Made made = Compile(Columns("bf16", "f32", "sum", "100", "512"));
  ASSERT_EQ(made.kernels.size(), 1);
  EXPECT_THAT(made.schedules, HasSubstr("16 groups of 8 threads, 8 lanes each"));
  EXPECT_THAT(made.objects[0], HasSubstr("ld.global.v4"));
  EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
  // Of few rows a thread takes all.
  EXPECT_THAT(Compile(Columns("bf16", "f32", "sum", "15", "512")).schedules,
              Not(HasSubstr("groups")));
}

TEST(PtxColumnsTest, OfEveryTypeAndKind) {
  for (const auto& [type, sum] : {std::pair("f32", "f32"),
                                  {"bf16", "f32"},
                                  {"f16", "f32"},
                                  {"f64", "f64"},
                                  {"i64", "i64"},
                                  {"i32", "i32"}}) {
    for (const std::string kind : {"sum", "max", "min", "prod"}) {
      for (const std::string columns : {"64", "77", "300"}) {
        SCOPED_TRACE(StrCat(type, " ", kind, " ", columns));
        CheckModule(Columns(type, sum, kind, "67", columns), {.symbols = {1, 1},
                                                              .int_min = -1,
                                                              .int_max = 3,
                                                              .scale = 0.5,
                                                              .tolerance = 1e-4,
                                                              .only_ptx = true});
      }
    }
  }
  CheckModule(Columns("f32", "f32", "logaddexp", "67", "40"),
              {.symbols = {1, 1}, .tolerance = 1e-4, .only_ptx = true});
  CheckModule(Columns("f32", "f32", "max", "67", "40"),
              {.symbols = {1, 1}, .nan_every = 300, .only_ptx = true});
}

TEST(PtxColumnsTest, OfSizesThatTheScheduleDoesNotKnow) {
  // Fewer rows than groups, and so many that their sums are made in pieces.
  for (const int64_t rows : {1, 31, 33, 9000}) {
    for (const int64_t columns : {1, 2, 9, 130}) {
      if (rows * columns > 100'000 && columns != 9) continue;
      SCOPED_TRACE(StrCat(rows, " x ", columns));
      CheckModule(Columns("f32", "f32", "sum", "s0", "s1"),
                  {.symbols = {rows, columns}, .tolerance = 1e-4, .only_ptx = true});
    }
  }
  EXPECT_THAT(Compile(Columns("f32", "f32", "sum", "s0", "s1")).schedules, HasSubstr("groups of"));
}

// Rows of several loops, of which one is shared, for each point of another.
TEST(PtxColumnsTest, OfSeveralLoopsAndPoints) {
  for (const std::string type : {"f32", "bf16"}) {
    CheckModule(absl::StrReplaceAll(R"(module {
  buffer @x TYPE[3,5,40,48] strides[9600,1920,48,1] input(0)
  buffer @w TYPE[40,3,48] strides[144,48,1] input(1)
  buffer @y f32[5,48] strides[48,1] output
  buffer @z f32[5,48] strides[48,1] output
  kernel @reduce (d0: 5, d1: 48) {
    phase (r0: 3, r1: 40) {
      %0 = load TYPE @x[r0, d0, r1, d1]
      %1 = load TYPE @w[r1, r0, d1]
      %2 = cast f32 %0
      %3 = cast f32 %1
      %4 = mul f32 %2, %3
      %5 = reduce.sum f32 %4
      %6 = reduce.max f32 %2
    }
    phase () {
      store f32 @y[d0, d1], %5
      %7 = add f32 %5, %6
      store f32 @z[d0, d1], %7
    }
  }
  output @y sizes[5,48] strides[48,1] offset 0
  output @z sizes[5,48] strides[48,1] offset 0
}
)",
                                    {{"TYPE", type}}),
                {.tolerance = 1e-4, .only_ptx = true});
  }
}

// What a reduction over one element gives is needed by all groups.
TEST(PtxColumnsTest, LoopsTakeWhatOthersOfOneIterationGive) {
  const std::string text = R"(module {
  buffer @w f32[1,48] strides[48,1] input(0)
  buffer @x f32[100,48] strides[48,1] input(1)
  buffer @y f32[48] strides[1] output
  kernel @reduce (d0: 48) {
    phase (r0: 1) {
      %0 = load f32 @w[r0, d0]
      %1 = reduce.sum f32 %0
    }
    phase (r0: 100) {
      %2 = load f32 @x[r0, d0]
      %3 = mul f32 %2, %1
      %4 = reduce.sum f32 %3
    }
    phase () {
      %5 = add f32 %4, %1
      store f32 @y[d0], %5
    }
  }
  output @y sizes[48] strides[1] offset 0
}
)";
  CheckModule(text, {.tolerance = 1e-4, .only_ptx = true});
  EXPECT_THAT(Compile(text).schedules, HasSubstr("groups of"));
}

// Each element that the loops store is of one group's iterations.
TEST(PtxColumnsTest, LoopsMayStore) {
  const std::string text = R"(module {
  buffer @x f32[40,72] strides[72,1] input(0)
  buffer @t f32[40,72] strides[72,1] output
  buffer @y f32[72] strides[1] output
  kernel @reduce (d0: 72) {
    phase (r0: 40) {
      %0 = load f32 @x[r0, d0]
      %1 = exp f32 %0
      store f32 @t[r0, d0], %1
      %2 = reduce.sum f32 %1
    }
    phase () {
      store f32 @y[d0], %2
    }
  }
  output @t sizes[40,72] strides[72,1] offset 0
  output @y sizes[72] strides[1] offset 0
}
)";
  CheckModule(text, {.tolerance = 1e-4, .only_ptx = true});
  EXPECT_THAT(Compile(text).schedules, HasSubstr("groups of"));
}

}  // namespace
}  // namespace kiln::codegen
