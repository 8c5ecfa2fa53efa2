// Target ptx: its schedules, its kernels emulated on this machine, and its PTX.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "compiler/codegen/ptx/ptx_target.h"
#include "compiler/codegen/targets.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/verify.h"
#include "compiler/schedule/interpret.h"
#include "compiler/schedule/print.h"
#include "compiler/schedule/verify.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Softmax(const std::string& type, int rows, int length) {
  return absl::StrReplaceAll(
      R"(module {
  buffer @x TYPE[ROWS,LENGTH] strides[LENGTH,1] input(0)
  buffer @y TYPE[ROWS,LENGTH] strides[LENGTH,1] output
  buffer @best i64[ROWS] strides[1] output
  kernel @softmax (d0: ROWS) {
    phase (r0: LENGTH) {
      %0 = load TYPE @x[d0, r0]
      %1 = cast f32 %0
      %2 = reduce.max f32 %1
      %3 = reduce.argmax i64 %1
    }
    phase (r0: LENGTH) {
      %4 = load TYPE @x[d0, r0]
      %5 = cast f32 %4
      %6 = sub f32 %5, %2
      %7 = exp f32 %6
      %8 = reduce.sum f32 %7
    }
    phase (r0: LENGTH) {
      %9 = load TYPE @x[d0, r0]
      %10 = cast f32 %9
      %11 = sub f32 %10, %2
      %12 = exp f32 %11
      %13 = div f32 %12, %8
      %14 = cast TYPE %13
      store TYPE @y[d0, r0], %14
    }
    phase () {
      store i64 @best[d0], %3
    }
  }
  output @y sizes[ROWS,LENGTH] strides[LENGTH,1] offset 0
  output @best sizes[ROWS] strides[1] offset 0
}
)",
      {{"TYPE", type}, {"ROWS", std::to_string(rows)}, {"LENGTH", std::to_string(length)}});
}

// Sums along columns, whose few results do not fill a GPU.
std::string ColumnSums(const std::string& type, const std::string& rows, int columns) {
  return absl::StrReplaceAll(R"(module {
  symbol s0 [2, 100000] hint 3000
  buffer @x TYPE[ROWS,COLUMNS] strides[COLUMNS,1] input(0)
  buffer @y TYPE[COLUMNS] strides[1] output
  buffer @most TYPE[COLUMNS] strides[1] output
  kernel @sums (d0: COLUMNS) {
    phase (r0: ROWS) {
      %0 = load TYPE @x[r0, d0]
      %1 = cast f32 %0
      %2 = reduce.sum f32 %1
      %3 = reduce.max f32 %1
    }
    phase () {
      %4 = cast TYPE %2
      store TYPE @y[d0], %4
      %5 = cast TYPE %3
      store TYPE @most[d0], %5
    }
  }
  output @y sizes[COLUMNS] strides[1] offset 0
  output @most sizes[COLUMNS] strides[1] offset 0
}
)",
                             {{"TYPE", type}, {"ROWS", rows}, {"COLUMNS", StrCat(columns)}});
}

std::string TransposedSum(const std::string& type, int rows, int columns) {
  return absl::StrReplaceAll(
      R"(module {
  buffer @x TYPE[COLUMNS,ROWS] strides[ROWS,1] input(0)
  buffer @y TYPE[ROWS,COLUMNS] strides[COLUMNS,1] input(1)
  buffer @z TYPE[ROWS,COLUMNS] strides[COLUMNS,1] output
  kernel @add (d0: ROWS, d1: COLUMNS) {
    phase () {
      %0 = load TYPE @x[d1, d0]
      %1 = load TYPE @y[d0, d1]
      %2 = max TYPE %0, %1
      store TYPE @z[d0, d1], %2
    }
  }
  output @z sizes[ROWS,COLUMNS] strides[COLUMNS,1] offset 0
}
)",
      {{"TYPE", type}, {"ROWS", std::to_string(rows)}, {"COLUMNS", std::to_string(columns)}});
}

TEST(PtxTest, RowsOfEveryLength) {
  for (const std::string type : {"f32", "bf16", "f64"}) {
    for (const int length : {2, 7, 8, 31, 33, 64, 100, 250, 1000, 4096}) {
      SCOPED_TRACE(StrCat(type, " ", length));
      CheckModule(Softmax(type, 5, length), {.integral_floats = length % 2 == 0, .only_ptx = true});
    }
  }
  CheckModule(Softmax("f16", 3, 77), {.nan_every = 50, .only_ptx = true});
}

TEST(PtxTest, AWarpTakesAShortRowAndABlockALongOne) {
  EXPECT_THAT(Compile(Softmax("bf16", 4000, 64)).schedules, HasSubstr("team 8 "));
  EXPECT_THAT(Compile(Softmax("bf16", 4000, 1024)).schedules, HasSubstr("team 32 "));
  EXPECT_THAT(Compile(Softmax("bf16", 4000, 8192)).schedules, HasSubstr("team 256 "));
  // Of long rows of float32 a thread has half as many elements, in as many accesses.
  EXPECT_THAT(Compile(Softmax("f32", 4000, 1024)).schedules, HasSubstr("team 32 "));
  EXPECT_THAT(Compile(Softmax("f32", 4000, 8192)).schedules, HasSubstr("team 512 "));
  // Fewer rows than multiprocessors: more threads for each.
  EXPECT_THAT(Compile(Softmax("bf16", 4, 8192)).schedules, HasSubstr("team 1024 "));
}

TEST(PtxTest, AccessesAreOf16Bytes) {
  const Made halves = Compile(Softmax("bf16", 4000, 1024));
  EXPECT_THAT(halves.objects[0], HasSubstr("ld.global.v4"));
  EXPECT_THAT(halves.objects[0], HasSubstr("st.global.v4"));
  // Rows of 50 begin at multiples of 4 bytes.
  EXPECT_THAT(Compile(Softmax("bf16", 4000, 50)).objects[0], Not(HasSubstr("global.v4")));
}

TEST(PtxTest, ReductionsOfFewResultsAreCutIntoParts) {
  for (const std::string type : {"f32", "bf16"}) {
    CheckModule(ColumnSums(type, "2048", 40),
                {.symbols = {2}, .only_ptx = true});  // parts of equal length
    CheckModule(ColumnSums(type, "1021", 40), {.symbols = {2}, .only_ptx = true});  // a prime
    CheckModule(ColumnSums(type, "s0", 24), {.symbols = {1023}, .only_ptx = true});
    CheckModule(ColumnSums(type, "s0", 24), {.symbols = {2}, .only_ptx = true});
  }
  const Made made = Compile(ColumnSums("f32", "2048", 40));
  ASSERT_EQ(made.kernels.size(), 2);
  EXPECT_THAT(made.schedules, HasSubstr("for d0 < 16, task {")) << "parts of 4 rows a thread";
  EXPECT_EQ(Compile(ColumnSums("f32", "16", 40)).kernels.size(), 1);
}

TEST(PtxTest, TilesTurnWhatTheyRead) {
  for (const std::string type : {"f32", "bf16", "f64", "i64", "u8"}) {
    CheckModule(TransposedSum(type, 70, 100), {.only_ptx = true});
  }
  CheckModule(TransposedSum("f32", 64, 64), {.only_ptx = true});
  CheckModule(TransposedSum("bf16", 128, 192), {.only_ptx = true});
  CheckModule(TransposedSum("f32", 1, 40), {.only_ptx = true});
  EXPECT_THAT(Compile(TransposedSum("f32", 70, 100)).schedules, HasSubstr("in l1"));
  // 16 bytes a thread along both sides where all lines begin at multiples of them.
  const Made whole = Compile(TransposedSum("bf16", 128, 192));
  EXPECT_THAT(whole.schedules, HasSubstr("group 8 {"));
  EXPECT_THAT(whole.objects[0], HasSubstr("ld.global.v4"));
  EXPECT_THAT(Compile(TransposedSum("bf16", 130, 190)).schedules, HasSubstr("group 32 {"));
}

// What both phases read and make is kept once: the sum, not its operands; narrow, as it was.
TEST(PtxTest, ARowKeepsWhatItsPhasesTake) {
  const std::string text = R"(module {
  buffer @x bf16[40,1000] strides[1000,1] input(0)
  buffer @y bf16[40,1000] strides[1000,1] input(1)
  buffer @z f32[40,1000] strides[1000,1] output
  kernel @norm (d0: 40) {
    phase (r0: 1000) {
      %0 = load bf16 @x[d0, r0]
      %1 = cast f32 %0
      %2 = load bf16 @y[d0, r0]
      %3 = cast f32 %2
      %4 = add f32 %1, %3
      %5 = cast bf16 %4
      %6 = cast f32 %5
      %7 = mul f32 %6, %6
      %8 = reduce.sum f32 %7
    }
    phase (r0: 1000) {
      %9 = load bf16 @x[d0, r0]
      %10 = cast f32 %9
      %11 = load bf16 @y[d0, r0]
      %12 = cast f32 %11
      %13 = add f32 %10, %12
      %14 = cast bf16 %13
      %15 = cast f32 %14
      %16 = mul f32 %15, %8
      store f32 @z[d0, r0], %16
    }
  }
  output @z sizes[40,1000] strides[1000,1] offset 0
}
)";
  // The reference rounds nothing.
  CheckModule(text, {.tolerance = 0.01, .only_ptx = true});
  const std::string schedules = Compile(text).schedules;
  EXPECT_THAT(schedules, HasSubstr("open a0 bf16[1000] in l1"));
  EXPECT_THAT(schedules, Not(HasSubstr("open a1 bf16")));
}

// Gradients of a layer norm's weights: rows are two loops, one of which alone has too few parts.
TEST(PtxTest, ReductionsAreCutAlongSeveralLoops) {
  const std::string text = R"(module {
  buffer @x f32[4,600,40] strides[24000,40,1] input(0)
  buffer @w f32[2400,40] strides[40,1] input(1)
  buffer @y f32[40] strides[1] output
  kernel @sums (d0: 40) {
    phase (r0: 4, r1: 600) {
      %0 = load f32 @x[r0, r1, d0]
      %1 = load f32 @w[600*r0 + r1, d0]
      %2 = mul f32 %0, %1
      %3 = reduce.sum f32 %2
    }
    phase () {
      store f32 @y[d0], %3
    }
  }
  output @y sizes[40] strides[1] offset 0
}
)";
  CheckModule(text, {.only_ptx = true});
  const Made made = Compile(text);
  ASSERT_EQ(made.kernels.size(), 2);
  EXPECT_THAT(made.schedules, HasSubstr("for d0 < 16, task {")) << "4 x 4 parts";
}

// A row is stored by its columns' threads and read by others: they have to meet.
TEST(PtxTest, ThreadsMeetBetweenAStoreAndAnotherThreadsLoad) {
  const std::string text = R"(module {
  buffer @x f32[9,600] strides[600,1] input(0)
  buffer @t f32[9,600] strides[600,1] temp
  buffer @y f32[9,600] strides[600,1] output
  kernel @turned (d0: 9) {
    phase (r0: 600) {
      %0 = load f32 @x[d0, r0]
      %1 = exp f32 %0
      store f32 @t[d0, r0], %1
    }
    phase (r0: 600) {
      %2 = load f32 @t[d0, 599 - r0]
      store f32 @y[d0, r0], %2
    }
  }
  output @y sizes[9,600] strides[600,1] offset 0
}
)";
  CheckModule(text, {.only_ptx = true});
  EXPECT_THAT(Compile(text).kernels[0].source, HasSubstr("KTeamSync<kTeam>();"));
}

TEST(PtxTest, AnObjectNamesItsKernelAndAnArchiveAllOfThem) {
  Made made = Compile(ColumnSums("f32", "2048", 40), "sm_80");
  ASSERT_EQ(made.objects.size(), 2);
  EXPECT_TRUE(
      absl::StartsWith(made.objects[1], "// kernel kernel_1\n// interface scratch_bytes {}\n"));
  EXPECT_THAT(made.objects[1], HasSubstr(".target sm_80"));
  EXPECT_THAT(made.objects[1], HasSubstr(".visible .entry kernel_1("));
  EXPECT_THAT(made.objects[1], HasSubstr(".maxntid "));
  const auto target = MakePtx();
  const auto linked = target->Link(made.objects);
  ASSERT_TRUE(linked.ok()) << linked.status();
  ASSERT_EQ(linked->size(), 1);
  EXPECT_EQ((*linked)[0].number, 1);
  EXPECT_EQ((*linked)[0].kind, BinaryKind::kPtx);
  const std::string& archive = (*linked)[0].data;
  EXPECT_TRUE(absl::StartsWith(archive, "// kiln kernels 1\n// kernel kernel_0 0 ")) << archive;
  // What the index says is where the module lies.
  const size_t second = archive.find("// kernel kernel_1 ");
  ASSERT_NE(second, std::string::npos);
  long offset = -1, size = -1;
  ASSERT_EQ(std::sscanf(archive.c_str() + second, "// kernel kernel_1 %ld %ld", &offset, &size), 2);
  const std::string module = archive.substr(archive.find("\n\n") + 2).substr(offset, size);
  EXPECT_THAT(module, HasSubstr(".visible .entry kernel_1("));
  EXPECT_THAT(module, Not(HasSubstr("kernel_0")));
  EXPECT_FALSE(target->Link({"no object"}).ok());
}

// With one for each shape of tiles, and long ones with much work on sums.
TEST(PtxTest, ProductsAreOnTensorCoresWithoutSpills) {
  const struct {
    int m, n, k;
    const char* tiles;
  } cases[] = {
      {513, 5440, 136, "128, 256, 4, 0, 1"},  {4265, 776, 136, "256, 128, 4, 0, 1"},
      {521, 4256, 768, "128, 192, 5, 0, 1"},  {265, 4992, 136, "128, 144, 6, 0, 1"},
      {258, 3584, 200, "128, 112, 6, 0, 1"},  {4229, 440, 136, "128, 208, 4, 0, 1"},
      {771, 4760, 136, "256, 160, 4, 0, 1"},  {1200, 5000, 2000, "128, 208, 4, 0, 2"},
      {2344, 1264, 136, "128, 224, 4, 0, 2"}, {3724, 4808, 136, "128, 192, 5, 1, 2"},
      {524, 5592, 512, "192, 128, 5, 1, 1"},  {3469, 2608, 704, "128, 192, 5, 1, 1"},
      {772, 5400, 136, "128, 160, 5, 1, 1"},  {769, 5328, 136, "128, 144, 6, 1, 1"},
      {774, 4632, 192, "128, 128, 6, 1, 1"},  {4096, 4096, 4096, "128, 128, 6, 1, 1"},
      {261, 3528, 1536, "128, 96, 7, 1, 1"},  {2834, 200, 136, "128, 80, 8, 1, 1"},
      {4282, 136, 704, "128, 64, 8, 1, 1"},   {514, 5440, 256, "64, 192, 6, 1, 1"},
      {135, 5312, 136, "64, 128, 8, 1, 1"},   {129, 144, 192, "64, 96, 8, 1, 1"},
      {136, 2168, 520, "64, 64, 8, 1, 1"},    {130, 136, 264, "64, 48, 8, 1, 1"},
  };
  for (const auto& [m, n, k, tiles] : cases) {
    SCOPED_TRACE(StrCat(m, " x ", n, " x ", k));
    const Made made = Compile(ProductAndMore("bf16", m, n, k, false, false));
    EXPECT_THAT(made.schedules, HasSubstr(StrCat("multiply_tile<", tiles, ">")));
    ASSERT_EQ(made.objects.size(), 1);
    EXPECT_THAT(made.objects[0], HasSubstr("wgmma.mma_async.sync.aligned"));
    EXPECT_THAT(made.objects[0], HasSubstr("cp.async.bulk.tensor.2d"));
    EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
    Assemble(made.objects[0], "sm_90a");
  }
}

// Columns that are no octets are finished and stored one by one, so that none past the last one is
// loaded; a library would store octets, which then are copied.
TEST(PtxTest, ColumnsOfAProductMayEndAnywhere) {
  const auto check = [](const std::string& text, absl::string_view load) {
    const Made made = Compile(text);
    EXPECT_THAT(made.schedules, HasSubstr("multiply_tile<"));
    EXPECT_THAT(made.kernels[0].source, HasSubstr("kRagged = true"));
    EXPECT_THAT(made.objects[0], HasSubstr(load));
    EXPECT_THAT(made.objects[0], Not(HasSubstr("st.global.v")));
    EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
  };
  for (const auto& [m, n, k] :
       {std::tuple(2048, 50257, 768), {520, 5001, 136}, {513, 5444, 136}, {4096, 4098, 4096}}) {
    SCOPED_TRACE(StrCat(m, " x ", n, " x ", k));
    const std::string text = ProductAndMore("bf16", m, n, k, false, false);
    check(text, "ld.shared.u32");  // what is rounded needs a bias of each column
    check(Alone(text), "ld.shared.u16");
  }
  for (const int n : {133, 142}) {
    ir::Module module = *ir::Parse(ProductAndMore("bf16", 130, n, 136, false, false));
    const auto tree = MakePtx()->Schedule(module, module.operations[0]);
    ASSERT_TRUE(tree.ok()) << tree.status();
    ASSERT_EQ(schedule::Verify(module, *tree), absl::OkStatus());
    const std::vector<HostTensor> inputs = MakeInputs(module, {});
    const auto expected = ir::Interpret(module, inputs, {}, {}, {});
    const auto actual = schedule::Interpret(module, {&*tree, 1}, inputs, {}, {});
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(actual.ok()) << actual.status();
    ExpectSame((*actual)[0], (*expected)[0], 1e-4, StrCat(n, " columns"));
  }
}

// In every shape of tiles: of one result, of two, of one of 32 bits beside it, of one with rows of
// a table, and of the sum alone.
TEST(PtxTest, NoTileOfAProductSpillsOrMakesTensorCoresWait) {
  constexpr int kShapes = 23;
  int first = 0;
  const auto variant = [](absl::string_view name, int columns) {
    const std::string text = ProductAndMore("bf16", 2048, columns, 768, false, false);
    if (name == "sum") return Alone(text);
    if (name == "gathered") {
      return absl::StrReplaceAll(
          text, {{"  kernel @mm", "  buffer @at i64[2048] strides[1] input(4)\n  kernel @mm"},
                 {"load bf16 @x[d0, d1]", "load bf16 @x[[%20], d1]"},
                 {"      %6 = load", "      %20 = load i64 @at[d0]\n      %6 = load"}});
    }
    if (name == "two") {
      return WithResult(text, "bf16",
                        "      %14 = mul f32 %11, %8\n"
                        "      %15 = cast bf16 %14\n"
                        "      store bf16 @z[d0, d1], %15\n");
    }
    return name == "wide" ? WithResult(text, "f32", "      store f32 @z[d0, d1], %12\n") : text;
  };
  for (const auto& [name, columns] : {std::pair("one", 50256),
                                      {"two", 50256},
                                      {"wide", 50256},
                                      {"gathered", 50256},
                                      {"sum", 50257},
                                      {"two", 50257},
                                      {"wide", 50257}}) {
    for (int rank = first; rank < kShapes; rank += 2) {
      const Made made = Compile(variant(name, columns), "sm_90a", rank);
      ASSERT_EQ(made.objects.size(), 1);
      const size_t at = made.schedules.find("multiply_tile");
      SCOPED_TRACE(StrCat(name, ", ", columns, " columns, ",
                          made.schedules.substr(at, made.schedules.find('(', at) - at)));
      Assemble(made.objects[0], "sm_90a");
    }
    first = 1 - first;
  }
}

TEST(PtxTest, OperandsOfProductsLieInAnyOrder) {
  for (const bool a_turned : {false, true}) {
    for (const bool b_turned : {false, true}) {
      const std::string text = ProductAndMore("f16", 328, 5768, 136, a_turned, b_turned);
      const Made made = Compile(text);
      ASSERT_EQ(made.kernels.size(), 1);
      const std::vector<EmittedTensorMap>& maps = made.kernels[0].tensor_maps;
      ASSERT_EQ(maps.size(), 2);
      const auto at_launch = [&](ir::IntExpr size) {
        return made.module.ints->EvaluateAtHints(size);
      };
      EXPECT_EQ(at_launch(maps[0].sizes[0]), a_turned ? 328 : 136);
      EXPECT_EQ(at_launch(maps[0].strides[0]), a_turned ? 328 : 136);
      EXPECT_EQ(maps[0].box[1], a_turned ? 64 : 128);
      EXPECT_EQ(at_launch(maps[1].sizes[1]), b_turned ? 136 : 5768);
      EXPECT_EQ(maps[1].box[1] == 64, b_turned);
      EXPECT_THAT(made.objects[0], HasSubstr(".f32.f16.f16"));
      Assemble(made.objects[0], "sm_90a");
    }
  }
}

// The memory plan may have a result take the place of what another depends on (ChooseInPlace): of
// what a thread finishes at a time all loads come before all stores, sums from shared memory first.
TEST(PtxTest, ResultsOfAProductAreStoredAfterAllLoadsForThem) {
  const std::string text = WithResult(ProductAndMore("bf16", 520, 5768, 136, false, false), "bf16",
                                      "      %14 = mul f32 %11, %8\n"
                                      "      %15 = cast bf16 %14\n"
                                      "      store bf16 @z[d0, d1], %15\n");
  const Made made = Compile(text);
  ASSERT_EQ(made.objects.size(), 1);
  int stores = 0, groups = 0;  // of stores that no load comes between
  const auto end_group = [&] {
    if (stores == 0) return;
    EXPECT_EQ(stores % 4, 0);  // of two results, of two places at least
    ++groups;
    stores = 0;
  };
  for (const absl::string_view line : absl::StrSplit(made.objects[0], '\n')) {
    if (absl::StrContains(line, "ld.shared.v4") || absl::StrContains(line, "ld.global")) {
      end_group();
    } else if (absl::StrContains(line, "st.global")) {
      EXPECT_THAT(std::string(line), HasSubstr("st.global.v4"));
      ++stores;
    }
  }
  end_group();
  EXPECT_EQ(groups, 1);  // all pieces by the same code
}

// What is rounded to 16 bits before anything else needs the sums waits in shared memory as that:
// where a row's own operands, or functions that are long, come before, the sums do.
TEST(PtxTest, WhatWaitsOfSumsHas16BitsWhereItMay) {
  const std::string of_sums = ProductAndMore("bf16", 520, 5768, 136, false, false);
  // After the bias of a column, before what takes long.
  const std::string rounded = absl::StrReplaceAll(of_sums, {{"      %9 = erf f32 %8\n",
                                                             "      %20 = cast bf16 %8\n"
                                                             "      %21 = cast f32 %20\n"
                                                             "      %9 = erf f32 %21\n"}});
  const auto waits_short = [](const std::string& text) {
    const Made made = Compile(text);
    EXPECT_EQ(made.objects.size(), 1);
    const bool is = absl::StrContains(made.kernels[0].source, "kShort = true");
    EXPECT_EQ(absl::StrContains(made.objects[0], "stmatrix"), is);
    return is;
  };
  EXPECT_FALSE(waits_short(of_sums));
  EXPECT_TRUE(waits_short(rounded));
  EXPECT_TRUE(waits_short(Alone(of_sums)));
  // The sums themselves are a result, too.
  EXPECT_FALSE(waits_short(WithResult(Alone(of_sums), "f32", "      store f32 @z[d0, d1], %5\n")));
  // The bias is a row's.
  EXPECT_FALSE(waits_short(absl::StrReplaceAll(
      rounded, {{"@bias bf16[5768]", "@bias bf16[520]"}, {"@bias[d1]", "@bias[d0]"}})));
}

// What the tensor memory accelerator does not take runs in loops, as on other architectures.
TEST(PtxTest, OtherProductsAreLoops) {
  EXPECT_THAT(Compile(ProductAndMore("bf16", 128, 192, 132, false, false)).schedules,
              Not(HasSubstr("multiply_tile")));
  EXPECT_THAT(Compile(ProductAndMore("bf16", 128, 196, 128, false, true)).schedules,
              Not(HasSubstr("multiply_tile")));
  EXPECT_THAT(Compile(ProductAndMore("bf16", 128, 192, 128, false, false), "sm_90").schedules,
              Not(HasSubstr("multiply_tile")));
}

// Before anything is read, so that a client may let it begin before the launch before it has ended.
TEST(PtxTest, KernelsWaitForTheLaunchBefore) {
  const Made made = Compile(Softmax("bf16", 4000, 1024), "sm_90");
  EXPECT_TRUE(made.kernels[0].waits);
  EXPECT_TRUE(made.kernels[0].read_early.empty());
  const std::string& object = made.objects[0];
  EXPECT_LT(object.find("griddepcontrol.launch_dependents"), object.find("griddepcontrol.wait"));
  EXPECT_LT(object.find("griddepcontrol.wait"), object.find("ld.global"));
  const Made older = Compile(Softmax("bf16", 4000, 1024), "sm_80");
  EXPECT_FALSE(older.kernels[0].waits);
  EXPECT_THAT(older.objects[0], Not(HasSubstr("griddepcontrol")));
  const Made product = Compile(ProductAndMore("bf16", 520, 768, 136, false, false));
  EXPECT_TRUE(product.kernels[0].waits);
  const size_t wait = product.objects[0].find("griddepcontrol.wait");
  EXPECT_LT(wait, product.objects[0].find("ld.global"));
  EXPECT_LT(wait, product.objects[0].find("cp.async.bulk.tensor"));
}

TEST(PtxTest, OnlyKnownArchitectures) {
  for (const char* arch : {"", "sm_70", "sm_90a -x", "znver4"}) {
    DeviceInfo device;
    device.arch = arch;
    const auto target = (*FindTarget("ptx"))->make(device);
    EXPECT_TRUE(absl::IsInvalidArgument(target.status())) << arch;
  }
}

TEST(PtxTest, AssemblesForEveryArchitectureWithoutSpills) {
  for (const std::string arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"}) {
    for (const std::string& text :
         {Softmax("bf16", 4000, 8192), Softmax("f64", 40, 100), ColumnSums("bf16", "2048", 40),
          TransposedSum("bf16", 70, 100), TransposedSum("u8", 70, 100)}) {
      for (const std::string& object : Compile(text, arch).objects) Assemble(object, arch);
      if (IsSkipped()) return;
    }
  }
  // Newer devices run sm_90's.
  for (const std::string& object : Compile(Softmax("f32", 4000, 1024), "sm_90").objects) {
    Assemble(object, "sm_100");
  }
}

}  // namespace
}  // namespace kiln::codegen
