// Contractions whose weights are laid out before, by kernels that run once for many calls.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

// y = relu(a @ b + c), the weight b a parameter; widened where TYPE has 16 bits.
std::string Linear(int m, int n, int k, const std::string& type, bool transposed) {
  const bool widened = type == "bf16" || type == "f16";
  const std::string cast = widened ? "%6 = cast f32 %0\n %7 = cast f32 %1\n" : "";
  return absl::StrReplaceAll(
      StrCat("module {\n buffer @a TYPE[", m, ",", k, "] strides[", k,
             ",1] input(0)\n buffer @b TYPE[", k, ",", n, "] strides",
             transposed ? StrCat("[1,", k, "]") : StrCat("[", n, ",1]"),
             " input(1) parameter\n buffer @c SUM[", n,
             "] strides[1] input(2) parameter\n buffer @y SUM[", m, ",", n, "] strides[", n,
             ",1] output\n kernel @mm contraction (d0: ", m, ", d1: ", n, ") {\n phase (r0: ", k,
             ") {\n %0 = load TYPE @a[d0, r0]\n %1 = load TYPE @b[r0, d1]\n ", cast,
             widened ? "%2 = mul SUM %6, %7" : "%2 = mul SUM %0, %1",
             "\n %3 = reduce.sum SUM %2\n }\n phase () {\n %4 = load SUM @c[d1]\n"
             " %5 = add SUM %3, %4\n store SUM @y[d0, d1], %5\n }\n }\n output @y sizes[",
             m, ",", n, "] strides[", n, ",1] offset 0\n}\n"),
      {{"TYPE", type}, {"SUM", widened ? "f32" : type}});
}

TEST(PackedTest, WeightsOfEveryLayoutAndType) {
  for (const char* type : {"f32", "f64", "bf16", "f16"}) {
    for (bool transposed : {false, true}) {
      CheckModule(Linear(21, 75, 46, type, transposed),
                  {.tolerance = 1e-4, .prepare_bytes = 1 << 20, .packed = 1});
      // And where nothing is prepared: tiles of every number of lanes are turned.
      CheckModule(Linear(21, 75, 46, type, transposed), {.tolerance = 1e-4});
    }
  }
}

TEST(PackedTest, FewLanesAndWholePanels) {
  for (int n : {30, 96}) {
    CheckModule(Linear(9, n, 24, "f32", true),
                {.tolerance = 1e-4, .prepare_bytes = 1 << 20, .packed = 1});
  }
}

TEST(PackedTest, ThreeRows) {
  for (const char* type : {"f32", "bf16", "f16"}) {
    CheckModule(Linear(3, 70, 46, type, false),
                {.tolerance = 1e-4, .prepare_bytes = 1 << 20, .packed = 1});
  }
}

TEST(PackedTest, ManyRowsShareFewPanels) {
  CheckModule(Linear(150, 40, 30, "f32", false),
              {.tolerance = 1e-4, .prepare_bytes = 1 << 20, .packed = 1});
}

TEST(PackedTest, WhatTheBudgetDoesNotHoldIsPackedInTheRun) {
  CheckModule(Linear(21, 75, 46, "f32", true), {.tolerance = 1e-4, .prepare_bytes = 64});
}

// Of pairs of bf16 an odd depth needs a zero, which panels that are made before do not have.
TEST(PackedTest, OddDepths) {
  CheckModule(Linear(21, 75, 45, "f32", true),
              {.tolerance = 1e-4, .prepare_bytes = 1 << 20, .packed = 1});
}

// Batches, a weight that is scaled where it is read, and rows of a symbolic number.
TEST(PackedTest, ComputedWeightsOfBatchesForAnyNumberOfRows) {
  const std::string text = R"(module {
    symbol s0 [2, 512] hint 64
    buffer @a f32[6,s0,34] strides[34*s0,34,1] input(0)
    buffer @w f32[6,20,34] strides[680,34,1] input(1) parameter
    buffer @g f32[6] strides[1] input(2) parameter
    buffer @y f32[6,s0,20] strides[20*s0,20,1] output
    kernel @mm contraction (d0: 6, d1: s0, d2: 20) {
      phase (r0: 34) {
        %0 = load f32 @a[d0, d1, r0]
        %1 = load f32 @w[d0, d2, r0]
        %2 = load f32 @g[d0]
        %3 = mul f32 %1, %2
        %4 = mul f32 %0, %3
        %5 = reduce.sum f32 %4
      }
      phase () {
        store f32 @y[d0, d1, d2], %5
      }
    }
    output @y sizes[6,s0,20] strides[20*s0,20,1] offset 0
  })";
  for (int64_t rows : {7, 64, 129}) {
    CheckModule(text,
                {.symbols = {rows}, .tolerance = 1e-4, .prepare_bytes = 1 << 20, .packed = 1});
  }
}

// A layer that is called twice keeps one copy of its panels, and what depends on parameters alone
// runs before.
TEST(PackedTest, TwoProductsShareTheirPanels) {
  CheckModule(R"(module {
    buffer @x f32[12,40] strides[40,1] input(0)
    buffer @w f32[40,40] strides[40,1] input(1) parameter
    buffer @v f32[40] strides[1] input(2) parameter
    buffer @s f32[40] strides[1] temp
    buffer @h f32[12,40] strides[40,1] temp
    buffer @y f32[12,40] strides[40,1] output
    kernel @first contraction (d0: 12, d1: 40) {
      phase (r0: 40) {
        %0 = load f32 @x[d0, r0]
        %1 = load f32 @w[d1, r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @h[d0, d1], %3
      }
    }
    kernel @scale (d0: 40) {
      phase () {
        %0 = load f32 @v[d0]
        %1 = exp f32 %0
        store f32 @s[d0], %1
      }
    }
    kernel @second contraction (d0: 12, d1: 40) {
      phase (r0: 40) {
        %0 = load f32 @h[d0, r0]
        %1 = load f32 @w[d1, r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        %4 = load f32 @s[d1]
        %5 = mul f32 %3, %4
        store f32 @y[d0, d1], %5
      }
    }
    output @y sizes[12,40] strides[40,1] offset 0
  })",
              {.tolerance = 1e-4, .prepare_bytes = 1 << 20, .packed = 2});
}

}  // namespace
}  // namespace kiln::codegen
