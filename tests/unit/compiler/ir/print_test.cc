#include "compiler/ir/print.h"

#include <cmath>
#include <limits>

#include "tests/unit/compiler/ir/module_texts.h"

namespace kiln::ir {
namespace {

TEST(PrintTest, TextOfEveryConstructReadsBackToItself) {
  EXPECT_EQ(Print(ParseForTest(kEveryConstruct)), std::string(kEveryConstruct));
}

TEST(PrintTest, OrderOfTermsDoesNotDependOnTheContext) {
  // In the second context the variables are numbered the other way round.
  std::string texts[2];
  for (int reversed = 0; reversed < 2; ++reversed) {
    Module m;
    IntContext& ints = *m.ints;
    IntExpr a = ints.NewVar(ints.Const(6)), b = ints.NewVar(ints.Const(6));
    if (reversed) std::swap(a, b);
    m.AddBuffer({.name = "x", .sizes = {ints.Const(100)}, .strides = {ints.Const(1)}});
    Inst load{.op = ScalarOp::kLoad, .result = 0, .buffer = 0};
    load.indices = {ints.Add(ints.Mul(a, 6), ints.Add(b, ints.Mul(a, b)))};
    m.operations.push_back(
        Kernel{.name = "k", .outer = {a, b}, .phases = {{.body = {load}}}, .num_values = 1});
    texts[reversed] = Print(m);
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(PrintTest, NamesThatAreTakenMissingOrReservedAreReplaced) {
  Module m;
  m.ints->NewSymbol("d0", 0, 9, 3);
  m.ints->NewSymbol("not a name", 0, 9, 3);
  m.ints->NewSymbol("n", 0, 9, 3);
  m.ints->NewSymbol("n", 0, 9, 3);
  for (const char* name : {"x", "x", "", "x_2"}) m.AddBuffer({.name = name});
  const std::string text = Print(m);
  EXPECT_EQ(Print(ParseForTest(text)), text);
  const Module back = ParseForTest(text);
  ASSERT_EQ(back.buffers.size(), 4u);
  EXPECT_EQ(back.buffers[0].name, "x");
  EXPECT_EQ(back.buffers[1].name, "x_2");
  EXPECT_EQ(back.buffers[2].name, "b2");
  EXPECT_EQ(back.buffers[3].name, "x_2_2");
  EXPECT_EQ(back.ints->symbols()[0].name, "s0");
  EXPECT_EQ(back.ints->symbols()[1].name, "s1");
  EXPECT_EQ(back.ints->symbols()[3].name, "n_2");
}

TEST(PrintTest, FloatImmediatesRoundTripExactly) {
  constexpr double kMax = std::numeric_limits<double>::max();
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  const double values[] = {0.1, -0.0, 1.0 / 3, kMax, kTiny, -INFINITY, NAN, 1e22, 123456789.125};
  for (double value : values) {
    Module m;
    Inst inst{.op = ScalarOp::kConst, .result = 0, .immediate_float = value};
    m.operations.push_back(Kernel{.name = "k", .phases = {{.body = {inst}}}, .num_values = 1});
    const Module back = ParseForTest(Print(m));
    ASSERT_EQ(back.operations.size(), 1u);
    const double read = std::get<Kernel>(back.operations[0]).phases[0].body[0].immediate_float;
    EXPECT_TRUE(std::isnan(value) ? std::isnan(read)
                                  : read == value && std::signbit(read) == std::signbit(value))
        << value << " became " << read;
  }
}

TEST(PrintTest, OperandsThatNoIndexMentionsAreKept) {
  Module m;
  IntContext& ints = *m.ints;
  m.AddBuffer({.name = "x", .sizes = {ints.Const(1)}, .strides = {ints.Const(1)}});
  Inst five{.op = ScalarOp::kConst, .dtype = DType::kI64, .result = 0, .immediate_int = 5};
  Inst load{.op = ScalarOp::kLoad, .result = 1, .operands = {0}, .buffer = 0};
  load.indices = {ints.Const(0)};
  m.operations.push_back(Kernel{.name = "k", .phases = {{.body = {five, load}}}, .num_values = 2});
  const std::string text = Print(m);
  EXPECT_NE(text.find("%1 = load f32 @x[0] using %0\n"), std::string::npos) << text;
  EXPECT_EQ(Print(ParseForTest(text)), text);
  std::get<Kernel>(m.operations[0]).phases[0].body[1].checks = {ints.Indirect(0, ints.Const(1))};
  const std::string checked = Print(m);
  EXPECT_NE(checked.find("load f32 @x[0] using [%0 < 1]\n"), std::string::npos) << checked;
  EXPECT_EQ(Print(ParseForTest(checked)), checked);
}

TEST(PrintTest, BrokenModulesPrintToo) {
  Module m;
  Inst load{.op = ScalarOp::kLoad, .buffer = 7, .indices = {IntExpr()}, .has_mask = true};
  Inst store{.op = ScalarOp::kStore, .buffer = -1};
  m.operations.push_back(Kernel{.outer = {IntExpr()}, .phases = {{.body = {load, store}}}});
  m.outputs.push_back({BufferWindow{}});
  const Kernel& kernel = std::get<Kernel>(m.operations[0]);
  EXPECT_EQ(Print(m, kernel, kernel.phases[0].body[0]), "%? = load f32 @?[?] if %? else 0");
  EXPECT_NE(Print(m).find("store f32 @?[], %?"), std::string::npos);
}

}  // namespace
}  // namespace kiln::ir
