// Modules as text for the tests of this folder.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"
#include "compiler/ir/parse.h"
#include "gtest/gtest.h"

namespace kiln::ir {

// Parses `text`; a failed test and an empty module where that fails.
inline Module ParseForTest(absl::string_view text) {
  absl::StatusOr<Module> module = Parse(text);
  EXPECT_TRUE(module.ok()) << module.status() << "\nin\n" << std::string(text);
  return module.ok() ? *std::move(module) : Module();
}

// Every construct of the textual form, as Print writes it.
inline constexpr absl::string_view kEveryConstruct = R"(module {
  symbol s0 [2, 512] hint 128
  symbol batch [0, 9223372036854775807] hint 4
  buffer @x f32[s0,768] strides[768,1] input(0)
  buffer @index i64[s0] strides[1] input(1)
  buffer @table bf16[30522,768] strides[768,1] constant(0)
  buffer @mask bool[] strides[] input(2)
  buffer @m f32[s0] strides[1] temp
  buffer @"odd name\n" f32[s0,768] strides[768,1] temp
  buffer @y f32[s0,768] strides[768,1] output
  buffer @top f32[s0,5] strides[5,1] library
  buffer @top.i i64[s0,5] strides[5,1] library
  kernel @softmax (d0: s0) from "softmax_1", "quote \" and \\" {
    phase (r0: 768) {
      %0 = load f32 @x[d0, r0]
      %1 = reduce.max f32 %0
    }
    phase () {
      store f32 @m[d0], %1
    }
    phase (r0: 24, r1: 32) {
      %2 = load f32 @x[d0, 32*r0 + r1]
      %3 = sub f32 %2, %1
      %4 = exp f32 %3
      store f32 @"odd name\n"[d0, 32*r0 + r1], %4
    }
  }
  kernel @gather (d0: s0, d1: 768) {
    phase () {
      %0 = load i64 @index[d0]
      %1 = load bf16 @table[[%0], d1]
      %2 = load bf16 @table[[%0 < 30000] + 7, d1]
      %3 = cast f32 %1
      %4 = cast f32 %2
      %5 = index i64 d0 + min(8, d0) + mod(d0, 3) - 5*floordiv(d1, 7)
      %6 = const i64 -9223372036854775808
      %7 = lt bool %5, %6
      %8 = load f32 @x[max(0, d0 - 1), d1] if %7 else -inf
      %9 = const f32 nan
      %10 = const f32 1e-07
      %11 = const bool true
      %12 = select f32 %11, %9, %10
      %13 = fma f32 %12, %3, %4
      %14 = add f32 %13, %8
      store f32 @y[d0, d1], %14
    }
  }
  library "aten.topk.default" from "topk" (@y sizes[s0,768] strides[768,1] offset 0, int 5, int 2*s0 + 1, [true, none, [], "a,\tb"], largest = false, scale = float 0.1, phase = complex 0.5 -inf, out = dtype f8e5m2) -> (@top, _, @top.i)
  output @y sizes[768,s0] strides[1,768] offset 0
  output int batch*s0
  output none
}
)";

}  // namespace kiln::ir
