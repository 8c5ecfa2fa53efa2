// Kernels that run tile by tile, against the reference interpreter, which runs them one after
// another.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

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

struct BackwardSpec {
  std::string rows = "100", keys = "130";
  std::string symbols = "";
  std::string mask =
      "";  // from scores %3 to %5, with %6 = -inf, %7 the key's and %8 the row's place
  bool row_sums = false;  // of dP * P, as a softmax by hand has them; else given
  std::string type = "f32";
};

// P again from the scores and their row's logarithm of a sum, dS = P * (dP - t), and the gradients,
// of which some sum over what others have as a loop.
std::string Backward(const BackwardSpec& s) {
  const std::string by_hand = R"(
 kernel @dp contraction (d0: 8, d1: <R>, d2: <K>) {
  phase (r0: 16) {
   %0 = load f32 @g[d0, d1, r0]
   %1 = load f32 @v[d0, d2, r0]
   %2 = mul f32 %0, %1
   %3 = reduce.sum f32 %2
  }
  phase () {
   %4 = load TYPE @p[d0, d1, d2]
   %14 = cast f32 %4
   %5 = mul f32 %14, %3
   store f32 @d[d0, d1, d2], %5
  }
 }
 kernel @ds (d0: 8, d1: <R>) {
  phase (r0: <K>) {
   %0 = load f32 @d[d0, d1, r0]
   %1 = reduce.sum f32 %0
  }
  phase (r0: <K>) {
   %2 = load f32 @d[d0, d1, r0]
   %3 = load TYPE @p[d0, d1, r0]
   %13 = cast f32 %3
   %4 = mul f32 %13, %1
   %5 = sub f32 %2, %4
   %15 = cast TYPE %5
   store TYPE @s[d0, d1, r0], %15
  }
 })";
  const std::string given = R"(
 kernel @ds contraction (d0: 8, d1: <R>, d2: <K>) {
  phase (r0: 16) {
   %0 = load f32 @g[d0, d1, r0]
   %1 = load f32 @v[d0, d2, r0]
   %2 = mul f32 %0, %1
   %3 = reduce.sum f32 %2
  }
  phase () {
   %4 = load f32 @t[d0, d1]
   %5 = sub f32 %3, %4
   %6 = load TYPE @p[d0, d1, d2]
   %16 = cast f32 %6
   %7 = mul f32 %16, %5
   %17 = cast TYPE %7
   store TYPE @s[d0, d1, d2], %17
  }
 })";
  // Of f32 nothing is cast.
  const std::vector<std::pair<std::string, std::string>> plain = {
      {"%8 = load TYPE", "%0 = load f32"},
      {"   %0 = cast f32 %8\n", ""},
      {"%4 = load TYPE @p[d0, d1, d2]\n   %14 = cast f32 %4", "%14 = load f32 @p[d0, d1, d2]"},
      {"%3 = load TYPE @p[d0, d1, r0]\n   %13 = cast f32 %3", "%13 = load f32 @p[d0, d1, r0]"},
      {"   %15 = cast TYPE %5\n", ""},
      {"TYPE @s[d0, d1, r0], %15", "f32 @s[d0, d1, r0], %5"},
      {"%6 = load TYPE @p[d0, d1, d2]\n   %16 = cast f32 %6", "%16 = load f32 @p[d0, d1, d2]"},
      {"   %17 = cast TYPE %7\n", ""},
      {"TYPE @s[d0, d1, d2], %17", "f32 @s[d0, d1, d2], %7"},
      {"   %23 = cast TYPE %22\n", ""},
      {"TYPE @p[d0, d1, d2], %23", "f32 @p[d0, d1, d2], %22"}};
  const std::string plain_mask = "%5 = mul f32 %3, %4\n";
  const std::string text = absl::StrReplaceAll(
      absl::StrCat("module {\n", s.symbols, R"(
 buffer @q f32[8,<R>,16] strides[<R>*16,16,1] input(0)
 buffer @k f32[8,<K>,16] strides[<K>*16,16,1] input(1)
 buffer @v f32[8,<K>,16] strides[<K>*16,16,1] input(2)
 buffer @g f32[8,<R>,16] strides[<R>*16,16,1] input(3)
 buffer @l f32[8,<R>] strides[<R>,1] input(4)
 buffer @t f32[8,<R>] strides[<R>,1] input(5)
 buffer @p TYPE[8,<R>,<K>] strides[<R>*<K>,<K>,1] temp
 buffer @d f32[8,<R>,<K>] strides[<R>*<K>,<K>,1] temp
 buffer @s TYPE[8,<R>,<K>] strides[<R>*<K>,<K>,1] temp
 buffer @dq f32[8,<R>,16] strides[<R>*16,16,1] output
 buffer @dk f32[8,<K>,16] strides[<K>*16,16,1] output
 buffer @dv f32[8,<K>,16] strides[<K>*16,16,1] output
 kernel @p contraction (d0: 8, d1: <R>, d2: <K>) {
  phase (r0: 16) {
   %0 = load f32 @q[d0, d1, r0]
   %1 = load f32 @k[d0, d2, r0]
   %2 = mul f32 %0, %1
   %3 = reduce.sum f32 %2
  }
  phase () {
   %4 = const f32 0.3
   %6 = const f32 -inf
   %7 = index i64 d2
   %8 = index i64 d1
   <MASK>
   %20 = load f32 @l[d0, d1]
   %21 = sub f32 %5, %20
   %22 = exp f32 %21
   %23 = cast TYPE %22
   store TYPE @p[d0, d1, d2], %23
  }
 }
 <DS>
 kernel @dq contraction (d0: 8, d1: <R>, d2: 16) {
  phase (r0: <K>) {
   %8 = load TYPE @s[d0, d1, r0]
   %0 = cast f32 %8
   %1 = load f32 @k[d0, r0, d2]
   %2 = mul f32 %0, %1
   %3 = reduce.sum f32 %2
  }
  phase () {
   %4 = const f32 0.3
   %5 = mul f32 %3, %4
   store f32 @dq[d0, d1, d2], %5
  }
 }
 kernel @dk contraction (d0: 8, d1: <K>, d2: 16) {
  phase (r0: <R>) {
   %8 = load TYPE @s[d0, r0, d1]
   %0 = cast f32 %8
   %1 = load f32 @q[d0, r0, d2]
   %2 = mul f32 %0, %1
   %3 = reduce.sum f32 %2
  }
  phase () {
   %4 = const f32 0.3
   %5 = mul f32 %3, %4
   store f32 @dk[d0, d1, d2], %5
  }
 }
 kernel @dv contraction (d0: 8, d1: <K>, d2: 16) {
  phase (r0: <R>) {
   %8 = load TYPE @p[d0, r0, d1]
   %0 = cast f32 %8
   %1 = load f32 @g[d0, r0, d2]
   %2 = mul f32 %0, %1
   %3 = reduce.sum f32 %2
  }
  phase () {
   store f32 @dv[d0, d1, d2], %3
  }
 }
 output @dq sizes[8,<R>,16] strides[<R>*16,16,1] offset 0
 output @dk sizes[8,<K>,16] strides[<K>*16,16,1] offset 0
 output @dv sizes[8,<K>,16] strides[<K>*16,16,1] offset 0
}
)"),
      {{"<DS>", s.row_sums ? by_hand : given}, {"<MASK>", s.mask.empty() ? plain_mask : s.mask}});
  return absl::StrReplaceAll(s.type == "f32" ? absl::StrReplaceAll(text, plain) : text,
                             {{"TYPE", s.type}, {"<R>", s.rows}, {"<K>", s.keys}});
}

// What one head needs does not fit the second-level cache.
CheckOptions SmallCache(const std::vector<int64_t>& symbols = {}) {
  return {.symbols = symbols, .scale = 0.5, .tolerance = 1e-4, .l2_bytes = 32 << 10, .repeats = 1};
}

constexpr char kCausal[] =
    "%10 = mul f32 %3, %4\n %9 = le bool %7, %8\n"
    " %5 = select f32 %9, %10, %6\n";
constexpr char kWindow[] =
    "%10 = mul f32 %3, %4\n %9 = le bool %7, %8\n %11 = const i64 20\n"
    " %12 = sub i64 %8, %11\n %13 = gt bool %7, %12\n"
    " %14 = and bool %9, %13\n %15 = const f32 0\n"
    " %16 = select f32 %14, %15, %6\n %5 = add f32 %10, %16\n";

TEST(RepeatTest, GradientsSumOverTilesOfKeys) {
  CheckModule(Backward({.rows = "53", .keys = "149"}), SmallCache());
}

TEST(RepeatTest, GradientsOfMaskedAttention) {
  CheckModule(Backward({.rows = "70", .mask = kCausal}), SmallCache());
  CheckModule(Backward({.rows = "160", .mask = kWindow}), SmallCache());
}

// A sum over all keys leaves tiles of rows.
TEST(RepeatTest, GradientsSumOverTilesOfRows) {
  CheckModule(Backward({.rows = "130", .mask = kCausal, .row_sums = true}), SmallCache());
  CheckModule(Backward({.rows = "160", .mask = kWindow, .row_sums = true}), SmallCache());
}

TEST(RepeatTest, GradientsOfSymbolicSizes) {
  BackwardSpec spec{.rows = "s0",
                    .keys = "s1",
                    .symbols = "symbol s0 [1, 512] hint 128\n symbol s1 [1, 512] hint 90\n",
                    .mask = kWindow};
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{128, 90}, {1, 1}, {97, 201}}) {
    CheckModule(Backward(spec), SmallCache(sizes));
  }
  spec.row_sums = true;
  CheckModule(Backward(spec), SmallCache({130, 150}));
}

}  // namespace
}  // namespace kiln::codegen
