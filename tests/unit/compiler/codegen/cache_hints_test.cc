// What a kernel of loops keeps, streams and prefetches.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

std::string Softmax(int rows, int columns) {
  return absl::StrReplaceAll(R"(module {
    buffer @x f32[R,C] strides[C,1] input(0)
    buffer @y f32[R,C] strides[C,1] output
    kernel @k (d0: R) {
      phase (r0: C) {
        %0 = load f32 @x[d0,r0]
        %1 = reduce.max f32 %0
      }
      phase (r0: C) {
        %2 = load f32 @x[d0,r0]
        %3 = sub f32 %2, %1
        %4 = exp f32 %3
        %5 = reduce.sum f32 %4
      }
      phase (r0: C) {
        %6 = load f32 @x[d0,r0]
        %7 = sub f32 %6, %1
        %8 = exp f32 %7
        %9 = div f32 %8, %5
        store f32 @y[d0,r0], %9
      }
    }
    output @y sizes[R,C] strides[C,1] offset 0
  })",
                             {{"R", StrCat(rows)}, {"C", StrCat(columns)}});
}

size_t Count(absl::string_view text, absl::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != absl::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(CacheHintsTest, AnExponentialOfTwoPhasesIsComputedOnce) {
  for (int columns : {5, 64, 199}) CheckModule(Softmax(7, columns));
  CheckModule(Softmax(2, 9000));  // too long to keep
  auto kept = EmitText(Softmax(7, 199), TestDevice("avx512"));
  auto computed_twice = EmitText(Softmax(2, 9000), TestDevice("avx512"));
  ASSERT_TRUE(kept.ok() && computed_twice.ok());
  EXPECT_EQ(Count(*kept, "KExp("), 1u);
  EXPECT_EQ(Count(*computed_twice, "KExp("), 2u);
}

TEST(CacheHintsTest, LargeResultsAreWrittenPastTheCaches) {
  const CheckOptions small_cache{.l3_bytes = 1024};
  for (const std::string type : {"f32", "f64", "bf16", "f16", "i64", "u8", "bool"}) {
    const std::string op = type == "bool" ? "xor" : "add";
    CheckModule(OpsModule(type, {op}, 2, type, 1337), small_cache);
  }
  // Rows that start anywhere in a line.
  CheckModule(Softmax(23, 77), small_cache);
  CheckModule(Softmax(23, 64), small_cache);
  DeviceInfo device = TestDevice("avx512");
  auto cached = EmitText(Softmax(23, 77), device);
  device.l3_bytes = 1024;
  auto streamed = EmitText(Softmax(23, 77), device);
  ASSERT_TRUE(cached.ok() && streamed.ok());
  EXPECT_EQ(Count(*cached, "KStream"), 0u);
  EXPECT_EQ(Count(*streamed, "KStream<"), 1u);
  EXPECT_EQ(Count(*streamed, "KStreamEnd()"), 1u);
}

// x turned and y as it is, ROWS by LANES, in rows that lie PITCH elements apart.
std::string TurnedPlus(const std::string& type, const std::string& rows, const std::string& lanes,
                       int pitch, const std::string& symbols = "") {
  return absl::StrReplaceAll(R"(module {
    SYMBOLS
    buffer @x TYPE[LANES,ROWS] strides[PITCH,1] input(0)
    buffer @y TYPE[ROWS,LANES] strides[PITCH,1] input(1)
    buffer @o TYPE[ROWS,LANES] strides[PITCH,1] output
    kernel @k (d0: ROWS, d1: LANES) {
      phase () {
        %0 = load TYPE @x[d1,d0]
        %1 = load TYPE @y[d0,d1]
        %2 = OP TYPE %0, %1
        store TYPE @o[d0,d1], %2
      }
    }
    output @o sizes[ROWS,LANES] strides[PITCH,1] offset 0
  })",
                             {{"SYMBOLS", symbols},
                              {"TYPE", type},
                              {"ROWS", rows},
                              {"LANES", lanes},
                              {"PITCH", StrCat(pitch)},
                              {"OP", type == "bool" ? "xor" : "sub"}});
}

TEST(CacheHintsTest, WhatIsTurnedFromMemoryIsTurnedInSquares) {
  const CheckOptions small_cache{.l3_bytes = 1024};
  const auto check = [&](const std::string& type, int rows, int lanes) {
    CheckModule(TurnedPlus(type, StrCat(rows), StrCat(lanes), 320), small_cache);
  };
  for (const std::string type : {"f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool"}) {
    check(type, 130, 310);
  }
  for (const auto& [rows, lanes] :
       std::vector<std::pair<int, int>>{{128, 128}, {37, 75}, {16, 200}, {300, 17}, {3, 5}}) {
    check(rows < 100 ? "f32" : "bf16", rows, lanes);
  }
  for (const int size : {1, 16, 77, 257}) {
    CheckModule(TurnedPlus("f32", "s0", "s1", 320,
                           "symbol s0 [1, 300] hint 200\nsymbol s1 [1, 300] hint 150"),
                {.symbols = {size, 300 - size}, .l3_bytes = 1024});
  }
  DeviceInfo device = TestDevice("avx512");
  const auto squares = [&](int pitch) {
    const auto source = EmitText(TurnedPlus("f32", "128", "128", pitch), device);
    EXPECT_TRUE(source.ok()) << source.status();
    // The later square's line, and that of the row which is not turned.
    return source.ok() && absl::StrContains(*source, "float a0[256]") &&
           Count(*source, "KPrefetch<16>") == 2;
  };
  EXPECT_FALSE(squares(320));  // from the caches
  device.l3_bytes = 1024;
  EXPECT_TRUE(squares(320));
  EXPECT_FALSE(squares(321));                  // rows begin within lines
  EXPECT_FALSE(squares((2 << 20) / 64 + 16));  // what is turned lies far apart
  EXPECT_TRUE(squares((2 << 20) / 64));
}

TEST(CacheHintsTest, RowsOfNarrowElementsAreFetchedAhead) {
  for (const std::string type : {"bf16", "f32"}) {
    const std::string text = absl::StrReplaceAll(R"(module {
      buffer @x TYPE[40,190] strides[192,1] input(0)
      buffer @w TYPE[40,190] strides[190,1] input(1)
      buffer @y f32[40] strides[1] output
      kernel @k (d0: 40) {
        phase (r0: 190) {
          %0 = load TYPE @x[d0,r0]
          %1 = load TYPE @w[d0,r0]
          %2 = cast f32 %0
          %3 = cast f32 %1
          %4 = mul f32 %2, %3
          %5 = reduce.sum f32 %4
          %6 = reduce.max f32 %2
        }
        phase () {
          %7 = add f32 %5, %6
          store f32 @y[d0], %7
        }
      }
      output @y sizes[40] strides[1] offset 0
    })",
                                                 {{"TYPE", type}});
    CheckModule(text, {.l2_bytes = 4096});
    DeviceInfo device = TestDevice("avx512");
    const auto cached = EmitText(text, device);
    device.l2_bytes = 4096;
    const auto far = EmitText(text, device);
    ASSERT_TRUE(cached.ok() && far.ok());
    EXPECT_EQ(Count(*cached, "KPrefetch<"), 0u);
    EXPECT_EQ(Count(*far, "KPrefetch<"), type == "bf16" ? 2u : 0u);
  }
}

std::string ProductOfColumns(int rows, int columns) {
  return absl::StrReplaceAll(R"(module {
    buffer @x f32[R,C] strides[C,1] input(0)
    buffer @y f32[C] strides[1] output
    kernel @k (d0: C) {
      phase (r0: R) {
        %0 = load f32 @x[r0,d0]
        %1 = reduce.prod f32 %0
      }
      phase () {
        store f32 @y[d0], %1
      }
    }
    output @y sizes[C] strides[1] offset 0
  })",
                             {{"R", StrCat(rows)}, {"C", StrCat(columns)}});
}

TEST(CacheHintsTest, WhatALaterPhaseReadsAgainIsFetchedForTheNextRow) {
  const CheckOptions small_cache{.l2_bytes = 4096};
  CheckModule(Softmax(23, 77), small_cache);
  CheckModule(Softmax(23, 64), small_cache);
  DeviceInfo device = TestDevice("avx512");
  auto cached = EmitText(Softmax(23, 77), device);
  device.l2_bytes = 4096;
  auto fetched = EmitText(Softmax(23, 77), device);
  auto rows_too_long = EmitText(Softmax(23, 700), device);
  ASSERT_TRUE(cached.ok() && fetched.ok() && rows_too_long.ok());
  EXPECT_EQ(Count(*cached, "KPrefetch<"), 0u);
  EXPECT_EQ(Count(*fetched, "KPrefetch<"), 1u) << *fetched;
  EXPECT_EQ(Count(*rows_too_long, "KPrefetch<"), 0u);
}

TEST(CacheHintsTest, ReductionsOverColumnsFetchRowsThatLieFarApart) {
  const CheckOptions small_cache{.l2_bytes = 4096};
  CheckModule(ProductOfColumns(100, 600), small_cache);
  DeviceInfo device = TestDevice("avx512");
  device.l2_bytes = 4096;
  auto far = EmitText(ProductOfColumns(100, 600), device);
  auto near = EmitText(ProductOfColumns(100, 128), device);
  auto few = EmitText(ProductOfColumns(8, 600), device);
  ASSERT_TRUE(far.ok() && near.ok() && few.ok());
  EXPECT_EQ(Count(*far, "KPrefetch<"), 1u) << *far;
  EXPECT_EQ(Count(*near, "KPrefetch<"), 0u);
  EXPECT_EQ(Count(*few, "KPrefetch<"), 0u);
}

}  // namespace
}  // namespace kiln::codegen
