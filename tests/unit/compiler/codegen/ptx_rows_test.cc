// Target ptx: products of few rows, as in decoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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
