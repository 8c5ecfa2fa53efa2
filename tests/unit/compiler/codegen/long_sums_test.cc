// Sums in blocks and levels, against the reference interpreter.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/compiler/codegen/check_module.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

// Sums of whole numbers, which are exact in any order: every term counts once, whatever blocks and
// levels the length makes.
TEST(LongSumsTest, LongSumsTakeEveryTermOnce) {
  for (const char* kept : {"d0", "r0"}) {
    const bool rows = kept[0] == 'r';  // summed over the first dimension, lanes along the second
    const std::string sizes = rows ? "s0,24" : "24,s0", strides = rows ? "24,1" : "s0,1";
    const std::string text = StrCat(
        "module {\n symbol s0 [0, 1048576] hint 512\n buffer @x f32[", sizes, "] strides[", strides,
        "] input(0)\n buffer @o f32[24] strides[1] output\n",
        " kernel @k (d0: 24) {\n phase (r0: s0) {\n %0 = load f32 @x[", rows ? "r0, d0" : "d0, r0",
        "]\n %1 = reduce.sum f32 %0\n }\n phase () {\n store f32 @o[d0], %1\n }\n }\n"
        " output @o sizes[24] strides[1] offset 0\n}\n");
    for (const int64_t length : {1, 4096, 70001}) {
      CheckModule(text,
                  {.symbols = {length}, .integral_floats = true, .tolerance = 0, .threads = {1}});
    }
  }
}

TEST(LongSumsTest, LongSumsOverSeveralLoopsTakeEveryTermOnce) {
  const std::string text =
      "module {\n buffer @x f32[300,5,7] strides[35,7,1] input(0)\n buffer @o f32[5] strides[1] "
      "output\n kernel @k (d0: 5) {\n phase (r0: 300, r1: 7) {\n %0 = load f32 @x[r0, d0, r1]\n %1 "
      "= reduce.sum f32 %0\n %2 = reduce.max f32 %0\n }\n phase () {\n %3 = add f32 %1, %2\n store "
      "f32 @o[d0], %3\n }\n }\n output @o sizes[5] strides[1] offset 0\n}\n";
  CheckModule(text, {.integral_floats = true, .tolerance = 0});
}

}  // namespace
}  // namespace kiln::codegen
