// Groups of target gcu whose kernels sum, or reduce in other ways, over the loop that is cut into
// tiles: against the interpreter, and in what they cost.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/launch.h"
#include "compiler/ir/parse.h"
#include "tests/unit/compiler/codegen/gcu_launches.h"

namespace kiln::codegen {
namespace {

constexpr int64_t kL2 = 64 << 10;

// Kernels that sum over tiles, and the step of their group.
struct Summed {
  size_t kernels = 0;
  int64_t step = 0;
};

Summed SummedOf(const ir::Module& module) {
  Summed found;
  for (const ir::Operation& operation : module.operations) {
    const auto* repeat = std::get_if<ir::Repeat>(&operation);
    if (repeat == nullptr || repeat->before == 0) continue;
    found.kernels += repeat->before;
    found.step = repeat->steps[0];
  }
  return found;
}

schedule::gcu::Machine SmallL2() {
  schedule::gcu::Machine machine = Reference();
  machine.l2_bytes = kL2;
  return machine;
}

// Rows of a tensor of `type` are mapped to a temporary one of that type, whose columns are then
// reduced.
struct Columns {
  std::string type = "f32", rows = "96";
  int columns = 1024;
  std::string reduce = "sum", symbol;
  // Whether all columns are one sum.
  bool all = false;

  bool floating() const { return type != "i32"; }
  std::string Text() const {
    const std::string wide = floating() ? "f32" : type;
    const bool truth = reduce == "any" || reduce == "all";
    const std::string result = truth ? "bool" : wide;
    const std::string shape =
        absl::StrCat(type, "[", rows, ",", columns, "] strides[", columns, ",1]");
    const std::string of_result = all ? absl::StrCat(result, "[] strides[]")
                                      : absl::StrCat(result, "[", columns, "] strides[1]");
    std::string text =
        absl::StrCat("module {\n", symbol, " buffer @x ", shape, " input(0)\n buffer @t ", shape,
                     " temp\n buffer @y ", of_result, " output\n");
    const std::string load = type == wide ? "" : absl::StrCat("  %1 = cast ", wide, " %0\n");
    const std::string loaded = load.empty() ? "%0" : "%1";
    // Of all of its row, so that tiles are of rows.
    absl::StrAppend(&text, " kernel @map (d0: ", rows, ") {\n phase (r0: ", columns,
                    ") {\n  %0 = load ", type, " @x[d0, r0]\n", load, "  %5 = reduce.max ", wide,
                    " ", loaded, "\n }\n phase (r0: ", columns, ") {\n  %6 = load ", type,
                    " @x[d0, r0]\n", load.empty() ? "" : absl::StrCat("  %7 = cast f32 %6\n"),
                    "  %8 = sub ", wide, " %5, ", load.empty() ? "%6" : "%7",
                    "\n  %2 = ", floating() ? "exp " : "neg ", wide, " %8\n",
                    load.empty() ? "" : absl::StrCat("  %3 = cast ", type, " %2\n"), "  store ",
                    type, " @t[d0, r0], ", load.empty() ? "%2" : "%3", "\n }\n }\n");
    absl::StrAppend(&text, " kernel @columns (", all ? "" : absl::StrCat("d0: ", columns),
                    ") {\n phase (r0: ", rows, all ? absl::StrCat(", r1: ", columns) : "",
                    ") {\n  %0 = load ", type, " @t[r0, ", all ? "r1" : "d0", "]\n", load);
    std::string value = loaded;
    if (truth) {
      absl::StrAppend(&text, "  %2 = const ", wide, floating() ? " 1.5" : " 1", "\n  %3 = gt bool ",
                      loaded, ", %2\n");
      value = "%3";
    }
    absl::StrAppend(&text, "  %4 = reduce.", reduce, " ", result, " ", value,
                    "\n }\n phase () {\n  store ", result, " @y[", all ? "" : "d0",
                    "], %4\n }\n }\n output @y sizes[", all ? "" : absl::StrCat(columns),
                    "] strides[", all ? "" : "1", "] offset 0\n}\n");
    return text;
  }
};

TEST(GcuSums, ReductionsOfAllKindsOverTiles) {
  for (const std::string type : {"f32", "f16", "bf16", "i32"}) {
    for (const std::string reduce : {"sum", "prod", "max", "min", "any", "all"}) {
      for (const std::string rows : {"96", "97", "13"}) {
        const Columns columns{.type = type, .rows = rows, .reduce = reduce};
        SCOPED_TRACE(absl::StrCat(type, " ", reduce, " ", rows));
        const ir::Module module =
            CheckGroups(columns.Text(), kL2, {"afe"},
                        {.int_min = -3,
                         .int_max = 3,
                         .scale = 0.1,
                         .nan_every = reduce == "max" ? 5000 : 0,
                         .integral_floats = reduce == "any" || reduce == "all",
                         .tolerance = type == "f32"      ? 1e-4
                                      : reduce == "prod" ? 0.1
                                                         : 1e-2});
        if (HasFailure()) return;
        EXPECT_EQ(SummedOf(module).kernels, 1u);
      }
    }
  }
}

// Places of extremes have no combination: the group ends before them.
TEST(GcuSums, PlacesOfExtremesAreFoundInWholeColumns) {
  std::string text = Columns{.rows = "97"}.Text();
  for (const auto& [from, to] :
       {std::pair("%4 = reduce.sum f32", "%4 = reduce.argmax i64"),
        std::pair("store f32 @y", "store i64 @y"), std::pair("buffer @y f32", "buffer @y i64")}) {
    text.replace(text.find(from), std::string(from).size(), to);
  }
  ir::Module module = *ir::Parse(text);
  GroupFor(module, SmallL2(), {"afe"});
  EXPECT_EQ(SummedOf(module).kernels, 0u);
}

TEST(GcuSums, OneSumOfEverything) {
  for (const std::string rows : {"96", "101"}) {
    const Columns columns{.rows = rows, .all = true};
    const ir::Module module = CheckGroups(columns.Text(), kL2, {"afe"}, {.scale = 0.1});
    EXPECT_EQ(SummedOf(module).kernels, 1u);
  }
}

// A row is all that fits, and a tile.
TEST(GcuSums, TilesOfOneRow) {
  const Columns columns{.rows = "7", .columns = 60000};
  const ir::Module module = CheckGroups(columns.Text(), 720 << 10, {"afe"}, {.scale = 0.1});
  EXPECT_EQ(SummedOf(module).kernels, 1u);
  EXPECT_EQ(SummedOf(module).step, 1);
}

TEST(GcuSums, AsManyRowsAsThereAreAtRunTime) {
  const Columns columns{.rows = "s0", .symbol = " symbol s0 [1, 4096] hint 96\n"};
  for (const int64_t rows : {1, 5, 96, 97, 300}) {
    SCOPED_TRACE(rows);
    const ir::Module module =
        CheckGroups(columns.Text(), kL2, {"afe", "dafe"}, {.symbols = {rows}, .scale = 0.1});
    if (HasFailure()) return;
    EXPECT_EQ(SummedOf(module).kernels, 1u);
    // With versions for ranges of sizes, or one for all.
    for (const std::vector<std::string>& without : {std::vector<std::string>(), {"afe"}}) {
      CheckGroups(columns.Text(), kL2, without, {.symbols = {rows}, .scale = 0.1});
      if (HasFailure()) return;
    }
  }
}

// As a training step has them: gradients of what a layer gives, then of its weights and biases, of
// what it read, and of the weights of the layer before.
std::string Gradients(const std::string& rows, const std::string& type,
                      const std::string& symbol = "") {
  const bool narrow = type != "f32";
  const auto buffer = [&](const std::string& name, const std::string& of, const std::string& a,
                          int b, const std::string& kind) {
    return absl::StrCat(" buffer @", name, " ", of, "[", a, ",", b, "] strides[", b, ",1] ", kind,
                        "\n");
  };
  std::string text = absl::StrCat("module {\n", symbol);
  text += buffer("dy", type, rows, 64, "input(0)") + buffer("y", type, rows, 64, "input(1)") +
          buffer("x", type, rows, 48, "input(2)") + buffer("w", type, "64", 48, "input(3)") +
          buffer("v", type, rows, 16, "input(4)") + buffer("g", type, rows, 64, "temp") +
          buffer("dx", type, rows, 48, "temp") + buffer("dw", "f32", "64", 48, "output") +
          buffer("du", "f32", "48", 16, "output") + buffer("db", "f32", "64", 2, "output");
  const auto loaded = [&](int value, const std::string& from) {
    return absl::StrCat(
        "  %", value, " = load ", type, " @", from, "\n",
        narrow ? absl::StrCat("  %", value + 10, " = cast f32 %", value, "\n") : "");
  };
  const auto of = [&](int value) { return absl::StrCat("%", narrow ? value + 10 : value); };
  const auto stored = [&](int value, const std::string& to) {
    return narrow ? absl::StrCat("  %30 = cast ", type, " %", value, "\n  store ", type, " @", to,
                                 ", %30\n")
                  : absl::StrCat("  store f32 @", to, ", %", value, "\n");
  };
  absl::StrAppend(&text, " kernel @g (d0: ", rows, ", d1: 64) {\n phase () {\n",
                  loaded(0, "dy[d0, d1]"), loaded(1, "y[d0, d1]"), "  %2 = mul f32 ", of(0), ", ",
                  of(1), "\n", stored(2, "g[d0, d1]"), " }\n }\n");
  const auto product = [&](const std::string& name, const std::string& outer, int inner,
                           const std::string& sums, const std::string& a, const std::string& b,
                           const std::string& store) {
    absl::StrAppend(&text, " kernel @", name, " contraction (d0: ", outer, ", d1: ", inner,
                    ") {\n phase (r0: ", sums, ") {\n", loaded(0, a), loaded(1, b),
                    "  %2 = mul f32 ", of(0), ", ", of(1),
                    "\n  %3 = reduce.sum f32 %2\n }\n phase () {\n", store, " }\n }\n");
  };
  product("dw", "64", 48, rows, "g[r0, d0]", "x[r0, d1]", "  store f32 @dw[d0, d1], %3\n");
  absl::StrAppend(&text, " kernel @db (d0: 64) {\n phase (r0: ", rows, ") {\n",
                  loaded(0, "g[r0, d0]"), "  %1 = reduce.sum f32 ", of(0), "\n  %2 = mul f32 ",
                  of(0), ", ", of(0), "\n  %3 = reduce.max f32 %2\n }\n",
                  " phase () {\n  %4 = const f32 0.25\n  %5 = mul f32 %1, %4\n",
                  "  store f32 @db[d0, 0], %5\n  store f32 @db[d0, 1], %3\n }\n }\n");
  product("dx", rows, 48, "64", "g[d0, r0]", "w[r0, d1]", stored(3, "dx[d0, d1]"));
  product("du", "48", 16, rows, "dx[r0, d0]", "v[r0, d1]", "  store f32 @du[d0, d1], %3\n");
  return absl::StrCat(text, " output @dw sizes[64,48] strides[48,1] offset 0\n",
                      " output @du sizes[48,16] strides[16,1] offset 0\n",
                      " output @db sizes[64,2] strides[2,1] offset 0\n}\n");
}

TEST(GcuSums, GradientsOfWeightsAndBiasesAreSumsOverTilesOfTheBatch) {
  for (const std::string type : {"f32", "f16", "bf16"}) {
    for (const int rows : {1024, 1000, 1}) {
      SCOPED_TRACE(absl::StrCat(type, " ", rows));
      const ir::Module module =
          CheckGroups(Gradients(absl::StrCat(rows), type), 96 << 10, {"afe"},
                      {.scale = 0.3, .tolerance = type == "f32" ? 1e-4 : 2e-2});
      if (HasFailure()) return;
      if (rows > 1) EXPECT_GE(SummedOf(module).kernels, 2u);
    }
  }
}

// One way for all numbers of rows: whole tiles, a part of one, and both.
TEST(GcuSums, GradientsOfAsManyRowsAsThereAreAtRunTimeAreSumsOverTiles) {
  for (const std::string type : {"f32", "f16", "bf16"}) {
    for (const int64_t rows : {1, 5, 64, 1000, 1024, 3001}) {
      SCOPED_TRACE(absl::StrCat(type, " ", rows));
      const ir::Module module =
          CheckGroups(Gradients("s0", type, " symbol s0 [1, 4096] hint 1000\n"), 96 << 10, {"afe"},
                      {.symbols = {rows}, .scale = 0.3, .tolerance = type == "f32" ? 1e-4 : 2e-2});
      if (HasFailure()) return;
      EXPECT_GE(SummedOf(module).kernels, 2u);
    }
  }
}

// Of tensors of 16 MB, which would go to memory and come back.
TEST(GcuSums, SumsOverTilesAreFasterThanMemory) {
  const std::string text = Columns{.rows = "4096", .columns = 2048}.Text();
  double seconds[2] = {0, 0}, predicted = 0;
  for (const bool tiled : {false, true}) {
    ir::Module module = *ir::Parse(text);
    Group(module, tiled ? std::vector<std::string>() : std::vector<std::string>{"tlf"});
    EXPECT_EQ(SummedOf(module).kernels, tiled ? 1u : 0u);
    for (const ir::Operation& operation : module.operations) {
      const auto launch = gcu::MakeLaunch(module, operation, Reference());
      ASSERT_TRUE(launch.ok()) << launch.status();
      seconds[tiled ? 1 : 0] += Simulate(module, *launch);
      if (tiled) predicted += launch->versions[0].seconds;
    }
  }
  EXPECT_LT(seconds[1] * 1.5, seconds[0]);
  EXPECT_NEAR(predicted / seconds[1], 1, 0.15);
}

}  // namespace
}  // namespace kiln::codegen
