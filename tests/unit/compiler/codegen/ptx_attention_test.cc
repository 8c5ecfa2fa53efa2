// Target ptx: attention of many queries as one kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/unit/compiler/codegen/ptx_made.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using lowering::GraphMaker;
using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  v1::DType type = v1::DTYPE_BFLOAT16;
  int64_t batches = 2, heads = 4, key_heads = 4, queries = 70, keys = 90, width = 64;
  bool is_causal = false, has_log_sums = false;
  v1::DType mask = v1::DTYPE_UNSPECIFIED;  // none
  bool is_mask_of_keys = false;            // one for all heads and rows
  double scale = 0.125;
  bool is_dynamic = false;  // how many batches there are is known at run time only
  bool has_states =
      false;  // cuDNN's operator as training has it: states of random numbers are used
};

// One attention of operands with rows of all heads one after another, as transformers' models
// have them.
GraphMaker Graph(Case c) {
  GraphMaker g;
  if (c.is_dynamic) c.batches = g.Symbol(c.batches);
  const auto input = [&](const lowering::Sizes& sizes, v1::DType type) {
    return g.Input(sizes, {}, type);
  };
  const auto operand = [&](int64_t rows, int64_t heads) {
    return input({c.batches, rows, heads, c.width}, c.type);
  };
  const int q = operand(c.queries, c.heads), k = operand(c.keys, c.key_heads),
            v = operand(c.keys, c.key_heads);
  v1::Argument mask = lowering::NoArg();
  if (c.mask != v1::DTYPE_UNSPECIFIED) {
    mask = lowering::Value(input(c.is_mask_of_keys
                                     ? lowering::Sizes{c.batches, 1, 1, c.keys}
                                     : lowering::Sizes{c.batches, c.heads, c.queries, c.keys},
                                 c.mask));
  }
  const auto by_heads = [&](int of, int64_t rows, int64_t heads) {
    return lowering::Value(g.Node("aten.permute.default",
                                  {lowering::Value(of), lowering::IntList({0, 2, 1, 3})},
                                  {c.batches, heads, rows, c.width}, c.type));
  };
  const auto qs = by_heads(q, c.queries, c.heads), ks = by_heads(k, c.keys, c.key_heads),
             vs = by_heads(v, c.keys, c.key_heads);
  const lowering::Sizes sizes = {c.batches, c.heads, c.queries, c.width};
  const v1::Argument causal = lowering::Bool(c.is_causal), dropout = lowering::Float(0);
  if (c.has_states) {
    const int out =
        g.Node("aten._scaled_dot_product_cudnn_attention.default",
               {qs, ks, vs, mask, lowering::Bool(true), dropout, causal}, sizes, c.type);
    g.Keyword("scale", lowering::Float(c.scale));
    g.Output(out);
    g.Output(g.MoreResult({c.batches, c.heads, c.queries, 1}));
    for (int i = 0; i < 2; ++i) g.Output(g.MoreResult({}, v1::DTYPE_INT64));
    return g;
  }
  const int out = g.Node("aten._scaled_dot_product_flash_attention_for_cpu.default",
                         {qs, ks, vs, dropout, causal}, sizes, c.type);
  g.MoreResult({c.batches, c.heads, c.queries});
  if (c.mask != v1::DTYPE_UNSPECIFIED) g.Keyword("attn_mask", mask);
  g.Keyword("scale", lowering::Float(c.scale));
  g.Output(out);
  if (c.has_log_sums) g.Output(out + 1);
  return g;
}

ir::Module Lowered(GraphMaker g) {
  return LowerFor(*MakePtx(), g.proto());
}

bool IsOneKernel(const Case& c) {
  const ir::Module module = Lowered(Graph(c));
  return module.operations.size() == 1 &&
         std::holds_alternative<ir::Repeat>(module.operations.back());
}

// Its tree computes what its kernels do.
void CheckTree(const Case& c) {
  ir::Module module = Lowered(Graph(c));
  ASSERT_EQ(module.operations.size(), c.has_states ? 2u : 1u);
  ASSERT_TRUE(std::holds_alternative<ir::Repeat>(module.operations[0]));
  std::vector<int64_t> symbols;
  if (c.is_dynamic) symbols.push_back(c.batches);
  ASSERT_EQ(module.outputs.size(), c.has_states ? 4u : c.has_log_sums ? 2u : 1u);
  CheckTrees(module, symbols, 1e-4);
}

Made CompileAttention(const Case& c) {
  return CompileOne(Lowered(Graph(c)), 0);
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
    if (width != 64 && width != 128) continue;
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
  EXPECT_TRUE(IsOneKernel(of(4, 16, 2048, 128)));
  EXPECT_TRUE(IsOneKernel(of(4, 16, 8192, 64)));
  EXPECT_FALSE(IsOneKernel(of(4, 16, 2048, 64))) << "tiles that leave many multiprocessors idle";
  EXPECT_FALSE(IsOneKernel(of(8, 32, 512, 128))) << "tiles that have little to do";
  EXPECT_TRUE(IsOneKernel(of(8, 12, 512, 64)));
  EXPECT_TRUE(IsOneKernel(of(1, 32, 128, 128)));
  Case causal = of(8, 32, 512, 128);
  causal.is_causal = true;
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
