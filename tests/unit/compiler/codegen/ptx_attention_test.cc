// Target ptx: attention of many queries as one kernel.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/compiler/codegen/attention_graphs.h"
#include "tests/unit/compiler/codegen/ptx_made.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using ::testing::HasSubstr;
using ::testing::Not;

using Case = AttentionCase;

ir::Module Lowered(const Case& c) {
  return LowerFor(*MakePtx(), AttentionGraph(c).proto());
}

bool IsOneKernel(const Case& c) {
  const ir::Module module = Lowered(c);
  return module.operations.size() == 1 &&
         std::holds_alternative<ir::Repeat>(module.operations.back());
}

// Its tree computes what its kernels do.
void CheckTree(const Case& c) {
  ir::Module module = Lowered(c);
  ASSERT_EQ(module.operations.size(), c.has_states ? 2u : 1u);
  ASSERT_TRUE(std::holds_alternative<ir::Repeat>(module.operations[0]));
  std::vector<int64_t> symbols;
  if (c.is_dynamic) symbols.push_back(c.batches);
  ASSERT_EQ(module.outputs.size(), c.has_states ? 4u : c.has_log_sums ? 2u : 1u);
  CheckTrees(module, symbols, 1e-4);
}

Made CompileAttention(const Case& c) {
  return CompileOne(LowerFor(*MakePtx(), AttentionGraph(c).proto(), /*by_libraries=*/false), 0);
}

TEST(PtxAttentionTest, ATreeComputesWhatItsKernelsDo) {
  for (const v1::DType type : {v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT16}) {
    Case c = {.type = type, .has_log_sums = true};
    CheckTree(c);
    c.is_causal = true;
    CheckTree(c);
    c.is_causal = false;
    for (const v1::DType mask : {v1::DTYPE_BOOL, v1::DTYPE_FLOAT32, type}) {
      c.mask = mask;
      c.is_mask_of_keys = !c.is_mask_of_keys;
      CheckTree(c);
    }
  }
  CheckTree({.batches = 1, .heads = 6, .key_heads = 2, .queries = 130, .keys = 33, .width = 96});
  CheckTree({.heads = 3,
             .key_heads = 1,
             .queries = 65,
             .keys = 2,
             .mask = v1::DTYPE_BOOL,
             .is_mask_of_keys = true});
  CheckTree({.heads = 1, .key_heads = 1, .queries = 64, .width = 256, .is_causal = true});
  CheckTree({.is_causal = true, .has_states = true});
}

// What there is of each shape: full and ragged, of bfloat16 and in part of float16.
void CheckCode(const Case& c) {
  SCOPED_TRACE(StrCat(c.type, " ", c.width, c.is_causal ? " causal " : " ", c.mask, " ", c.keys));
  const Made made = CompileAttention(c);
  ASSERT_EQ(made.objects.size(), 1u);
  EXPECT_THAT(made.schedules, HasSubstr(StrCat("attend_tile<", c.width, ", ")));
  EXPECT_THAT(made.objects[0], HasSubstr(StrCat("m64n", c.width, "k16.f32.")));
  EXPECT_THAT(made.objects[0], HasSubstr("cp.async.bulk.tensor.4d"));
  EXPECT_THAT(made.objects[0], HasSubstr("griddepcontrol.wait"));
  EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
  const EmittedKernel& kernel = made.kernels[0];
  EXPECT_TRUE(kernel.waits);
  ASSERT_EQ(kernel.tensor_maps.size(), 4u);
  EXPECT_EQ(kernel.tensor_maps[3].box, (std::vector{64, 16, 1, 1}));
  EXPECT_LE(kernel.grid.shared_bytes.value(), 227 << 10);
  Assemble(made.objects[0], "sm_90a");
}

TEST(PtxAttentionTest, SizesMayBeKnownAtRunTimeOnly) {
  const Case c = {
      .batches = 3, .queries = 130, .is_causal = true, .has_log_sums = true, .is_dynamic = true};
  CheckTree(c);
  CheckCode(c);
}

TEST(PtxAttentionTest, AllShapesAreOnTensorCoresWithoutSpills) {
  for (const int64_t width : {64, 96, 128, 256}) {
    Case c = {.batches = 4, .queries = 1000, .keys = 1000, .width = width, .has_log_sums = true};
    CheckCode(c);
    c.is_causal = true;
    CheckCode(c);
    c.type = v1::DTYPE_FLOAT16;
    c.queries = c.keys = 8192;
    CheckCode(c);
    c.is_causal = false;
    CheckCode(c);
    c.mask = v1::DTYPE_BOOL;
    for (const int64_t keys : {900, 901}) {
      c.keys = keys;
      CheckCode(c);
    }
    c.is_mask_of_keys = true;
    for (const v1::DType mask : {v1::DTYPE_FLOAT32, v1::DTYPE_FLOAT16}) {
      c.mask = mask;
      for (const int64_t keys : {900, 901}) {
        c.keys = keys;
        CheckCode(c);
      }
    }
  }
}

// Counts how often blocks take each tile, and how many steps each block has.
constexpr absl::string_view kDealing = R"(
template <bool kIsCausal>
struct Shape {
  static constexpr int kRows = 128, kKeys = 128;
  static constexpr bool kCausal = kIsCausal;
};
template <class S>
static int Deal(const KAttentionSizes& sizes, int blocks, int* taken, int* steps) {
  const int tiles = KAttentionTiles<S>(sizes);
  for (int block = 0; block < blocks; ++block) {
    KNumbersOfBlock<S> numbers(sizes, blocks, block);
    for (int number = numbers.Next(); number < tiles; number = numbers.Next()) {
      taken[number] += 1;
      steps[block] += KAttentionTileAt<S>(number, sizes).steps;
    }
  }
  return tiles;
}
extern "C" __attribute__((visibility("default"))) int deal(int is_causal, const int* n, int blocks,
                                                           int* taken, int* steps) {
  const KAttentionSizes sizes = {n[0], n[1], n[2], n[3], n[4], n[5]};
  return is_causal ? Deal<Shape<true>>(sizes, blocks, taken, steps)
                   : Deal<Shape<false>>(sizes, blocks, taken, steps);
}
)";

TEST(PtxAttentionTest, BlocksTakeEachTileOnceAndHaveAsManySteps) {
  const auto library = LibraryForThisMachine(kDealing);
  ASSERT_TRUE(library.ok()) << library.status();
  const auto deal =
      reinterpret_cast<int (*)(int, const int*, int, int*, int*)>(dlsym(*library, "deal"));
  ASSERT_NE(deal, nullptr);
  // Batches, heads, queries, keys, heads that share keys, heads that come together.
  const std::vector<std::vector<int>> cases = {
      {4, 16, 8192, 8192, 1, 8}, {4, 16, 2048, 2048, 1, 32},  {2, 16, 1024, 1024, 1, 64},
      {8, 32, 512, 512, 4, 256}, {1, 32, 4096, 4096, 4, 64},  {1, 1, 1, 1, 1, 100000},
      {3, 5, 300, 70, 1, 4},     {2, 8, 256, 8192, 1, 8},     {1, 3, 20000, 20000, 3, 3},
      {5, 7, 1000, 1000, 7, 14}, {1, 11, 16896, 16896, 1, 2},
  };
  for (const bool is_causal : {false, true}) {
    for (std::vector<int> sizes : cases) {
      for (const int most_blocks : {132, 114, 7, 1}) {
        const int row_tiles = (sizes[2] + 127) / 128;
        sizes[5] = std::max(sizes[5], (2 * most_blocks + row_tiles - 1) / row_tiles);
        SCOPED_TRACE(StrCat(is_causal, " ", absl::StrJoin(sizes, ","), " ", most_blocks));
        const int tiles = sizes[0] * sizes[1] * row_tiles;
        const int blocks = std::min(tiles, most_blocks);
        std::vector<int> taken(tiles + 1), steps(blocks);
        ASSERT_EQ(deal(is_causal, sizes.data(), blocks, taken.data(), steps.data()), tiles);
        EXPECT_EQ(std::count(taken.begin(), taken.end() - 1, 1), tiles);
        EXPECT_EQ(taken.back(), 0);
        if (!is_causal) continue;
        // No block has much more than the mean and a tile.
        const int longest = *std::max_element(steps.begin(), steps.end());
        const int all = std::accumulate(steps.begin(), steps.end(), 0);
        EXPECT_LE(longest, all / blocks + (std::min(sizes[2], sizes[3]) + 127) / 128 * 3 / 2);
      }
    }
  }
  dlclose(*library);
}

// As measured.
TEST(PtxAttentionTest, ALibraryHasWhatItIsFasterAt) {
  EXPECT_TRUE(IsOneKernel({}));
  EXPECT_FALSE(IsOneKernel({.queries = 20})) << "few queries";
  const auto of = [](int64_t batches, int64_t heads, int64_t length, int64_t width) {
    return Case{.batches = batches,
                .heads = heads,
                .key_heads = heads,
                .queries = length,
                .keys = length,
                .width = width};
  };
  EXPECT_FALSE(IsOneKernel(of(4, 16, 8192, 128))) << "its own tiles take as long";
  EXPECT_FALSE(IsOneKernel(of(4, 16, 2048, 128))) << "as these do";
  EXPECT_FALSE(IsOneKernel(of(2, 8, 2048, 256)));
  EXPECT_TRUE(IsOneKernel(of(4, 16, 8192, 64)));
  EXPECT_FALSE(IsOneKernel(of(4, 16, 2048, 64))) << "tiles that leave many multiprocessors idle";
  EXPECT_FALSE(IsOneKernel(of(8, 32, 512, 128))) << "tiles that have little to do";
  EXPECT_TRUE(IsOneKernel(of(8, 12, 512, 64)));
  EXPECT_TRUE(IsOneKernel(of(1, 32, 128, 128)));
  Case causal = of(8, 32, 512, 128);
  causal.is_causal = true;
  EXPECT_TRUE(IsOneKernel(causal));
  causal.width = 256;
  EXPECT_TRUE(IsOneKernel(causal));
}

// A library makes one of 16 bits of a mask of bools.
TEST(PtxAttentionTest, MasksOfHeads) {
  EXPECT_TRUE(IsOneKernel({.queries = 2048, .keys = 2048, .mask = v1::DTYPE_BOOL}));
  for (const v1::DType mask : {v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT32}) {
    Case c = {.keys = 2048, .mask = mask};
    EXPECT_FALSE(IsOneKernel(c));
    c.is_mask_of_keys = true;
    EXPECT_TRUE(IsOneKernel(c));
    EXPECT_TRUE(IsOneKernel({.mask = mask}));
    EXPECT_FALSE(IsOneKernel({.keys = 91, .mask = mask})) << "rows of an odd number of elements";
    EXPECT_TRUE(IsOneKernel({.keys = 2048, .width = 128, .mask = mask}));
  }
}

TEST(PtxAttentionTest, WhatTensorCoresDoNotTakeIsALibrarys) {
  EXPECT_FALSE(IsOneKernel({.type = v1::DTYPE_FLOAT32}));
  EXPECT_FALSE(IsOneKernel({.is_causal = true, .mask = v1::DTYPE_BOOL})) << "torch refuses both";
  EXPECT_FALSE(IsOneKernel({.width = 80}));
  EXPECT_FALSE(IsOneKernel({.scale = 0})) << "greatest scores are found before they are scaled";
  EXPECT_FALSE(IsOneKernel({.scale = -1}));
}

}  // namespace
}  // namespace kiln::codegen
