// Kernels with Schedule::kContraction, against the reference interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "compiler/schedule/cpu/schedule.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::HasSubstr;

struct MatmulSpec {
  std::string m, n, k;  // numbers, or expressions over the symbols
  bool a_transposed = false, b_transposed = false, out_transposed = false;
  std::string type = "f32";
  std::string bias;  // "", "row" or "column"
  std::string symbols = "";
};

std::string Matmul(const MatmulSpec& s) {
  const std::string out_shape = s.out_transposed
                                    ? StrCat("[", s.m, ",", s.n, "] strides[1,", s.m, "]")
                                    : StrCat("[", s.m, ",", s.n, "] strides[", s.n, ",1]");
  std::string epilogue = "%4 = const TYPE 0\n %5 = max TYPE %3, %4\n store TYPE @y[d0, d1], %5";
  if (!s.bias.empty()) {
    epilogue = StrCat("%4 = load TYPE @c[", s.bias == "row" ? "d0" : "d1",
                      "]\n %5 = add TYPE %3, %4\n %6 = tanh TYPE %5\n store TYPE @y[d0, d1], %6");
  }
  return absl::StrReplaceAll(
      StrCat("module {\n", s.symbols, " buffer @a TYPE[", s.m, ",", s.k, "] strides",
             s.a_transposed ? StrCat("[1,", s.m, "]") : StrCat("[", s.k, ",1]"),
             " input(0)\n buffer @b TYPE[", s.k, ",", s.n, "] strides",
             s.b_transposed ? StrCat("[1,", s.k, "]") : StrCat("[", s.n, ",1]"),
             " input(1)\n buffer @c TYPE[", s.bias == "row" ? s.m : s.n,
             "] strides[1] input(2)\n buffer @y TYPE", out_shape,
             " output\n kernel @mm contraction (d0: ", s.m, ", d1: ", s.n, ") {\n phase (r0: ", s.k,
             ") {\n %0 = load TYPE @a[d0, r0]\n %1 = load TYPE @b[r0, d1]\n"
             " %2 = mul TYPE %0, %1\n %3 = reduce.sum TYPE %2\n }\n phase () {\n ",
             epilogue, "\n }\n }\n output @y sizes[", s.m, ",", s.n, "] strides",
             s.out_transposed ? StrCat("[1,", s.m, "]") : StrCat("[", s.n, ",1]"),
             " offset 0\n}\n"),
      {{"TYPE", s.type}});
}

TEST(ContractionTest, OddSizes) {
  for (int m : {1, 4, 7, 13, 40}) {
    for (int n : {1, 5, 17, 33}) {
      const int k = (m * 7 + n) % 40 + 1;
      CheckModule(Matmul({.m = StrCat(m), .n = StrCat(n), .k = StrCat(k)}), {.tolerance = 1e-4});
    }
  }
}

// The last rows are multiplied with some before them once more, in place; the rows of each block
// are stored, and what is updated in place is so once.
TEST(ContractionTest, RowsThatAreNoWholeTiles) {
  for (int m : {27, 50, 197}) {
    for (const bool out_transposed : {false, true}) {
      const std::string text = Matmul({.m = StrCat(m),
                                       .n = "70",
                                       .k = "300",
                                       .out_transposed = out_transposed,
                                       .bias = out_transposed ? "row" : "column"});
      const CheckOptions options = {.tolerance = 1e-4, .threads = {1, 3}};
      CheckModule(text, options);
      // The result lies where a temporary was that is added.
      const std::string added = out_transposed ? "@c[d0]" : "@c[d1]";
      const std::string shape =
          StrCat("[", m, ",70] strides", out_transposed ? StrCat("[1,", m, "]") : "[70,1]");
      const std::string copy = StrCat(" (d0: ", m, ", d1: 70) {\n phase () {\n %0 = load f32 ");
      CheckModule(
          absl::StrReplaceAll(
              text, {{added, "@t[d0, d1]"},
                     {"store f32 @y", "store f32 @u"},
                     {" kernel @mm", StrCat(" buffer @t f32", shape, " temp\n buffer @u f32", shape,
                                            " temp\n kernel @before", copy, added,
                                            "\n store f32 @t[d0, d1], %0\n }\n }\n kernel @mm")},
                     {" output @y", StrCat(" kernel @after", copy,
                                           "@u[d0, d1]\n store f32 @y[d0, d1], %0\n }\n }\n"
                                           " output @y")}}),
          options);
    }
  }
}

TEST(ContractionTest, EveryLayout) {
  for (int bits = 0; bits < 8; ++bits) {
    CheckModule(Matmul({.m = "29",
                        .n = "50",
                        .k = "23",
                        .a_transposed = (bits & 1) != 0,
                        .b_transposed = (bits & 2) != 0,
                        .out_transposed = (bits & 4) != 0,
                        .bias = bits % 3 == 0 ? "row" : "column"}),
                {.tolerance = 1e-4});
  }
}

// Sums as sizes and strides stand beside other operators in the generated code.
TEST(ContractionTest, SizesThatAreSums) {
  for (int bits = 0; bits < 4; ++bits) {
    CheckModule(Matmul({.m = "s0 - 1",
                        .n = "floordiv(s1, 2) - 1",
                        .k = "s1 - 20",
                        .a_transposed = (bits & 1) != 0,
                        .b_transposed = (bits & 2) != 0,
                        .out_transposed = bits == 3,
                        .bias = bits == 0 ? "row" : "column",
                        .symbols = "symbol s0 [2, 600] hint 64\n symbol s1 [21, 600] hint 64\n"}),
                {.symbols = {41, 60}, .tolerance = 1e-4, .threads = {2}});
  }
}

TEST(ContractionTest, LinearLayerWithManyRowsAndThreads) {
  CheckModule(Matmul({.m = "70", .n = "310", .k = "90", .b_transposed = true, .bias = "column"}),
              {.tolerance = 1e-4});
  CheckModule(Matmul({.m = "310", .n = "70", .k = "90", .b_transposed = true, .bias = "column"}),
              {.tolerance = 1e-4});
}

TEST(ContractionTest, DoublePrecision) {
  CheckModule(Matmul({.m = "30", .n = "41", .k = "37", .type = "f64", .bias = "row"}),
              {.tolerance = 1e-12});
}

TEST(ContractionTest, IntegersRunAsPlainLoops) {
  CheckModule(Matmul({.m = "9", .n = "11", .k = "13", .type = "i64"}),
              {.int_min = -5, .int_max = 5});
}

TEST(ContractionTest, EmptySums) {
  CheckModule(Matmul({.m = "9", .n = "11", .k = "0"}));
}

TEST(ContractionTest, SymbolicSizes) {
  const std::string text = R"(module {
    symbol s0 [1, 512] hint 64
    symbol s1 [1, 512] hint 64
    buffer @a f32[s0,s1] strides[s1,1] input(0)
    buffer @b f32[48,s1] strides[s1,1] input(1)
    buffer @y f32[s0,48] strides[48,1] output
    kernel @mm contraction (d0: s0, d1: 48) {
      phase (r0: s1) {
        %0 = load f32 @a[d0, r0]
        %1 = load f32 @b[d1, r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @y[d0, d1], %3
      }
    }
    output @y sizes[s0,48] strides[48,1] offset 0
  })";
  for (std::vector<int64_t> symbols : {std::vector<int64_t>{1, 1}, {7, 30}, {130, 65}}) {
    CheckModule(text, {.symbols = symbols, .tolerance = 1e-4});
  }
}

// Attention: heads lie inside the rows of [tokens, heads * 16].
TEST(ContractionTest, BatchedScoresOfHeads) {
  CheckModule(R"(module {
    buffer @q f32[2,21,48] strides[1008,48,1] input(0)
    buffer @k f32[2,21,48] strides[1008,48,1] input(1)
    buffer @y f32[2,3,21,21] strides[1323,441,21,1] output
    kernel @scores contraction (d0: 2, d1: 3, d2: 21, d3: 21) {
      phase (r0: 16) {
        %0 = load f32 @q[d0, d2, 16*d1 + r0]
        %1 = load f32 @k[d0, d3, 16*d1 + r0]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        %4 = const f32 0.25
        %5 = mul f32 %3, %4
        store f32 @y[d0, d1, d2, d3], %5
      }
    }
    output @y sizes[2,3,21,21] strides[1323,441,21,1] offset 0
  })",
              {.tolerance = 1e-4});
}

TEST(ContractionTest, ContextOfHeadsIsStoredBetweenThem) {
  CheckModule(R"(module {
    buffer @p f32[2,3,21,21] strides[1323,441,21,1] input(0)
    buffer @v f32[2,21,48] strides[1008,48,1] input(1)
    buffer @y f32[2,21,48] strides[1008,48,1] output
    kernel @context contraction (d0: 2, d1: 3, d2: 21, d3: 16) {
      phase (r0: 21) {
        %0 = load f32 @p[d0, d1, d2, r0]
        %1 = load f32 @v[d0, r0, 16*d1 + d3]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @y[d0, d2, 16*d1 + d3], %3
      }
    }
    output @y sizes[2,21,48] strides[1008,48,1] offset 0
  })",
              {.tolerance = 1e-4});
}

TEST(ContractionTest, HalfPrecisionOperandsAreWidenedWhilePacking) {
  for (const std::string type : {"f16", "bf16"}) {
    CheckModule(absl::StrReplaceAll(R"(module {
      buffer @a TYPE[40,35] strides[35,1] input(0)
      buffer @b TYPE[50,35] strides[35,1] input(1)
      buffer @y TYPE[40,50] strides[50,1] output
      kernel @mm contraction (d0: 40, d1: 50) {
        phase (r0: 35) {
          %0 = load TYPE @a[d0, r0]
          %1 = cast f32 %0
          %2 = load TYPE @b[d1, r0]
          %3 = cast f32 %2
          %4 = mul f32 %1, %3
          %5 = reduce.sum f32 %4
        }
        phase () {
          %6 = cast TYPE %5
          store TYPE @y[d0, d1], %6
        }
      }
      output @y sizes[40,50] strides[50,1] offset 0
    })",
                                    {{"TYPE", type}}));
  }
}

// The same module with @a and @b of `type`, widened where they are loaded; a `prologue` ("neg")
// comes before the widening.
std::string Widened(const std::string& text, const std::string& prologue = "",
                    const std::string& type = "bf16") {
  std::string out = absl::StrReplaceAll(text, {{"buffer @a f32", StrCat("buffer @a ", type)},
                                               {"buffer @b f32", StrCat("buffer @b ", type)}});
  for (const auto& [operand, free] : {std::pair<std::string, int>("a", 20), {"b", 30}}) {
    const std::string load = StrCat("load f32 @", operand, "[");
    const size_t at = out.find(load), line_end = out.find('\n', at);
    EXPECT_NE(at, std::string::npos) << out;
    const size_t result = out.rfind('%', at);
    const std::string name = out.substr(result, out.find(' ', result) - result);
    std::string more = StrCat("%", free, " = load ", type, " @", operand, "[",
                              out.substr(at + load.size(), line_end - at - load.size()), "\n");
    int widened = free;
    if (!prologue.empty()) {
      widened = free + 1;
      absl::StrAppend(&more, "%", widened, " = ", prologue, " ", type, " %", free, "\n");
    }
    out.replace(result, line_end - result, StrCat(more, name, " = cast f32 %", widened));
  }
  return out;
}

void ExpectPairs(const std::string& text, const CheckOptions& options = {}) {
  for (const absl::string_view isa : {absl::string_view("avx512bf16"), kAmxIsa}) {
    auto source = EmitText(text, TestDevice(isa));
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_NE(source->find("KMicroKernelPairs<"), std::string::npos) << *source;
    EXPECT_EQ(source->find("KTileRegisters tiles;") != std::string::npos, isa == kAmxIsa);
  }
  CheckModule(text, options);
}

TEST(BFloat16PairsTest, EveryLayoutAndOddDepths) {
  for (int bits = 0; bits < 8; ++bits) {
    for (const std::string k : {"23", "24"}) {
      ExpectPairs(Widened(Matmul({.m = "29",
                                  .n = "50",
                                  .k = k,
                                  .a_transposed = (bits & 1) != 0,
                                  .b_transposed = (bits & 2) != 0,
                                  .out_transposed = (bits & 4) != 0,
                                  .bias = "column"})));
    }
  }
}

TEST(BFloat16PairsTest, OperandsThatAreComputed) {
  for (const std::string k : {"23", "600"}) {
    ExpectPairs(Widened(Matmul({.m = "70", .n = "50", .k = k, .b_transposed = true}), "neg"));
  }
}

// Steps of 32 that are whole and not, and sums of more than one run of them; tiles of one block of
// rows and of two, one to four vectors wide.
TEST(BFloat16PairsTest, TilesOfEverySize) {
  ExpectPairs(Widened(Matmul({.m = "33", .n = "16", .k = "42", .b_transposed = true})));
  ExpectPairs(Widened(Matmul({.m = "33", .n = "32", .k = "64", .b_transposed = true})));
  ExpectPairs(Widened(Matmul({.m = "16", .n = "48", .k = "64", .b_transposed = true})));
  ExpectPairs(Widened(Matmul({.m = "16", .n = "64", .k = "42", .b_transposed = true})));
  ExpectPairs(Widened(Matmul({.m = "17", .n = "33", .k = "4170"})));
  ExpectPairs(Widened(Matmul({.m = "70", .n = "50", .k = "64"})), {.rank = 1});
}

TEST(BFloat16PairsTest, SymbolicSizes) {
  const std::string symbols = "symbol s0 [2, 600] hint 64\n symbol s1 [21, 600] hint 64\n";
  for (const bool b_transposed : {false, true}) {
    const std::string text = Widened(Matmul(
        {.m = "s0", .n = "70", .k = "s1", .b_transposed = b_transposed, .symbols = symbols}));
    for (std::vector<int64_t> sizes : {std::vector<int64_t>{5, 21}, {131, 64}}) {
      ExpectPairs(text, {.symbols = sizes});
    }
  }
}

TEST(BFloat16PairsTest, HeadsBesideEachOther) {
  ExpectPairs(Widened(R"(module {
    buffer @a f32[2,3,21,21] strides[1323,441,21,1] input(0)
    buffer @b f32[2,21,48] strides[1008,48,1] input(1)
    buffer @y f32[2,21,48] strides[1008,48,1] output
    kernel @context contraction (d0: 2, d1: 3, d2: 21, d3: 16) {
      phase (r0: 21) {
        %0 = load f32 @a[d0, d1, d2, r0]
        %1 = load f32 @b[d0, r0, 16*d1 + d3]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        store f32 @y[d0, d2, 16*d1 + d3], %3
      }
    }
    output @y sizes[2,21,48] strides[1008,48,1] offset 0
  })"));
}

// Panels keep the narrow type and are widened by the micro-kernel, in all of the target's vectors.
void ExpectNarrowPanels(const MatmulSpec& spec, const std::string& prologue,
                        const std::string& type) {
  const std::string text = Widened(Matmul(spec), prologue, type);
  for (const std::string isa : {"avx2", "avx512"}) {
    auto source = EmitText(text, TestDevice(isa));
    ASSERT_TRUE(source.ok()) << source.status();
    const char* const routine =
        type == "f16" ? "KMicroKernel<float, _Float16, " : "KMicroKernel<float, KBf16, ";
    EXPECT_NE(source->find(routine), std::string::npos) << *source;
  }
  CheckModule(text);
}

TEST(NarrowPanelsTest, EveryLayout) {
  for (int bits = 0; bits < 8; ++bits) {
    const MatmulSpec spec = {.m = "29",
                             .n = "50",
                             .k = "23",
                             .a_transposed = (bits & 1) != 0,
                             .b_transposed = (bits & 2) != 0,
                             .out_transposed = (bits & 4) != 0,
                             .bias = "column"};
    for (const std::string type : {"f16", "bf16"}) ExpectNarrowPanels(spec, "", type);
  }
}

TEST(NarrowPanelsTest, OperandsThatAreComputed) {
  ExpectNarrowPanels({.m = "70", .n = "50", .k = "600", .b_transposed = true}, "neg", "f16");
}

// There a vector is widened by many instructions: once, when panels are packed.
TEST(NarrowPanelsTest, NotWithoutInstructionsThatWiden) {
  auto source =
      EmitText(Widened(Matmul({.m = "29", .n = "50", .k = "23"}), "", "f16"), TestDevice("x86-64"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_NE(source->find("KMicroKernel<float, float, "), std::string::npos) << *source;
}

// Both operands are computed, and from instructions that they share.
TEST(ContractionTest, OperandsThatShareInstructions) {
  const std::string text = R"(module {
    buffer @x f32[19,17] strides[17,1] input(0)
    buffer @y f32[18,18] strides[18,1] output
    kernel @mm contraction (d0: 18, d1: 18) {
      phase (r0: 19) {
        %0 = const f32 -3
        %1 = const i64 17
        %2 = index i64 d0
        %3 = lt bool %2, %1
        %4 = load f32 @x[r0, d0] if %3 else -3
        %5 = add f32 %4, %0
        %6 = index i64 d1
        %7 = lt bool %6, %1
        %8 = load f32 @x[r0, d1] if %7 else -3
        %9 = add f32 %8, %0
        %10 = mul f32 %5, %9
        %11 = reduce.sum f32 %10
      }
      phase () {
        store f32 @y[d0, d1], %11
      }
    }
    output @y sizes[18,18] strides[18,1] offset 0
  })";
  CheckModule(text, {.tolerance = 1e-4});
}

struct ConvSpec {
  int batch = 1, in = 3, out = 8, size = 14, kernel = 3, stride = 1, padding = 1, groups = 1;
  bool channels_last = false, gives_channels_last = false;
};

std::string Convolution(const ConvSpec& s) {
  const int to = (s.size + 2 * s.padding - s.kernel) / s.stride + 1;
  const int in_group = s.in / s.groups, out_group = s.out / s.groups;
  auto strides = [&](int channels, int size, bool last) {
    return last ? StrCat("[", channels * size * size, ",1,", size * channels, ",", channels, "]")
                : StrCat("[", channels * size * size, ",", size * size, ",", size, ",1]");
  };
  const std::string shape = StrCat("[", s.batch, ",", s.out, ",", to, ",", to, "]");
  return StrCat("module {\n buffer @x f32[", s.batch, ",", s.in, ",", s.size, ",", s.size,
                "] strides", strides(s.in, s.size, s.channels_last), " input(0)\n buffer @w f32[",
                s.out, ",", in_group, ",", s.kernel, ",", s.kernel, "] strides[",
                in_group * s.kernel * s.kernel, ",", s.kernel * s.kernel, ",", s.kernel,
                ",1] input(1)\n buffer @b f32[", s.out, "] strides[1] input(2)\n buffer @y f32",
                shape, " strides", strides(s.out, to, s.channels_last || s.gives_channels_last),
                " output\n kernel @conv contraction (d0: ", s.batch, ", d1: ", s.groups,
                ", d2: ", out_group, ", d3: ", to, ", d4: ", to, ") {\n phase (r0: ", in_group,
                ", r1: ", s.kernel, ", r2: ", s.kernel, ") {\n",
                absl::StrReplaceAll(R"( %0 = index i64 S*d3 + r1 - P
    %1 = index i64 S*d4 + r2 - P
    %2 = const i64 0
    %3 = const i64 N
    %4 = ge bool %0, %2
    %5 = lt bool %0, %3
    %6 = ge bool %1, %2
    %7 = lt bool %1, %3
    %8 = and bool %4, %5
    %9 = and bool %6, %7
    %10 = and bool %8, %9
    %11 = load f32 @x[d0, I*d1 + r0, S*d3 + r1 - P, S*d4 + r2 - P] if %10 else 0
    %12 = load f32 @w[O*d1 + d2, r0, r1, r2]
    %13 = mul f32 %11, %12
    %14 = reduce.sum f32 %13
  }
  phase () {
    %15 = load f32 @b[O*d1 + d2]
    %16 = add f32 %14, %15
    store f32 @y[d0, O*d1 + d2, d3, d4], %16
  }
})",
                                    {{"S*", StrCat(s.stride, "*")},
                                     {"P", StrCat(s.padding)},
                                     {"i64 N", StrCat("i64 ", s.size)},
                                     {"I*", StrCat(in_group, "*")},
                                     {"O*", StrCat(out_group, "*")}}),
                "\n output @y sizes", shape, " strides",
                strides(s.out, to, s.channels_last || s.gives_channels_last), " offset 0\n}\n");
}

TEST(ContractionTest, Convolutions) {
  CheckModule(Convolution({}), {.tolerance = 1e-4});
  CheckModule(Convolution({.batch = 2, .in = 5, .out = 20, .size = 9}), {.tolerance = 1e-4});
  CheckModule(Convolution({.in = 4, .out = 12, .size = 15, .kernel = 7, .stride = 2, .padding = 3}),
              {.tolerance = 1e-4});
  CheckModule(Convolution({.in = 16, .out = 24, .size = 7, .kernel = 1, .padding = 0}),
              {.tolerance = 1e-4});
  CheckModule(Convolution({.in = 16, .out = 24, .size = 8, .kernel = 1, .stride = 2, .padding = 0}),
              {.tolerance = 1e-4});
}

TEST(ContractionTest, GroupedAndDepthwiseConvolutions) {
  CheckModule(Convolution({.in = 8, .out = 16, .size = 10, .groups = 2}), {.tolerance = 1e-4});
  CheckModule(Convolution({.batch = 2, .in = 6, .out = 6, .size = 10, .groups = 6}),
              {.tolerance = 1e-4});
}

TEST(ContractionTest, ChannelsLastConvolution) {
  CheckModule(Convolution({.batch = 2, .in = 6, .out = 20, .size = 11, .channels_last = true}),
              {.tolerance = 1e-4});
}

// Rows that lie beside each other are packed for several micro tiles at once where few are a row's
// sums long.
TEST(ContractionTest, RowsThatArePackedBeside) {
  const std::string few =
      Convolution({.in = 3, .out = 32, .size = 29, .stride = 2, .gives_channels_last = true});
  const std::string many =
      Convolution({.in = 96, .out = 32, .size = 29, .stride = 2, .gives_channels_last = true});
  const auto reason = [](const std::string& text) {
    absl::StatusOr<ir::Module> module = ir::Parse(text);
    EXPECT_TRUE(module.ok()) << module.status();
    DeviceInfo device;
    device.features = {"avx2", "fma"};
    device.l1_bytes = 32 << 10;
    const auto tree =
        schedule::cpu::ScheduleKernel(*module, std::get<ir::Kernel>(module->operations[0]), device);
    return tree.ok() ? tree->reasons[0] : tree.status().ToString();
  };
  EXPECT_THAT(reason(few), HasSubstr("; 24 rows packed at a time"));
  EXPECT_THAT(reason(many), HasSubstr("; 6 rows packed at a time"));
  for (const std::string& text : {few, many}) CheckModule(text, {.tolerance = 1e-4});
  for (const int size : {4, 7, 17}) {
    CheckModule(Convolution({.batch = 2,
                             .in = 2,
                             .out = 24,
                             .size = size,
                             .padding = 2,
                             .gives_channels_last = true}),
                {.tolerance = 1e-4});
  }
}

}  // namespace
}  // namespace kiln::codegen
