// Target ptx: products of few rows, as in decoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::HasSubstr;
using ::testing::Not;

// The same with weights of int8.
std::string WithBytes(const std::string& type, int m, int n, int k) {
  return absl::StrReplaceAll(
      ProductAndMore(type, m, n, k, false, false),
      {{StrCat("buffer @b ", type), "buffer @b i8"}, {StrCat("%2 = load ", type), "%2 = load i8"}});
}

// The same with weights of 4 bits, packed by `inner` tiles, in groups of `group`.
std::string WithPacked(const std::string& type, int m, int n, int k, int inner, int group) {
  const std::string unpacked = absl::StrReplaceAll(
      R"(%20 = load i32 @words[floordiv(d1, 8), floordiv(r0, DEEP), 4*mod(d1, 8) + mod(floordiv(r0, 2), 4), floordiv(mod(r0, DEEP), 32)]
      %21 = index i64 16*mod(r0, 2) + 4*mod(floordiv(r0, 8), 4)
      %22 = cast i32 %21
      %23 = shr i32 %20, %22
      %24 = const i32 15
      %25 = and i32 %23, %24
      %26 = cast f32 %25
      %27 = const f32 8
      %28 = sub f32 %26, %27
      %29 = load TYPE @scales[floordiv(r0, GROUP), d1, 0]
      %30 = cast f32 %29
      %31 = mul f32 %28, %30
      %32 = load TYPE @scales[floordiv(r0, GROUP), d1, 1]
      %33 = cast f32 %32
      %34 = add f32 %31, %33
      %2 = cast TYPE %34)",
      {{"DEEP", StrCat(16 * inner)}, {"GROUP", StrCat(group)}, {"TYPE", type}});
  const int words = inner / 2;
  const std::string buffers =
      StrCat("buffer @words i32[", n / 8, ",", k / (16 * inner), ",32,", words, "] strides[", k,
             ",", 32 * words, ",", words, ",1] input(1)\n  buffer @scales ", type, "[", k / group,
             ",", n, ",2] strides[", 2 * n, ",2,1] input(4)");
  return absl::StrReplaceAll(
      ProductAndMore(type, m, n, k, false, false),
      {{StrCat("buffer @b ", type, "[", n, ",", k, "] strides[", k, ",1] input(1)"), buffers},
       {StrCat("%2 = load ", type, " @b[d1, r0]"), unpacked}});
}

TEST(PtxRowsTest, ProductsAreOnTensorCoresWithoutSpills) {
  for (const int m : {1, 3, 8, 11, 16, 24, 32, 64}) {
    for (const auto& [n, k] : {std::pair(4096, 4096),
                               {14336, 4096},
                               {4096, 14336},
                               {1000, 1040},
                               {768, 3072},
                               {28672, 4096}}) {
      for (const bool has_bytes : {false, true}) {
        SCOPED_TRACE(StrCat(m, " x ", n, " x ", k, has_bytes ? " of int8" : ""));
        const Made made = Compile(has_bytes ? WithBytes("bf16", m, n, k)
                                            : ProductAndMore("bf16", m, n, k, false, false));
        EXPECT_THAT(made.schedules, HasSubstr(StrCat("multiply_rows<", (m + 7) / 8 * 8, ", ")));
        ASSERT_EQ(made.objects.size(), 1);
        EXPECT_THAT(made.objects[0], HasSubstr("mma.sync.aligned.m16n8k16"));
        EXPECT_THAT(made.objects[0], HasSubstr("cp.async.bulk.tensor.2d"));
        EXPECT_THAT(made.objects[0], HasSubstr("griddepcontrol.wait"));
        EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
        EXPECT_TRUE(made.kernels[0].waits);
        EXPECT_EQ(made.kernels[0].read_early, std::vector{made.kernels[0].tensor_maps[1].buffer});
        EXPECT_EQ(made.kernels[0].tensor_maps[1].box[0], has_bytes ? 128 : 64);
        EXPECT_EQ(made.kernels[0].tensor_maps[0].box[1], (m + 7) / 8 * 8);
        EXPECT_LE(made.kernels[0].grid.shared_bytes.value(), 227 << 10);
        EXPECT_LE(made.kernels[0].grid.threads[0].value(), 1024);
        Assemble(made.objects[0], "sm_90a");
      }
    }
  }
}

TEST(PtxRowsTest, PackedWeightsAreUnpackedInRegistersWithoutSpills) {
  for (const int m : {1, 8, 11, 16, 32, 64}) {
    for (const auto& [n, k] :
         {std::pair(4096, 4096), {11008, 4096}, {4096, 14336}, {1000, 1280}, {8, 256}}) {
      for (const auto& [inner, group] : {std::pair(2, 32), {4, 256}, {8, 64}, {8, 128}}) {
        SCOPED_TRACE(StrCat(m, " x ", n, " x ", k, ", ", inner, " tiles, groups of ", group));
        const Made made = Compile(WithPacked("bf16", m, n, k, inner, group));
        EXPECT_THAT(made.schedules, HasSubstr(StrCat("multiply_rows<", (m + 7) / 8 * 8, ", ")));
        EXPECT_THAT(made.schedules, HasSubstr(StrCat(", ", inner, ", ", group, ">(")));
        ASSERT_EQ(made.objects.size(), 1);
        EXPECT_THAT(made.objects[0], HasSubstr("ldmatrix.sync.aligned.m8n8.x4"));
        EXPECT_THAT(made.objects[0], HasSubstr("fma.rn.bf16x2"));
        EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
        const EmittedKernel& kernel = made.kernels[0];
        ASSERT_EQ(kernel.tensor_maps.size(), 3);
        EXPECT_EQ(kernel.tensor_maps[0].box[1], (m + 7) / 8 * 8);
        EXPECT_EQ(kernel.tensor_maps[1].box[0], 32);
        EXPECT_EQ(kernel.tensor_maps[2].box[0], 64);
        ASSERT_EQ(kernel.read_early.size(), 2);
        EXPECT_EQ(made.module.buffers[kernel.read_early[0]].name, "words");
        EXPECT_EQ(made.module.buffers[kernel.read_early[1]].name, "scales");
        EXPECT_LE(kernel.grid.shared_bytes.value(), 227 << 10);
        EXPECT_LE(kernel.grid.threads[0].value(), 1024);
        Assemble(made.objects[0], "sm_90a");
      }
    }
  }
}

TEST(PtxRowsTest, EveryScheduleOfPackedWeightsAssembles) {
  for (const int rank : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (const int m : {1, 24, 40, 48, 56, 64}) {
      SCOPED_TRACE(StrCat("rank ", rank, ", ", m, " rows"));
      const Made made = Compile(WithPacked("bf16", m, 4096, 4096, 8, 32), "sm_90a", rank);
      ASSERT_EQ(made.objects.size(), 1);
      Assemble(made.objects[0], "sm_90a");
    }
  }
}

// More rows, another order of the words, scales of another type.
TEST(PtxRowsTest, OtherPackedWeightsAreNone) {
  const std::string text = WithPacked("bf16", 8, 1024, 512, 4, 64);
  EXPECT_THAT(Compile(text, "sm_90").schedules, Not(HasSubstr("multiply_rows")));
  EXPECT_THAT(Compile(WithPacked("bf16", 65, 1024, 512, 4, 64)).schedules,
              Not(HasSubstr("multiply_rows")));
  for (const auto& [from, to] : {std::pair("16*mod(r0, 2)", "4*mod(r0, 2)"),
                                 {"const i32 15", "const i32 7"},
                                 {"const f32 8", "const f32 7"},
                                 {"floordiv(r0, 64), d1, 0", "floordiv(r0, 64), d1, 1"},
                                 {"mod(floordiv(r0, 2), 4),", "mod(r0, 4),"},
                                 {"sub f32 %26", "add f32 %26"}}) {
    SCOPED_TRACE(from);
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(changed, text);
    EXPECT_THAT(Compile(changed).schedules, Not(HasSubstr("multiply_rows")));
  }
}

TEST(PtxRowsTest, OfFloat16) {
  const Made packed = Compile(WithPacked("f16", 5, 1024, 512, 8, 128));
  ASSERT_EQ(packed.objects.size(), 1);
  EXPECT_THAT(packed.objects[0], HasSubstr("fma.rn.f16x2"));
  Assemble(packed.objects[0], "sm_90a");

  for (const bool has_bytes : {false, true}) {
    const Made made = Compile(has_bytes ? WithBytes("f16", 5, 1024, 512)
                                        : ProductAndMore("f16", 5, 1024, 512, false, false));
    ASSERT_EQ(made.objects.size(), 1);
    EXPECT_THAT(made.objects[0], HasSubstr("m16n8k16.row.col.f32.f16.f16.f32"));
    EXPECT_EQ(made.objects[0].find("sub.rn.f16x2") != std::string::npos, has_bytes);
    Assemble(made.objects[0], "sm_90a");
  }
}

bool IsLeft(const std::string& text, bool goes_on) {
  ir::Module module = *ir::Parse(text);
  return MakePtx()->LeavesToLibraries(module, std::get<ir::Kernel>(module.operations.back()),
                                      goes_on);
}

// As measured: of many bytes a library reads as fast, above all with many rows.
TEST(PtxRowsTest, ALibraryHasWhatItIsFasterAt) {
  const auto product = [](int m, int n) {
    return ProductAndMore("bf16", m, n, 4096, false, false);
  };
  EXPECT_FALSE(IsLeft(product(1, 4096), /*goes_on=*/false));
  EXPECT_FALSE(IsLeft(product(64, 4096), /*goes_on=*/false));
  EXPECT_FALSE(IsLeft(product(8, 14336), /*goes_on=*/false));
  EXPECT_TRUE(IsLeft(product(64, 14336), /*goes_on=*/false));
  EXPECT_FALSE(IsLeft(product(32, 14336), /*goes_on=*/true)) << "a kernel less";
  EXPECT_TRUE(IsLeft(product(65, 4096), /*goes_on=*/true));
}

// Of weights that a kernel before widens, which fusion takes into the product.
TEST(PtxRowsTest, NoLibraryReadsWidenedWeights) {
  const std::string widens =
      "  buffer @narrow i8[14336,4096] strides[4096,1] input(4)\n"
      "  kernel @widen (d0: 14336, d1: 4096) {\n    phase () {\n"
      "      %0 = load i8 @narrow[d0, d1]\n      %1 = cast bf16 %0\n"
      "      store bf16 @b[d0, d1], %1\n    }\n  }\n  kernel @mm";
  EXPECT_FALSE(IsLeft(absl::StrReplaceAll(ProductAndMore("bf16", 64, 14336, 4096, false, false),
                                          {{"@b bf16[14336,4096] strides[4096,1] input(1)",
                                            "@b bf16[14336,4096] strides[4096,1] temp"},
                                           {"  kernel @mm", widens}}),
                      /*goes_on=*/false));
}

// Weights that are contiguous along columns, of int8 with more rows, and of lines that the tensor
// memory accelerator does not take.
TEST(PtxRowsTest, OthersAreNone) {
  for (const std::string& text :
       {ProductAndMore("bf16", 8, 1024, 512, false, true), WithBytes("bf16", 65, 1024, 512),
        WithBytes("bf16", 8, 1024, 520), ProductAndMore("bf16", 8, 1024, 516, false, false),
        ProductAndMore("bf16", 8, 1020, 512, false, false)}) {
    EXPECT_THAT(Compile(text).schedules, Not(HasSubstr("multiply_rows")));
  }
  EXPECT_THAT(Compile(ProductAndMore("bf16", 8, 1024, 512, false, false), "sm_90").schedules,
              Not(HasSubstr("multiply_rows")));
}

}  // namespace
}  // namespace kiln::codegen
