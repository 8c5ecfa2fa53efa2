// Kernels with ordered phases (scatters and scans) and random numbers, against the reference
// interpreter.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/verify.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/native_run.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;

// @y starts as @x and takes the rows of @v at places @i; `store` is "store" or "store.sum", ...
std::string RowsModule(const std::string& store, const std::string& type, int columns) {
  return StrCat("module {\n buffer @x ", type, "[7,", columns, "] strides[", columns,
                ",1] input(0)\n buffer @i i64[40] strides[1] input(1)\n buffer @v ", type, "[40,",
                columns, "] strides[", columns, ",1] input(2)\n buffer @y ", type, "[7,", columns,
                "] strides[", columns, ",1] output\n kernel @k (d0: ", columns,
                ") {\n phase (r0: 7) {\n %0 = load ", type, " @x[r0, d0]\n store ", type,
                " @y[r0, d0], %0\n }\n phase (r0: 40) {\n %1 = load i64 @i[r0]\n %2 = load ", type,
                " @v[r0, d0]\n ", store, " ", type,
                " @y[[%1], d0], %2\n }\n }\n output @y sizes[7,", columns, "] strides[", columns,
                ",1] offset 0\n}\n");
}

TEST(ScatterTest, RowsOfEveryKindAndType) {
  for (const std::string type : {"f32", "i64", "u8"}) {
    for (const std::string store : {"store", "store.sum", "store.prod", "store.max", "store.min"}) {
      CheckModule(RowsModule(store, type, 37), {.int_max = 7, .nan_every = 23});
    }
  }
  for (const std::string type : {"f64", "i16"}) {
    CheckModule(RowsModule("store.sum", type, 37), {.int_max = 7});
  }
}

// Each term is rounded, which the interpreter does not do.
TEST(ScatterTest, RowsOfHalves) {
  for (const std::string type : {"bf16", "f16"}) {
    CheckModule(RowsModule("store", type, 37), {.int_max = 7});
    CheckModule(RowsModule("store.sum", type, 37), {.int_max = 7, .tolerance = 0.1});
  }
}

TEST(ScatterTest, RowsWithManyAndWithOneColumn) {
  for (const int columns : {1, 3, 300}) {
    CheckModule(RowsModule("store.sum", "f32", columns), {.int_max = 7});
    CheckModule(RowsModule("store", "f32", columns), {.int_max = 7});
  }
}

// Each element has an index of its own. `outer` and `inner` name the two dimensions' loops.
std::string ElementsModule(const std::string& store, bool along_rows) {
  const std::string loops = along_rows ? "(d0: 12)" : "(d0: 45)";
  const std::string inner = along_rows ? "(r0: 45)" : "(r0: 12)";
  const std::string at = along_rows ? "d0, r0" : "r0, d0";
  const std::string to = along_rows ? "d0, [%1]" : "[%1], d0";
  return StrCat("module {\n buffer @x f32[12,45] strides[45,1] input(0)\n",
                " buffer @i i64[12,45] strides[45,1] input(1)\n",
                " buffer @v f32[12,45] strides[45,1] input(2)\n",
                " buffer @y f32[12,45] strides[45,1] output\n kernel @k ", loops, " {\n phase ",
                inner, " {\n %0 = load f32 @x[", at, "]\n store f32 @y[", at, "], %0\n }\n phase ",
                inner, " {\n %1 = load i64 @i[", at, "]\n %2 = load f32 @v[", at, "]\n ", store,
                " f32 @y[", to, "], %2\n }\n }\n",
                " output @y sizes[12,45] strides[45,1] offset 0\n}\n");
}

TEST(ScatterTest, ElementsWithIndicesOfTheirOwn) {
  for (const std::string store : {"store", "store.sum", "store.max"}) {
    CheckModule(ElementsModule(store, true), {.int_max = 12});
    CheckModule(ElementsModule(store, false), {.int_max = 12});
  }
}

TEST(ScatterTest, NoLoopIsFree) {
  for (const std::string store : {"store", "store.sum"}) {
    CheckModule(StrCat("module {\n symbol s0 [0, 500] hint 100\n",
                       " buffer @i i64[s0] strides[1] input(0)\n",
                       " buffer @v f32[s0] strides[1] input(1)\n",
                       " buffer @y f32[9,9] strides[9,1] output\n kernel @k () {\n",
                       " phase (r0: 9, r1: 9) {\n %0 = const f32 0\n",
                       " store f32 @y[r0, r1], %0\n }\n phase (r0: s0) {\n",
                       " %1 = load i64 @i[r0]\n %2 = load f32 @v[r0]\n %3 = const i64 8\n",
                       " %4 = sub i64 %3, %1\n ", store, " f32 @y[[%1], [%4]], %2\n }\n }\n",
                       " output @y sizes[9,9] strides[9,1] offset 0\n}\n"),
                {.symbols = {203}, .int_max = 9});
  }
}

// A whole row of scatters into one element: the sum has one order, whatever the threads.
TEST(ScatterTest, OneElement) {
  CheckModule(StrCat("module {\n buffer @i i64[90] strides[1] input(0)\n",
                     " buffer @v f32[90,5] strides[5,1] input(1)\n",
                     " buffer @y f32[1,5] strides[5,1] output\n kernel @k (d0: 5) {\n",
                     " phase () {\n %0 = const f32 0\n store f32 @y[0, d0], %0\n }\n",
                     " phase (r0: 90) {\n %1 = load i64 @i[r0]\n %2 = load f32 @v[r0, d0]\n",
                     " store f32 @y[0, d0] using [%1 < 1], %2\n }\n }\n",
                     " output @y sizes[1,5] strides[5,1] offset 0\n}\n"),
              {.int_max = 1});
}

TEST(ScatterTest, AnIndexOutsideIsAnErrorAndStoresNothing) {
  absl::StatusOr<ir::Module> module = ir::Parse(RowsModule("store.sum", "f32", 37));
  ASSERT_TRUE(module.ok()) << module.status();
  HostTensor x{DType::kF32, {7, 37}, {37, 1}, std::string(7 * 37 * 4, '\0')};
  HostTensor v{DType::kF32, {40, 37}, {37, 1}, std::string(40 * 37 * 4, '\0')};
  for (const int64_t bad : {int64_t{7}, int64_t{-1}, INT64_MAX}) {
    std::vector<int64_t> places(40, 3);
    places[21] = bad;
    HostTensor i{
        DType::kI64, {40}, {1}, std::string(reinterpret_cast<char*>(places.data()), 40 * 8)};
    for (const std::string& isa : RunnableIsas()) {
      auto native = NativeModule::Build(*module, TestDevice(isa));
      ASSERT_TRUE(native.ok()) << native.status();
      EXPECT_EQ((*native)->Run({x, i, v}, {}, 2).status().code(), absl::StatusCode::kOutOfRange);
    }
  }
}

// Running values along dimension 1 (rows) or 0 of 6 x 77, all kinds at once where `ints` is false.
std::string ScanModule(const std::string& type, const std::vector<std::string>& kinds,
                       bool along_rows) {
  std::string text = StrCat("module {\n buffer @x ", type, "[6,77] strides[77,1] input(0)\n");
  std::string stores;
  for (size_t k = 0; k < kinds.size(); ++k) {
    absl::StrAppend(&text, " buffer @y", k, " ", type, "[6,77] strides[77,1] output\n");
    absl::StrAppend(&stores, " %", k + 1, " = scan.", kinds[k], " ", type, " %0\n store ", type,
                    " @y", k, along_rows ? "[d0, r0], %" : "[r0, d0], %", k + 1, "\n");
  }
  absl::StrAppend(&text, " kernel @k ", along_rows ? "(d0: 6)" : "(d0: 77)", " {\n phase ",
                  along_rows ? "(r0: 77)" : "(r0: 6)", " {\n %0 = load ", type,
                  along_rows ? " @x[d0, r0]\n" : " @x[r0, d0]\n", stores, " }\n }\n");
  for (size_t k = 0; k < kinds.size(); ++k) {
    absl::StrAppend(&text, " output @y", k, " sizes[6,77] strides[77,1] offset 0\n");
  }
  return text + "}\n";
}

TEST(ScanTest, EveryKindAndTypeAlongRowsAndColumns) {
  for (const bool along_rows : {true, false}) {
    for (const std::string type : {"f32", "f64"}) {
      CheckModule(ScanModule(type, {"sum", "prod", "max", "min", "logaddexp"}, along_rows),
                  {.nan_every = 50, .tolerance = 1e-4});
    }
    for (const std::string type : {"i64", "u8"}) {
      CheckModule(ScanModule(type, {"sum", "prod", "max", "min"}, along_rows), {.int_max = 5});
    }
  }
}

TEST(ScanTest, LogAddExpOfInfinities) {
  CheckModule(StrCat(
      "module {\n buffer @x f32[9] strides[1] input(0)\n buffer @a f32[9] strides[1] output\n",
      " buffer @b f32[9] strides[1] output\n kernel @k () {\n phase (r0: 9) {\n",
      " %0 = load f32 @x[r0]\n %1 = const f32 -inf\n %2 = index i64 r0\n %3 = const i64 4\n",
      " %4 = lt bool %2, %3\n %5 = select f32 %4, %1, %0\n %6 = scan.logaddexp f32 %5\n",
      " store f32 @a[r0], %6\n %7 = const f32 inf\n %8 = select f32 %4, %0, %7\n",
      " %9 = scan.logaddexp f32 %8\n store f32 @b[r0], %9\n }\n }\n",
      " output @a sizes[9] strides[1] offset 0\n output @b sizes[9] strides[1] offset 0\n", "}\n"));
}

// Values of a scan are used in its own iteration, by another scan among others, beside a reduction.
TEST(ScanTest, PlacesOfTheGreatestSoFar) {
  CheckModule(
      StrCat("module {\n buffer @x f32[5,200] strides[200,1] input(0)\n",
             " buffer @p i64[5,200] strides[200,1] output\n buffer @s f32[5] strides[1] output\n",
             " kernel @k (d0: 5) {\n phase (r0: 200) {\n %0 = load f32 @x[d0, r0]\n",
             " %1 = scan.max f32 %0\n %2 = eq bool %0, %1\n %3 = index i64 r0\n",
             " %4 = const i64 -1\n %5 = select i64 %2, %3, %4\n %6 = scan.max i64 %5\n",
             " store i64 @p[d0, r0], %6\n %7 = reduce.sum f32 %1\n }\n phase () {\n",
             " store f32 @s[d0], %7\n }\n }\n", " output @p sizes[5,200] strides[200,1] offset 0\n",
             " output @s sizes[5] strides[1] offset 0\n}\n"),
      {.integral_floats = true});
}

TEST(ScanTest, OverTwoLoopsInRowMajorOrder) {
  CheckModule(StrCat("module {\n symbol s0 [2, 50] hint 10\n",
                     " buffer @x i64[s0,9] strides[9,1] input(0)\n",
                     " buffer @y i64[s0,9] strides[9,1] output\n kernel @k () {\n",
                     " phase (r0: s0, r1: 9) {\n %0 = load i64 @x[r0, 8 - r1]\n",
                     " %1 = scan.sum i64 %0\n store i64 @y[r0, r1], %1\n }\n }\n",
                     " output @y sizes[s0,9] strides[9,1] offset 0\n}\n"),
              {.symbols = {13}, .int_max = 10});
}

TEST(PhiloxTest, NativeCodeGivesTheBitsOfTheInterpreter) {
  CheckModule(StrCat("module {\n buffer @s i64[3] strides[1] input(0)\n",
                     " buffer @y i64[3,101] strides[101,1] output\n kernel @k (d0: 3, d1: 101) {\n",
                     " phase () {\n %0 = load i64 @s[d0]\n %1 = const i64 4294967301\n",
                     " %2 = index i64 d1 + 8589934590\n %3 = philox i64 %0, %1, %2\n",
                     " store i64 @y[d0, d1], %3\n }\n }\n",
                     " output @y sizes[3,101] strides[101,1] offset 0\n}\n"),
              {.int_min = INT64_MIN, .int_max = INT64_MAX});
}

// Of each row the elements below 2^40, whose digits all count, and what stands beside them.
std::string SortModule(absl::string_view key) {
  return StrCat(
      "module {\n symbol s0 [2, 5000] hint 1000\n", " buffer @x i64[3,s0] strides[s0,1] input(0)\n",
      " buffer @y i64[3,s0] strides[s0,1] output\n", " buffer @z i64[3,s0] strides[s0,1] output\n",
      " kernel @k sorting (d0: 3) {\n phase (r0: s0) {\n %0 = load i64 @x[d0, r0]\n", key,
      " %3 = sort i64 %2\n store i64 @y[d0, r0], %3\n",
      " %4 = add i64 %3, %0\n store i64 @z[d0, r0], %4\n }\n }\n",
      " output @y sizes[3,s0] strides[s0,1] offset 0\n",
      " output @z sizes[3,s0] strides[s0,1] offset 0\n}\n");
}

TEST(SortTest, Rows) {
  const std::string keys[] = {
      " %1 = const i64 0\n %2 = add i64 %0, %1\n",
      " %1 = const i64 1099511627791\n %2 = mul i64 %0, %1\n",  // large
      " %1 = const i64 32\n %5 = shl i64 %0, %1\n %6 = index i64 r0\n %2 = or i64 %5, %6\n",
      " %1 = const i64 -1\n %2 = mul i64 %0, %1\n",
      " %1 = index i64 r0\n %5 = const i64 0\n %6 = mul i64 %0, %5\n %2 = add i64 %1, %6\n",
  };
  for (const std::string& key : keys) {
    for (const int64_t length : {3, 2500}) {
      CheckModule(SortModule(key), {.symbols = {length}, .int_max = 1000000});
    }
  }
}

TEST(SortTest, TheFirstOfRows) {
  for (const char* first : {"3", "70"}) {
    const std::string text = StrCat(
        "module {\n symbol s0 [2, 5000] hint 1000\n",
        " buffer @x i64[3,s0] strides[s0,1] input(0)\n buffer @t i64[3,s0] strides[s0,1] temp\n",
        " buffer @y i64[3] strides[1] output\n",
        " kernel @k sorting (d0: 3) {\n phase (r0: s0) {\n %0 = load i64 @x[d0, r0]\n",
        " %1 = const i64 32\n %5 = shl i64 %0, %1\n %6 = index i64 r0\n %2 = or i64 %5, %6\n",
        " %3 = sort i64 %2 first ", first, "\n store i64 @t[d0, r0], %3\n }\n }\n",
        " kernel @sum (d0: 3) {\n phase (r0: ", first,
        ") {\n %0 = load i64 @t[d0, min(r0, s0 - 1)]\n",
        " %1 = index i64 r0\n %2 = const i64 31\n %3 = mul i64 %1, %2\n %4 = xor i64 %0, %3\n",
        " %5 = reduce.sum i64 %4\n }\n phase () {\n store i64 @y[d0], %5\n }\n }\n",
        " output @y sizes[3] strides[1] offset 0\n}\n");
    for (const int64_t length : {2, 4000}) {
      CheckModule(text, {.symbols = {length}, .int_max = 100000});
    }
  }
}

TEST(SortTest, TheVerifierTakesOneLoopOfI64) {
  for (const auto& [from, to] : {std::pair("sorting ", ""), std::pair("sort i64", "sort i32"),
                                 std::pair("(r0: s0)", "(r0: s0, r1: 2)")}) {
    std::string text = SortModule(" %1 = const i64 3\n %2 = mul i64 %0, %1\n");
    text.replace(text.find(from), std::string(from).size(), to);
    absl::StatusOr<ir::Module> module = ir::Parse(text);
    ASSERT_TRUE(module.ok()) << module.status();
    EXPECT_EQ(ir::Verify(*module).code(), absl::StatusCode::kInternal) << text;
  }
}

}  // namespace
}  // namespace kiln::codegen
