// A few rows times a matrix that is contiguous along the sum.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

// y[m, n] = (sum over k of f(x[m, k]) * g(w[n, k]) + c[n]) / 2; `factor` makes %2 of %0 = x[m, k],
// `weight` makes %3 of %1 = w[n, k], which has 64 places beside its own for each n.
std::string Product(int m, int n, const std::string& k, const std::string& x_type,
                    const std::string& w_type, const std::string& factor,
                    const std::string& weight) {
  const std::string sum = x_type == "f64" ? "f64" : "f32";
  return absl::StrReplaceAll(
      R"(module {
        SYMBOL
        buffer @x XTYPE[M,K] strides[K,1] input(0)
        buffer @w WTYPE[N,K] strides[1024,1] input(1)
        buffer @c SUM[N] strides[1] input(2)
        buffer @y SUM[M,N] strides[N,1] output
        kernel @mm (d0: M, d1: N) {
          phase (r0: K) {
            %0 = load XTYPE @x[d0, r0]
            %1 = load WTYPE @w[d1, r0]
            FACTOR
            WEIGHT
            %4 = mul SUM %2, %3
            %5 = reduce.sum SUM %4
          }
          phase () {
            %6 = load SUM @c[d1]
            %7 = add SUM %5, %6
            %8 = const SUM 0.5
            %9 = mul SUM %7, %8
            store SUM @y[d0, d1], %9
          }
        }
        output @y sizes[M,N] strides[N,1] offset 0
      })",
      {{"SYMBOL", k == "s0" ? "symbol s0 [1, 1024] hint 512" : ""},
       {"FACTOR", factor},
       {"WEIGHT", weight},
       {"XTYPE", x_type},
       {"WTYPE", w_type},
       {"SUM", sum},
       {"M", StrCat(m)},
       {"N", StrCat(n)},
       {"K", k}});
}

constexpr char kWidenFactor[] = "%2 = cast f32 %0", kWidenWeight[] = "%3 = cast f32 %1";
// Of whole numbers with a scale of each row.
constexpr char kScaledWeight[] =
    "%10 = cast f32 %1\n %11 = load f32 @c[d1]\n %3 = mul f32 %10, %11";

std::string PlainProduct(int m, int n, const std::string& type) {
  std::string text = Product(m, n, "130", type, type, "", "");
  return absl::StrReplaceAll(text, {{"%2, %3", "%0, %1"}});
}

bool ReadsRowsOnce(const std::string& text) {
  const auto source = EmitText(text, TestDevice("avx512"));
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() && source->find("alignas(64) float a") != std::string::npos;
}

TEST(RowDotsTest, PlainOperands) {
  for (const char* type : {"f32", "f64"}) {
    CheckModule(PlainProduct(1, 70, type), {.tolerance = 1e-4});
  }
}

TEST(RowDotsTest, WidenedOperands) {
  for (const char* type : {"bf16", "f16"}) {
    CheckModule(Product(1, 70, "130", type, type, kWidenFactor, kWidenWeight), {.tolerance = 1e-4});
  }
}

TEST(RowDotsTest, AFactorThatIsComputedOnce) {
  CheckModule(Product(1, 70, "130", "f32", "f32", "%2 = exp f32 %0", "%3 = neg f32 %1"),
              {.tolerance = 1e-3});
}

TEST(RowDotsTest, WholeNumbersWithAScale) {
  CheckModule(Product(1, 70, "130", "f32", "i8", "%2 = neg f32 %0", kScaledWeight),
              {.int_min = -128, .int_max = 128, .scale = 0.1, .tolerance = 1e-4});
}

TEST(RowDotsTest, AFewRowsShareTheMatrix) {
  for (const int m : {2, 4}) {
    CheckModule(Product(m, 70, "130", "bf16", "bf16", kWidenFactor, kWidenWeight),
                {.tolerance = 1e-4});
  }
  CheckModule(PlainProduct(3, 70, "f32"), {.tolerance = 1e-4});
}

TEST(RowDotsTest, ASymbolicDepth) {
  for (const int64_t depth : {1, 15, 700}) {
    CheckModule(Product(2, 70, "s0", "bf16", "f32", kWidenFactor, "%3 = neg f32 %1"),
                {.symbols = {depth}, .tolerance = 1e-4});
  }
}

// Scores of a query of each head over its keys, which pairs of heads share, as decoding has them.
TEST(RowDotsTest, AMatrixForEachOfABatch) {
  const std::string text = R"(module {
    buffer @q f32[3,4,64] strides[256,64,1] input(0)
    buffer @k f32[3,2,70,64] strides[8960,4480,64,1] input(1)
    buffer @y f32[3,4,70] strides[280,70,1] output
    kernel @scores (d0: 3, d1: 4, d2: 70) {
      phase (r0: 64) {
        %0 = load f32 @q[d0, d1, r0]
        %1 = load f32 @k[d0, floordiv(d1, 2), d2, r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        %4 = const f32 0.125
        %5 = mul f32 %3, %4
        store f32 @y[d0, d1, d2], %5
      }
    }
    output @y sizes[3,4,70] strides[280,70,1] offset 0
  })";
  EXPECT_TRUE(ReadsRowsOnce(text));
  CheckModule(text, {.tolerance = 1e-4});
}

TEST(RowDotsTest, NotOfAMatrixOfFewRows) {
  EXPECT_TRUE(ReadsRowsOnce(PlainProduct(1, 70, "f32")));
  EXPECT_FALSE(ReadsRowsOnce(PlainProduct(1, 40, "f32"))) << "few rows of the matrix";
}

}  // namespace
}  // namespace kiln::codegen
