// Sums down the columns of matrices that no cache holds: in parts, then of all parts.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

const CheckOptions kSmallCache{.tolerance = 1e-4, .l2_bytes = 4096};

// y[m, n] = (sum over k of 2 * x[m, k] * w[k, n] + c[n]) / 2, the operands of TYPE; rows of w
// lie far apart.
std::string Product(int m, int n, const std::string& k, const std::string& type) {
  const bool half = type == "bf16";
  return absl::StrReplaceAll(
      R"(module {
        SYMBOL
        buffer @x TYPE[M,K] strides[K,1] input(0)
        buffer @w TYPE[K,N] strides[2048,1] input(1)
        buffer @c SUM[N] strides[1] input(2)
        buffer @y SUM[M,N] strides[N,1] output
        kernel @mm (d0: M, d1: N) {
          phase (r0: K) {
            %0 = load TYPE @x[d0, r0]
            %1 = load TYPE @w[r0, d1]
            CASTS
            %4 = const SUM 2
            %5 = mul SUM %2, %4
            %6 = mul SUM %5, %3
            %7 = reduce.sum SUM %6
          }
          phase () {
            %8 = load SUM @c[d1]
            %9 = add SUM %7, %8
            %10 = const SUM 0.5
            %12 = mul SUM %9, %10
            store SUM @y[d0, d1], %12
          }
        }
        output @y sizes[M,N] strides[N,1] offset 0
      })",
      {{"SYMBOL", k == "s0" ? "symbol s0 [1, 4096] hint 512" : ""},
       {"CASTS", half ? "%2 = cast f32 %0\n %3 = cast f32 %1"
                      : StrCat("%11 = const ", type, " 1\n %2 = mul ", type, " %0, %11\n %3 = mul ",
                               type, " %1, %11")},
       {"TYPE", type},
       {"SUM", half ? "f32" : type},
       {"M", StrCat(m)},
       {"N", StrCat(n)},
       {"K", k}});
}

bool IsInParts(const std::string& text, int64_t l2_bytes = 4096) {
  DeviceInfo device = TestDevice("avx512");
  device.l2_bytes = l2_bytes;
  const auto source = EmitText(text, device);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() && source->find("args.context->scratch") != std::string::npos;
}

TEST(ColumnSumsTest, EveryTypeAndLengthsThatAreNoWholeTrips) {
  const std::pair<const char*, const char*> cases[] = {
      {"f32", "64"}, {"f32", "139"}, {"f64", "67"}, {"bf16", "67"}};
  for (const auto& [type, k] : cases) {
    const std::string text = Product(1, 70, k, type);
    EXPECT_TRUE(IsInParts(text)) << text;
    CheckModule(text, kSmallCache);
  }
}

TEST(ColumnSumsTest, RowsThatShareTheMatrixReadItOnceInTasksOfColumns) {
  const std::string text = Product(3, 1400, "64", "f32");
  EXPECT_TRUE(IsInParts(text));
  CheckModule(text, kSmallCache);
}

TEST(ColumnSumsTest, ASymbolicNumberOfRows) {
  for (const int64_t rows : {1, 3, 33, 700}) {
    CheckOptions options = kSmallCache;
    options.symbols = {rows};
    CheckModule(Product(1, 40, "s0", "f32"), options);
  }
}

TEST(ColumnSumsTest, NotOfMatricesThatTheCacheHolds) {
  EXPECT_FALSE(IsInParts(Product(1, 40, "64", "f32"), 1 << 20));
}

// Each outer point has a matrix of its own, and two sums that a later phase uses.
TEST(ColumnSumsTest, TwoSumsOfBatches) {
  const std::string text = R"(module {
    buffer @x f32[3,80,50] strides[80000,1000,1] input(0)
    buffer @y f32[3,50] strides[50,1] output
    kernel @k (d0: 3, d1: 50) {
      phase (r0: 80) {
        %0 = load f32 @x[d0, r0, d1]
        %1 = mul f32 %0, %0
        %2 = reduce.sum f32 %0
        %3 = reduce.sum f32 %1
      }
      phase () {
        %4 = mul f32 %2, %2
        %5 = sub f32 %3, %4
        store f32 @y[d0, d1], %5
      }
    }
    output @y sizes[3,50] strides[50,1] offset 0
  })";
  EXPECT_TRUE(IsInParts(text));
  CheckModule(text, {.integral_floats = true, .tolerance = 1e-6, .l2_bytes = 4096});
}

// A NaN is the greatest and the least of its column.
TEST(ColumnSumsTest, GreatestAndLeastElements) {
  for (const std::string type : {"f32", "bf16"}) {
    const std::string text = absl::StrReplaceAll(R"(module {
      buffer @x TYPE[150,70] strides[1024,1] input(0)
      buffer @y TYPE[70] strides[1] output
      buffer @z TYPE[70] strides[1] output
      kernel @k (d0: 70) {
        phase (r0: 150) {
          %0 = load TYPE @x[r0, d0]
          %1 = neg TYPE %0
          %2 = reduce.max TYPE %1
          %3 = reduce.min TYPE %0
        }
        phase () {
          store TYPE @y[d0], %2
          store TYPE @z[d0], %3
        }
      }
      output @y sizes[70] strides[1] offset 0
      output @z sizes[70] strides[1] offset 0
    })",
                                                 {{"TYPE", type}});
    EXPECT_TRUE(IsInParts(text));
    CheckModule(text, {.nan_every = 997, .tolerance = 0, .l2_bytes = 4096});
  }
}

// A part's rows are added up by themselves: of whole numbers each counts once.
TEST(ColumnSumsTest, LongColumnsTakeEveryTermOnce) {
  const std::string text = R"(module {
    buffer @x f32[4200,33] strides[512,1] input(0)
    buffer @y f32[33] strides[1] output
    kernel @k (d0: 33) {
      phase (r0: 4200) {
        %0 = load f32 @x[r0, d0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @y[d0], %1
      }
    }
    output @y sizes[33] strides[1] offset 0
  })";
  EXPECT_TRUE(IsInParts(text));
  CheckModule(text, {.integral_floats = true, .tolerance = 0, .threads = {1}, .l2_bytes = 4096});
}

}  // namespace
}  // namespace kiln::codegen
