// Kernels with Schedule::kLoops, against the reference interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/codegen/cpp/cpp_target.h"
#include "compiler/ir/parse.h"
#include "proto/base/status_macros.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

TEST(LoopsTest, FloatArithmetic) {
  for (const std::string type : {"f32", "f64", "f16", "bf16"}) {
    CheckModule(
        OpsModule(type, {"add", "sub", "mul", "div", "min", "max", "copysign"}, 2, type, 45),
        {.nan_every = 7});
    CheckModule(
        OpsModule(type, {"neg", "abs", "sign", "floor", "ceil", "trunc", "round"}, 1, type, 45),
        {.scale = 3});
  }
}

// Offsets that are sums of many sizes, as those of a cat's parts: LLVM sees one value. Its time for
// the sums themselves grows beyond all measure.
TEST(LoopsTest, OffsetsThatAreLongSums) {
  std::string symbols, sum;
  for (int i = 0; i < 9; ++i) {
    absl::StrAppend(&symbols, " symbol s", i, " [1, 100] hint 5\n");
    absl::StrAppend(&sum, i == 0 ? "" : " + ", i % 2 == 0 ? "" : "2 * ", "s", i);
  }
  const std::string text =
      StrCat("module {\n", symbols, " buffer @x f32[", sum, ",3] strides[3,1] input(0)\n",
             " buffer @o f32[", sum, ",3] strides[3,1] output\n kernel @k (d0: ", sum,
             ", d1: 3) {\n phase () {\n %0 = load f32 @x[", sum, " - 1 - d0, d1]\n",
             " %1 = index i64 ", sum, " - d0\n %2 = cast f32 %1\n %3 = add f32 %0, %2\n",
             " store f32 @o[d0, d1], %3\n }\n }\n output @o sizes[", sum,
             ",3] strides[3,1] offset 0\n}\n");
  CheckModule(text, {.symbols = {1, 2, 3, 4, 5, 6, 7, 8, 9}});
  const auto source = EmitText(text, TestDevice("avx2"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_NE(source->find("KOnce("), std::string::npos) << *source;
}

TEST(LoopsTest, FloatRemainders) {
  for (const std::string type : {"f32", "f64"}) {
    CheckModule(OpsModule(type, {"floordiv", "mod", "fmod"}, 2, type, 83),
                {.scale = 5, .integral_floats = true});
    CheckModule(OpsModule(type, {"mod", "fmod"}, 2, type, 83), {.scale = 5});
  }
}

TEST(LoopsTest, IntegerArithmetic) {
  for (const std::string type : {"i64", "i32", "i16", "i8", "u8"}) {
    CheckModule(
        OpsModule(type,
                  {"add", "sub", "mul", "floordiv", "min", "max", "and", "or", "xor", "shl", "shr"},
                  2, type, 77),
        {.int_min = type == "u8" ? 0 : -9, .int_max = 10});
    CheckModule(OpsModule(type, {"truncdiv", "mod", "fmod"}, 2, type, 77),
                {.int_min = type == "u8" ? 1 : 3, .int_max = 10});
    CheckModule(OpsModule(type, {"nonzero"}, 1, type, 77), {.int_min = 1, .int_max = 10});
    CheckModule(OpsModule(type, {"neg", "abs", "sign", "not"}, 1, type, 77),
                {.int_min = type == "u8" ? 0 : -9, .int_max = 10});
  }
  CheckModule(OpsModule("bool", {"and", "or", "xor"}, 2, "bool", 77));
  CheckModule(OpsModule("bool", {"not"}, 1, "bool", 77));
}

TEST(LoopsTest, Comparisons) {
  for (const std::string type : {"f32", "f64", "bf16", "f16", "i64", "i32", "i16", "u8", "bool"}) {
    CheckModule(OpsModule(type, {"eq", "ne", "lt", "le", "gt", "ge"}, 2, "bool", 53),
                {.nan_every = 5, .integral_floats = true});
  }
  for (const std::string type : {"f32", "f64", "bf16", "f16"}) {
    CheckModule(OpsModule(type, {"isnan", "isinf"}, 1, "bool", 53), {.nan_every = 5});
  }
}

TEST(LoopsTest, ElementaryFunctions) {
  for (const std::string type : {"f32", "f64", "bf16"}) {
    CheckModule(OpsModule(type,
                          {"exp", "expm1", "sin", "cos", "atan", "sinh", "cosh", "tanh", "asinh",
                           "erf", "erfc", "sigmoid", "exp2", "sqrt", "rsqrt", "log", "log1p"},
                          1, type, 37),
                {.tolerance = 1e-5});
  }
}

TEST(LoopsTest, Casts) {
  const std::vector<std::string> types = {"bool", "u8",   "i16", "i32", "i64",
                                          "f16",  "bf16", "f32", "f64"};
  for (const std::string& from : types) {
    std::string text = StrCat("module {\n buffer @x ", from, "[67] strides[1] input(0)\n");
    for (size_t i = 0; i < types.size(); ++i) {
      absl::StrAppend(&text, " buffer @o", i, " ", types[i], "[67] strides[1] output\n");
    }
    absl::StrAppend(&text, " kernel @k (d0: 67) {\n phase () {\n %0 = load ", from, " @x[d0]\n");
    for (size_t i = 0; i < types.size(); ++i) {
      absl::StrAppend(&text, " %", i + 1, " = cast ", types[i], " %0\n store ", types[i], " @o", i,
                      "[d0], %", i + 1, "\n");
    }
    absl::StrAppend(&text, " }\n }\n");
    for (size_t i = 0; i < types.size(); ++i) {
      absl::StrAppend(&text, " output @o", i, " sizes[67] strides[1] offset 0\n");
    }
    // Whole numbers from 0: the same in every type.
    CheckModule(text + "}\n", {.int_min = 0, .int_max = 100, .scale = 0.5});
  }
}

// A buffer `y` of all dimensions, computed from inputs.
std::string Pointwise(const std::string& buffers, const std::string& y, const std::string& loops,
                      const std::string& body, const std::string& window) {
  return StrCat("module {\n", buffers, "\n buffer @y ", y, " output\n kernel @k (", loops,
                ") {\n phase () {\n", body, "\n }\n }\n output @y ", window, "\n}\n");
}

TEST(LoopsTest, BroadcastAndCollapse) {
  CheckModule(Pointwise(R"( buffer @x f32[4,5,33] strides[165,33,1] input(0)
    buffer @b f32[33] strides[1] input(1))",
                        "f32[4,5,33] strides[165,33,1]", "d0: 4, d1: 5, d2: 33",
                        R"( %0 = load f32 @x[d0, d1, d2]
    %1 = load f32 @b[d2]
    %2 = add f32 %0, %1
    store f32 @y[d0, d1, d2], %2)",
                        "sizes[4,5,33] strides[165,33,1] offset 0"));
}

TEST(LoopsTest, Transposed) {
  CheckModule(Pointwise(R"( buffer @x f32[70,45] strides[1,70] input(0)
    buffer @z f32[70,45] strides[45,1] input(1))",
                        "f32[70,45] strides[45,1]", "d0: 70, d1: 45", R"( %0 = load f32 @x[d0, d1]
    %1 = load f32 @z[d0, d1]
    %2 = sub f32 %0, %1
    store f32 @y[d0, d1], %2)",
                        "sizes[70,45] strides[45,1] offset 0"));
}

TEST(LoopsTest, LargeTransposedIsThreaded) {
  CheckModule(Pointwise(" buffer @x f32[300,1100] strides[1,300] input(0)",
                        "f32[300,1100] strides[1100,1]", "d0: 300, d1: 1100",
                        R"( %0 = load f32 @x[d0, d1]
    %1 = add f32 %0, %0
    store f32 @y[d0, d1], %1)",
                        "sizes[300,1100] strides[1100,1] offset 0"));
}

// Whole and partly empty tiles and squares, of every size of element; and one of two types.
TEST(LoopsTest, TransposedOfEveryType) {
  for (const std::string type : {"f64", "f32", "bf16", "i8"}) {
    CheckModule(
        Pointwise(StrCat(" buffer @x ", type, "[147,150] strides[1,152] input(0)\n buffer @z ",
                         "f32[147,150] strides[1,147] input(1)"),
                  type + "[147,150] strides[150,1]", "d0: 147, d1: 150",
                  absl::StrReplaceAll(R"( %0 = load TYPE @x[d0, d1]
    %1 = load f32 @z[d0, d1]
    %2 = cast TYPE %1
    %3 = sub TYPE %0, %2
    store TYPE @y[d0, d1], %3)",
                                      {{"TYPE", type}}),
                  "sizes[147,150] strides[150,1] offset 0"));
  }
}

TEST(LoopsTest, HeadsSplitByDivision) {
  CheckModule(Pointwise(" buffer @x f32[6,10,16] strides[160,16,1] input(0)",
                        "f32[10,96] strides[96,1]", "d0: 10, d1: 96",
                        R"( %0 = load f32 @x[floordiv(d1, 16), d0, mod(d1, 16)]
    %1 = neg f32 %0
    store f32 @y[d0, d1], %1)",
                        "sizes[10,96] strides[96,1] offset 0"));
  CheckModule(Pointwise(" buffer @x f32[7,10,9] strides[90,9,1] input(0)",
                        "f32[10,63] strides[63,1]", "d0: 10, d1: 63",
                        R"( %0 = load f32 @x[floordiv(d1, 9), d0, mod(d1, 9)]
    %1 = neg f32 %0
    store f32 @y[d0, d1], %1)",
                        "sizes[10,63] strides[63,1] offset 0"));
}

TEST(LoopsTest, EveryOtherElement) {
  CheckModule(Pointwise(" buffer @x f32[9,139] strides[139,1] input(0)", "f32[9,70] strides[70,1]",
                        "d0: 9, d1: 70", R"( %0 = load f32 @x[d0, 2*d1]
    store f32 @y[d0, d1], %0)",
                        "sizes[9,70] strides[70,1] offset 0"));
  CheckModule(Pointwise(" buffer @x f32[9,120] strides[120,1] input(0)", "f32[9,70] strides[70,1]",
                        "d0: 9, d1: 70", R"( %0 = index i64 2*d1
    %1 = const i64 120
    %2 = lt bool %0, %1
    %3 = load f32 @x[d0, 2*d1] if %2 else 7
    store f32 @y[d0, d1], %3)",
                        "sizes[9,70] strides[70,1] offset 0"));
}

TEST(LoopsTest, MaskedPadding) {
  for (const std::string type : {"f32", "i64", "bf16", "bool"}) {
    CheckModule(Pointwise(StrCat(" buffer @x ", type, "[13,29] strides[29,1] input(0)"),
                          type + "[13,40] strides[40,1]", "d0: 13, d1: 40",
                          absl::StrReplaceAll(R"( %0 = index i64 d1
    %1 = const i64 4
    %2 = const i64 33
    %3 = ge bool %0, %1
    %4 = lt bool %0, %2
    %5 = and bool %3, %4
    %6 = load TYPE @x[d0, d1 - 4] if %5 else 1
    store TYPE @y[d0, d1], %6)",
                                              {{"else 1", type == "bool" ? "else true" : "else 1"},
                                               {"TYPE", type}}),
                          "sizes[13,40] strides[40,1] offset 0"),
                {.int_max = 50});
  }
}

TEST(LoopsTest, EmbeddingRowsAndGathers) {
  CheckModule(Pointwise(R"( buffer @ids i64[9] strides[1] input(0)
    buffer @w f32[30,70] strides[70,1] input(1))",
                        "f32[9,70] strides[70,1]", "d0: 9, d1: 70", R"( %0 = load i64 @ids[d0]
    %1 = load f32 @w[[%0], d1]
    store f32 @y[d0, d1], %1)",
                        "sizes[9,70] strides[70,1] offset 0"),
              {.int_max = 30});
  CheckModule(Pointwise(R"( buffer @ids i64[9,70] strides[70,1] input(0)
    buffer @w f32[9,30] strides[30,1] input(1))",
                        "f32[9,70] strides[70,1]", "d0: 9, d1: 70", R"( %0 = load i64 @ids[d0, d1]
    %1 = load f32 @w[d0, [%0]]
    store f32 @y[d0, d1], %1)",
                        "sizes[9,70] strides[70,1] offset 0"),
              {.int_max = 30});
}

TEST(LoopsTest, SymbolicSizes) {
  const std::string text = R"(module {
    symbol s0 [1, 512] hint 64
    symbol s1 [1, 512] hint 64
    buffer @x f32[s0,s1] strides[s1,1] input(0)
    buffer @b f32[s0] strides[1] input(1)
    buffer @y f32[s0,s1] strides[s1,1] output
    kernel @k (d0: s0, d1: s1) {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = load f32 @b[d0]
        %2 = mul f32 %0, %1
        store f32 @y[d0, d1], %2
      }
    }
    output @y sizes[s0,s1] strides[s1,1] offset 0
  })";
  CheckModule(text, {.symbols = {7, 61}});
  CheckModule(text, {.symbols = {200, 256}});
  CheckModule(text, {.symbols = {1, 1}});
}

TEST(LoopsTest, ZeroSizes) {
  CheckModule(Pointwise(" buffer @x f32[0,7] strides[7,1] input(0)", "f32[0,7] strides[7,1]",
                        "d0: 0, d1: 7", R"( %0 = load f32 @x[d0, d1]
    store f32 @y[d0, d1], %0)",
                        "sizes[0,7] strides[7,1] offset 0"));
}

// One reduction of an r x c matrix.
std::string Reduction(const std::string& type, const std::string& kind, const std::string& result,
                      int rows, int columns, const std::string& over) {
  const std::string x =
      StrCat(" buffer @x ", type, "[", rows, ",", columns, "] strides[", columns, ",1] input(0)\n");
  std::string outer, inner, shape, index, at, window;
  if (over == "columns") {
    outer = StrCat("d0: ", rows), inner = StrCat("r0: ", columns), index = "d0, r0", at = "d0";
    shape = StrCat("[", rows, "] strides[1]");
    window = StrCat("sizes[", rows, "] strides[1]");
  } else if (over == "rows") {
    outer = StrCat("d0: ", columns), inner = StrCat("r0: ", rows), index = "r0, d0", at = "d0";
    shape = StrCat("[", columns, "] strides[1]");
    window = StrCat("sizes[", columns, "] strides[1]");
  } else {
    inner = StrCat("r0: ", rows, ", r1: ", columns), index = "r0, r1";
    shape = "[] strides[]", window = "sizes[] strides[]";
  }
  return StrCat("module {\n", x, " buffer @y ", result, shape, " output\n kernel @k (", outer,
                ") {\n phase (", inner, ") {\n %0 = load ", type, " @x[", index, "]\n %1 = reduce.",
                kind, " ", result, " %0\n }\n phase () {\n store ", result, " @y[", at,
                "], %1\n }\n }\n output @y ", window, " offset 0\n}\n");
}

TEST(LoopsTest, ReductionsInEveryDirection) {
  for (const std::string over : {"columns", "rows", "all"}) {
    for (const std::string kind : {"sum", "max", "min"}) {
      CheckModule(Reduction("f32", kind, "f32", 37, 75, over), {.tolerance = 1e-4});
      CheckModule(Reduction("i32", kind, "i32", 21, 19, over), {.int_min = -50, .int_max = 50});
    }
    CheckModule(Reduction("f64", "sum", "f64", 37, 75, over));
    CheckModule(Reduction("f32", "prod", "f32", 5, 6, over));
    for (const std::string kind : {"any", "all"}) {
      CheckModule(Reduction("bool", kind, "bool", 3, 3, over));
      CheckModule(Reduction("bool", kind, "bool", 21, 40, over));
    }
  }
}

TEST(LoopsTest, LargeReductionsAreThreaded) {
  for (const std::string over : {"columns", "rows", "all"}) {
    CheckModule(Reduction("f32", "sum", "f32", 400, 300, over), {.tolerance = 1e-3});
  }
}

TEST(LoopsTest, NanWinsMinAndMax) {
  for (const std::string over : {"columns", "rows", "all"}) {
    CheckModule(Reduction("f32", "max", "f32", 37, 75, over), {.nan_every = 200});
    CheckModule(Reduction("f32", "min", "f32", 37, 75, over), {.nan_every = 200});
  }
}

TEST(LoopsTest, ArgMaxTakesTheFirstOfEquals) {
  for (const std::string over : {"columns", "rows", "all"}) {
    for (const std::string kind : {"argmax", "argmin"}) {
      CheckModule(Reduction("f32", kind, "i64", 40, 83, over), {.integral_floats = true});
      CheckModule(Reduction("f32", kind, "i64", 40, 83, over),
                  {.nan_every = 100, .integral_floats = true});
      CheckModule(Reduction("i64", kind, "i64", 40, 83, over), {.int_max = 3});
    }
  }
}

TEST(LoopsTest, EmptyReductionGivesTheIdentity) {
  CheckModule(Reduction("f32", "sum", "f32", 5, 0, "columns"));
  CheckModule(Reduction("f32", "prod", "f32", 5, 0, "columns"));
}

TEST(LoopsTest, Softmax) {
  for (int columns : {1, 5, 16, 100, 384}) {
    CheckModule(absl::StrReplaceAll(R"(module {
      buffer @x f32[50,N] strides[N,1] input(0)
      buffer @y f32[50,N] strides[N,1] output
      kernel @softmax (d0: 50) {
        phase (r0: N) {
          %0 = load f32 @x[d0, r0]
          %1 = reduce.max f32 %0
        }
        phase (r0: N) {
          %2 = load f32 @x[d0, r0]
          %3 = sub f32 %2, %1
          %4 = exp f32 %3
          %5 = reduce.sum f32 %4
        }
        phase (r0: N) {
          %6 = load f32 @x[d0, r0]
          %7 = sub f32 %6, %1
          %8 = exp f32 %7
          %9 = div f32 %8, %5
          store f32 @y[d0, r0], %9
        }
      }
      output @y sizes[50,N] strides[N,1] offset 0
    })",
                                    {{"N", StrCat(columns)}}));
  }
}

TEST(LoopsTest, SoftmaxOverRowsAndThroughATemporary) {
  CheckModule(R"(module {
    buffer @x f32[30,90] strides[90,1] input(0)
    buffer @t f32[30,90] strides[90,1] temp
    buffer @y f32[30,90] strides[90,1] output
    kernel @softmax (d0: 90) {
      phase (r0: 30) {
        %0 = load f32 @x[r0, d0]
        %1 = reduce.max f32 %0
      }
      phase (r0: 30) {
        %2 = load f32 @x[r0, d0]
        %3 = sub f32 %2, %1
        %4 = exp f32 %3
        store f32 @t[r0, d0], %4
        %5 = reduce.sum f32 %4
      }
      phase (r0: 30) {
        %6 = load f32 @t[r0, d0]
        %7 = div f32 %6, %5
        store f32 @y[r0, d0], %7
      }
    }
    output @y sizes[30,90] strides[90,1] offset 0
  })");
}

TEST(LoopsTest, LayerNorm) {
  for (int columns : {3, 64, 768}) {
    CheckModule(absl::StrReplaceAll(R"(module {
      buffer @x f32[33,N] strides[N,1] input(0)
      buffer @g f32[N] strides[1] input(1)
      buffer @b f32[N] strides[1] input(2)
      buffer @y f32[33,N] strides[N,1] output
      kernel @norm (d0: 33) {
        phase (r0: N) {
          %0 = load f32 @x[d0, r0]
          %1 = reduce.sum f32 %0
        }
        phase () {
          %2 = const f32 N
          %3 = div f32 %1, %2
        }
        phase (r0: N) {
          %4 = load f32 @x[d0, r0]
          %5 = sub f32 %4, %3
          %6 = mul f32 %5, %5
          %7 = reduce.sum f32 %6
        }
        phase () {
          %8 = div f32 %7, %2
          %9 = const f32 1e-5
          %10 = add f32 %8, %9
          %11 = rsqrt f32 %10
        }
        phase (r0: N) {
          %12 = load f32 @x[d0, r0]
          %13 = sub f32 %12, %3
          %14 = mul f32 %13, %11
          %15 = load f32 @g[r0]
          %16 = mul f32 %14, %15
          %17 = load f32 @b[r0]
          %18 = add f32 %16, %17
          store f32 @y[d0, r0], %18
        }
      }
      output @y sizes[33,N] strides[N,1] offset 0
    })",
                                    {{"N", StrCat(columns)}}));
  }
}

TEST(LoopsTest, PoolingWindows) {
  CheckModule(R"(module {
    buffer @x f32[2,3,14,14] strides[588,196,14,1] input(0)
    buffer @y f32[2,3,7,7] strides[147,49,7,1] output
    kernel @pool (d0: 2, d1: 3, d2: 7, d3: 7) {
      phase (r0: 3, r1: 3) {
        %0 = index i64 2*d2 + r0 - 1
        %1 = index i64 2*d3 + r1 - 1
        %2 = const i64 0
        %3 = const i64 14
        %4 = ge bool %0, %2
        %5 = lt bool %0, %3
        %6 = ge bool %1, %2
        %7 = lt bool %1, %3
        %8 = and bool %4, %5
        %9 = and bool %6, %7
        %10 = and bool %8, %9
        %11 = load f32 @x[d0, d1, 2*d2 + r0 - 1, 2*d3 + r1 - 1] if %10 else -inf
        %12 = reduce.max f32 %11
      }
      phase () {
        store f32 @y[d0, d1, d2, d3], %12
      }
    }
    output @y sizes[2,3,7,7] strides[147,49,7,1] offset 0
  })");
}

std::string Lookup(const std::string& table, const std::string& result) {
  return absl::StrReplaceAll(R"(module {
    buffer @ids i64[40] strides[1] input(0)
    buffer @TABLE f32[30] strides[1] input(1)
    buffer @RESULT f32[40] strides[1] output
    kernel @RESULT_kernel (d0: 40) {
      phase () {
        %3 = load i64 @ids[d0]
        %7 = load f32 @TABLE[[%3]]
        store f32 @RESULT[d0], %7
      }
    }
    output @RESULT sizes[40] strides[1] offset 0
  })",
                             {{"TABLE", table}, {"RESULT", result}});
}

TEST(LoopsTest, AnIndexOutsideItsDimensionIsReported) {
  absl::StatusOr<ir::Module> module = ir::Parse(Lookup("w", "y"));
  ASSERT_TRUE(module.ok()) << module.status();
  auto native = NativeModule::Build(*module, TestDevice(RunnableIsas().back()));
  ASSERT_TRUE(native.ok()) << native.status();
  for (int64_t bad : {-1, 30}) {
    for (int place : {0, 5, 39}) {
      std::vector<int64_t> ids(40, 3);
      std::vector<HostTensor> inputs(2);
      inputs[1].data.assign(30 * 4, 0);
      auto set_ids = [&] {
        inputs[0].data.assign(reinterpret_cast<const char*>(ids.data()), ids.size() * 8);
      };
      set_ids();
      EXPECT_TRUE((*native)->Run(inputs, {}, 1).ok());
      ids[place] = bad;
      set_ids();
      EXPECT_EQ((*native)->Run(inputs, {}, 1).status().code(), absl::StatusCode::kOutOfRange);
    }
  }
}

// Rows of 77 elements end in a tail, whose lanes that are not there are no divisors.
TEST(LoopsTest, ADivisorOfZeroIsReported) {
  for (const std::string type : {"i64", "i32", "i16", "i8", "u8"}) {
    const size_t size = type == "i64" ? 8 : type == "i32" ? 4 : type == "i16" ? 2 : 1;
    absl::StatusOr<ir::Module> module = ir::Parse(OpsModule(type, {"nonzero"}, 1, type, 77));
    ASSERT_TRUE(module.ok()) << module.status();
    for (const std::string& isa : RunnableIsas()) {
      auto native = NativeModule::Build(*module, TestDevice(isa));
      if (isa == kPtxIsa) {
        EXPECT_EQ(native.status().code(), absl::StatusCode::kUnimplemented);
        continue;
      }
      ASSERT_TRUE(native.ok()) << native.status();
      for (const int zero_at : {-1, 0, 5, 64, 76}) {
        std::vector<HostTensor> inputs = MakeInputs(*module, {.int_min = 1, .int_max = 2});
        if (zero_at >= 0) inputs[0].data.replace(zero_at * size, size, size, 0);
        EXPECT_EQ((*native)->Run(inputs, {}, 1).status().code(),
                  zero_at < 0 ? absl::StatusCode::kOk : absl::StatusCode::kOutOfRange)
            << type << " " << isa << " " << zero_at;
      }
    }
  }
}

// The least number by -1 wraps: as an instruction it would end the process.
TEST(LoopsTest, TheLeastIntegerDividedByMinusOne) {
  for (const std::string type : {"i64", "i32", "i16", "i8"}) {
    const size_t size = type == "i64" ? 8 : type == "i32" ? 4 : type == "i16" ? 2 : 1;
    absl::StatusOr<ir::Module> module =
        ir::Parse(OpsModule(type, {"floordiv", "truncdiv", "mod", "fmod"}, 2, type, 77));
    ASSERT_TRUE(module.ok()) << module.status();
    std::vector<HostTensor> inputs(2);
    for (int i = 0; i < 77; ++i) {
      inputs[0].data += std::string(size - 1, '\0') + '\x80';
      inputs[1].data += std::string(size, '\xff');
    }
    for (const std::string& isa : RunnableIsas()) {
      auto native = NativeModule::Build(*module, TestDevice(isa));
      ASSERT_TRUE(native.ok()) << native.status();
      const auto outputs = (*native)->Run(inputs, {}, 1);
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      const int64_t least = -(int64_t{1} << (8 * size - 2)) * 2;
      for (size_t k = 0; k < 4; ++k) {
        EXPECT_THAT((*outputs)[k].ints, ::testing::Each(k < 2 ? least : 0)) << type << " " << isa;
      }
    }
  }
}

// A softmax of `rows` rows.
TEST(LoopsTest, EqualKernelsHaveEqualText) {
  std::vector<std::string> sources;
  for (const std::string name : {"first", "second"}) {
    absl::StatusOr<ir::Module> module = ir::Parse(Lookup(name, name + "_result"));
    ASSERT_TRUE(module.ok()) << module.status();
    auto emitted = MakeCppTarget(TestDevice("avx512"))
                       ->Emit(*module, std::get<ir::Kernel>(module->operations[0]));
    ASSERT_TRUE(emitted.ok()) << emitted.status();
    EXPECT_EQ(emitted->buffers.size(), 3u);
    sources.push_back(emitted->source);
  }
  EXPECT_EQ(sources[0], sources[1]);
}

}  // namespace
}  // namespace kiln::codegen
