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

TEST(PtxRowsTest, OfFloat16) {
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
