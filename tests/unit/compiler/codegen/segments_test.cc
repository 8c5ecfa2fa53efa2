// Loops taken apart where a comparison changes, against the reference interpreter.
#include "compiler/schedule/cpu/segments.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/ir/parse.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

// What the one kernel is taken apart into; no breaks where it is not.
std::vector<std::string> BreaksOf(const std::string& text) {
  absl::StatusOr<ir::Module> module = ir::Parse(text);
  EXPECT_TRUE(module.ok()) << module.status();
  const auto& kernel = std::get<ir::Kernel>(module->operations[0]);
  auto nest = schedule::BuildNest(*module, kernel, true);
  EXPECT_TRUE(nest.ok()) << nest.status();
  const schedule::cpu::VectorPlan plan =
      schedule::cpu::PlanVectors(*module->ints, *nest, schedule::cpu::VectorIsa::kAvx2);
  const auto segments = schedule::cpu::PlanSegments(*module->ints, *nest, plan);
  std::vector<std::string> breaks;
  for (size_t i = 0; segments && i < segments->breaks.size(); ++i) {
    const ir::IntExpr at = segments->breaks[i];
    breaks.push_back(at.is_const() ? StrCat(at.value()) : "symbolic");
  }
  return breaks;
}

struct Cat {
  std::string a, b;  // sizes along the dimension
  bool last = true;  // the last of two dimensions, else the first
  std::string symbols;
};

// Two parts, as lowering writes it: masks, and a select.
std::string Module(const Cat& cat) {
  const auto sizes = [&](const std::string& size) {
    return cat.last ? StrCat("13,", size) : StrCat(size, ",13");
  };
  const auto strides = [&](const std::string& size) {
    return cat.last ? StrCat(size, ",1") : "13,1";
  };
  const std::string both = StrCat(cat.a, " + ", cat.b);
  const std::string at = cat.last ? "d1" : "d0";
  const std::string second =
      cat.last ? StrCat("d0, d1 - (", cat.a, ")") : StrCat("d0 - (", cat.a, "), d1");
  return StrCat(
      "module {\n", cat.symbols, " buffer @a f32[", sizes(cat.a), "] strides[", strides(cat.a),
      "] input(0)\n buffer @b f32[", sizes(cat.b), "] strides[", strides(cat.b),
      "] input(1)\n buffer @o f32[", sizes(both), "] strides[", strides(both),
      "] output\n kernel @k (d0: ", cat.last ? "13" : both, ", d1: ", cat.last ? both : "13",
      ") {\n phase () {\n %0 = index i64 ", at, "\n %1 = index i64 ", cat.a,
      "\n %2 = lt bool %0, %1\n %3 = load f32 @a[d0, d1] if %2 else 0\n %4 = index i64 ", at,
      " - (", cat.a, ")\n %5 = const i64 0\n %6 = ge bool %4, %5\n %7 = load f32 @b[", second,
      "] if %6 else 0\n %8 = select f32 %2, %3, %7\n store f32 @o[d0, d1], %8\n }\n }\n",
      " output @o sizes[", sizes(both), "] strides[", strides(both), "] offset 0\n}\n");
}

TEST(SegmentsTest, PartsAlongTheLanesAndAlongTheRows) {
  for (const bool last : {true, false}) {
    for (const auto& [a, b] : {std::pair{"32", "16"}, {"5", "70"}, {"37", "3"}}) {
      const std::string text = Module({.a = a, .b = b, .last = last});
      EXPECT_EQ(BreaksOf(text), std::vector<std::string>{a}) << text;
      CheckModule(text, {.integral_floats = true, .tolerance = 0});
      const auto source = EmitText(text, TestDevice("avx2"));
      ASSERT_TRUE(source.ok()) << source.status();
      for (const char* undecided : {"KLoadMasked", "KSelect", "[0] ?"}) {
        EXPECT_EQ(source->find(undecided), std::string::npos) << undecided << *source;
      }
    }
  }
}

TEST(SegmentsTest, PartsOfOneElement) {
  for (const bool last : {true, false}) {
    CheckModule(Module({.a = "1", .b = "1", .last = last}), {.tolerance = 0});
  }
}

TEST(SegmentsTest, PartsOfSymbolicSize) {
  const std::string symbols = " symbol s0 [1, 100] hint 20\n symbol s1 [1, 100] hint 30\n";
  for (const bool last : {true, false}) {
    const std::string text = Module({.a = "s0", .b = "s1", .last = last, .symbols = symbols});
    EXPECT_EQ(BreaksOf(text), std::vector<std::string>{"symbolic"});
    for (const int64_t n : {1, 7, 64}) {
      CheckModule(text, {.symbols = {n, 3}, .tolerance = 0});
      CheckModule(text, {.symbols = {3, n}, .tolerance = 0});
    }
  }
}

// Breaks that come in another order than they lie, and comparisons with one answer everywhere.
TEST(SegmentsTest, ManyBreaksInAnyOrder) {
  const std::string end = "s0 + s1 + s2 + s3";
  std::string text = StrCat(
      "module {\n symbol s0 [1, 90] hint 9\n symbol s1 [1, 90] hint 9\n symbol s2 [1, 90] hint 9\n",
      " symbol s3 [1, 90] hint 9\n buffer @x f32[2,", end, "] strides[", end,
      ",1] input(0)\n buffer @o f32[2,", end, "] strides[", end, ",1] output\n",
      " kernel @k (d0: 2, d1: ", end, ") {\n phase () {\n %0 = index i64 d1\n",
      " %1 = load f32 @x[d0, d1]\n");
  int id = 1;
  for (const char* at : {"s0 + s1 + s2", "s0", "s0 + s1", "-s0", "s0 + s1 + s2 + s3 + 4"}) {
    absl::StrAppend(&text, " %", id + 1, " = index i64 ", at, "\n %", id + 2, " = lt bool %0, %",
                    id + 1, "\n %", id + 3, " = const f32 ", id, "\n %", id + 4, " = add f32 %", id,
                    ", %", id + 3, "\n %", id + 5, " = select f32 %", id + 2, ", %", id + 4, ", %",
                    id, "\n");
    id += 5;
  }
  absl::StrAppend(&text, " store f32 @o[d0, d1], %", id, "\n }\n }\n output @o sizes[2,", end,
                  "] strides[", end, ",1] offset 0\n}\n");
  EXPECT_EQ(BreaksOf(text).size(), 3u);
  for (const int64_t n : {1, 5, 40}) {
    CheckModule(text, {.symbols = {n, 3, 41 - n, 7}, .integral_floats = true, .tolerance = 0});
  }
}

// A size that may be 0 puts the break at an end: nothing is known, and nothing is lost.
TEST(SegmentsTest, PartsThatMayBeEmptyStayTogether) {
  const std::string symbols = " symbol s0 [0, 100] hint 20\n symbol s1 [1, 100] hint 30\n";
  const std::string text = Module({.a = "s0", .b = "s1", .symbols = symbols});
  EXPECT_TRUE(BreaksOf(text).empty());
  for (const int64_t n : {0, 9}) CheckModule(text, {.symbols = {n, 3}, .tolerance = 0});
}

// Every comparison, with the variable on either side.
TEST(SegmentsTest, EveryComparison) {
  for (const char* op : {"lt", "le", "gt", "ge"}) {
    for (const char* operands : {"%0, %1", "%1, %0"}) {
      const std::string text = StrCat(
          "module {\n buffer @x f32[4,50] strides[50,1] input(0)\n buffer @o f32[4,50] ",
          "strides[50,1] output\n kernel @k (d0: 4, d1: 50) {\n phase () {\n",
          " %0 = index i64 d1 - 3\n %1 = const i64 17\n %2 = ", op, " bool ", operands,
          "\n %3 = load f32 @x[d0, d1]\n %4 = const f32 -2\n %5 = select f32 %2, %3, %4\n",
          " %6 = cast f32 %2\n %7 = add f32 %5, %6\n",
          " store f32 @o[d0, d1], %7\n }\n }\n output @o sizes[4,50] strides[50,1] offset 0\n}\n");
      EXPECT_EQ(BreaksOf(text).size(), 1u) << op;
      CheckModule(text, {.integral_floats = true, .tolerance = 0});
    }
  }
}

// Padding: the mask is an and of two, and what lies outside of it is one value.
TEST(SegmentsTest, MasksOfPadding) {
  const std::string text =
      "module {\n buffer @x f32[6,40] strides[40,1] input(0)\n"
      " buffer @o f32[6,45] strides[45,1] output\n kernel @k (d0: 6, d1: 45) {\n phase () {\n"
      " %0 = index i64 d1 - 3\n %1 = const i64 0\n %2 = ge bool %0, %1\n %3 = const i64 40\n"
      " %4 = lt bool %0, %3\n %5 = and bool %2, %4\n %6 = not bool %5\n"
      " %7 = load f32 @x[d0, d1 - 3] if %5 else -7\n %8 = cast f32 %6\n %9 = sub f32 %7, %8\n"
      " store f32 @o[d0, d1], %9\n }\n }\n output @o sizes[6,45] strides[45,1] offset 0\n}\n";
  EXPECT_EQ(BreaksOf(text), (std::vector<std::string>{"3", "43"}));
  CheckModule(text, {.integral_floats = true, .tolerance = 0});
}

// A triangle's border is another one in each row.
TEST(SegmentsTest, ComparisonsOfTwoLoopsStay) {
  const std::string text =
      "module {\n buffer @x f32[40,40] strides[40,1] input(0)\n"
      " buffer @o f32[40,40] strides[40,1] output\n kernel @k (d0: 40, d1: 40) {\n phase () {\n"
      " %0 = index i64 d1\n %1 = index i64 d0\n %2 = le bool %0, %1\n"
      " %3 = load f32 @x[d0, d1] if %2 else 0\n"
      " store f32 @o[d0, d1], %3\n }\n }\n output @o sizes[40,40] strides[40,1] offset 0\n}\n";
  EXPECT_TRUE(BreaksOf(text).empty());
  CheckModule(text, {.integral_floats = true, .tolerance = 0});
}

}  // namespace
}  // namespace kiln::codegen
