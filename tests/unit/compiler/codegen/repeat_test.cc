// Kernels that run tile by tile, against the reference interpreter, which runs them one after
// another.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/codegen/check_module.h"

namespace kiln::codegen {
namespace {

struct AttentionSpec {
  std::string batch = "2", heads = "3", rows = "40", keys = "40", width = "8";
  std::string symbols = "";
  bool causal = false, mask = false;
  std::string type = "f32";
};

// Scores, an exponential with its row's sum, and the product with the values, as lowering and
// fusion leave them. [batch, row, head, width] as the operands' memory has it.
std::string Attention(const AttentionSpec& s) {
  const auto load = [&](int id, const std::string& place) {
    return s.type == "f32" ? absl::StrCat("%", id, " = load f32 ", place, "\n")
                           : absl::StrCat("%", id + 20, " = load ", s.type, " ", place, "\n %", id,
                                          " = cast f32 %", id + 20, "\n");
  };
  std::string score = "%4 = const f32 0.3\n %5 = mul f32 %3, %4\n";
  if (s.causal) {
    absl::StrAppend(&score,
                    "%6 = index i64 d3\n %7 = index i64 d2\n %8 = le bool %6, %7\n"
                    " %9 = const f32 -inf\n %5 = select f32 %8, %15, %9\n");
    score = absl::StrReplaceAll(score, {{"%5 = mul", "%15 = mul"}});
  }
  if (s.mask) {
    absl::StrAppend(&score, "%10 = load f32 @m[d0, d2, d3]\n %11 = add f32 %5, %10\n");
  }
  const std::string value = s.type == "f32" ? "%14" : "%34";
  const std::string narrow = s.type == "f32" ? "" : absl::StrCat("%34 = cast ", s.type, " %14\n");
  const std::string result = s.type == "f32" ? "%7" : "%27";
  const std::string narrow_result =
      s.type == "f32" ? "" : absl::StrCat("%27 = cast ", s.type, " %7\n");
  return absl::StrReplaceAll(
      absl::StrCat("module {\n", s.symbols, R"(
 buffer @q TYPE[<B>,<R>,<H>,<W>] strides[<R>*<H>*<W>,<H>*<W>,<W>,1] input(0)
 buffer @k TYPE[<B>,<K>,<H>,<W>] strides[<K>*<H>*<W>,<H>*<W>,<W>,1] input(1)
 buffer @v TYPE[<B>,<K>,<H>,<W>] strides[<K>*<H>*<W>,<H>*<W>,<W>,1] input(2)
 buffer @m f32[<B>,<R>,<K>] strides[<R>*<K>,<K>,1] input(3)
 buffer @s f32[<B>,<H>,<R>,<K>] strides[<H>*<R>*<K>,<R>*<K>,<K>,1] temp
 buffer @e TYPE[<B>,<H>,<R>,<K>] strides[<H>*<R>*<K>,<R>*<K>,<K>,1] temp
 buffer @f f32[<B>,<H>,<R>] strides[<H>*<R>,<R>,1] temp
 buffer @o TYPE[<B>,<H>,<R>,<W>] strides[<R>*<H>*<W>,<W>,<H>*<W>,1] output
 kernel @scores contraction (d0: <B>, d1: <H>, d2: <R>, d3: <K>) {
  phase (r0: <W>) {
)",
                   load(0, "@q[d0, d2, d1, r0]"), load(1, "@k[d0, d3, d1, r0]"),
                   " %2 = mul f32 %0, %1\n %3 = reduce.sum f32 %2\n }\n phase () {\n", score,
                   "store f32 @s[d0, d1, d2, d3], ", s.mask ? "%11" : "%5", R"(
  }
 }
 kernel @weights (d0: <B>, d1: <H>, d2: <R>) {
  phase (r0: <K>) {
   %0 = load f32 @s[d0, d1, d2, r0]
   %1 = reduce.max f32 %0
  }
  phase (r0: <K>) {
   %12 = load f32 @s[d0, d1, d2, r0]
   %13 = sub f32 %12, %1
   %14 = exp f32 %13
   )",
                   narrow, "store TYPE @e[d0, d1, d2, r0], ", value, R"(
   %15 = reduce.sum f32 %14
  }
  phase () {
   %16 = const f32 1
   %17 = div f32 %16, %15
   store f32 @f[d0, d1, d2], %17
  }
 }
 kernel @product contraction (d0: <B>, d1: <H>, d2: <R>, d3: <W>) {
  phase (r0: <K>) {
)",
                   load(0, "@e[d0, d1, d2, r0]"), load(1, "@v[d0, r0, d1, d3]"), R"(
   %2 = mul f32 %0, %1
   %3 = reduce.sum f32 %2
  }
  phase () {
   %6 = load f32 @f[d0, d1, d2]
   %7 = mul f32 %3, %6
   )",
                   narrow_result, "store TYPE @o[d0, d1, d2, d3], ", result, R"(
  }
 }
 output @o sizes[<B>,<R>,<H>,<W>] strides[<R>*<H>*<W>,<H>*<W>,<W>,1] offset 0
}
)"),
      {{"TYPE", s.type},
       {"<B>", s.batch},
       {"<H>", s.heads},
       {"<R>", s.rows},
       {"<K>", s.keys},
       {"<W>", s.width}});
}

TEST(RepeatTest, WholeHeads) {
  CheckModule(Attention({.batch = "3"}), {.tolerance = 1e-4, .repeats = 1});
}

TEST(RepeatTest, RowsThatAreNoWholeTiles) {
  CheckModule(Attention({.batch = "1", .heads = "4", .rows = "149", .keys = "37"}),
              {.tolerance = 1e-4, .repeats = 1});
}

TEST(RepeatTest, CausalAndMasked) {
  CheckModule(Attention({.heads = "4", .rows = "130", .keys = "130", .causal = true}),
              {.tolerance = 1e-4, .repeats = 1});
  CheckModule(Attention({.heads = "4", .rows = "99", .keys = "70", .causal = true}),
              {.tolerance = 1e-4, .repeats = 1});
  CheckModule(Attention({.heads = "4", .rows = "51", .keys = "70", .mask = true}),
              {.tolerance = 1e-4, .repeats = 1});
}

TEST(RepeatTest, Bfloat16) {
  CheckModule(Attention({.heads = "4", .rows = "100", .keys = "47", .width = "16", .type = "bf16"}),
              {.tolerance = 2e-2, .repeats = 1});
  for (const char* size : {"61", "60"}) {
    CheckModule(Attention({.heads = "4",
                           .rows = size,
                           .keys = size,
                           .width = "16",
                           .causal = true,
                           .type = "bf16"}),
                {.tolerance = 2e-2, .repeats = 1});
  }
}

TEST(RepeatTest, SymbolicSizes) {
  const std::string symbols =
      "symbol s0 [1, 64] hint 3\n symbol s1 [1, 512] hint 128\n symbol s2 [1, 512] hint 90\n";
  const std::string text =
      Attention({.batch = "s0", .heads = "4", .rows = "s1", .keys = "s2", .symbols = symbols});
  CheckModule(text, {.symbols = {3, 128, 90}, .tolerance = 1e-4, .repeats = 1});
  CheckModule(text, {.symbols = {1, 1, 1}, .tolerance = 1e-4, .repeats = 1});
  CheckModule(text, {.symbols = {2, 97, 201}, .tolerance = 1e-4, .repeats = 1});
}

}  // namespace
}  // namespace kiln::codegen
