// Target ptx: the gradients of attention as one kernel, between the rows' dots and the queries'
// gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/targets.h"
#include "tests/unit/compiler/codegen/ptx_made.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::codegen {
namespace {

using absl::StrCat;
using lowering::GraphMaker;
using lowering::Sizes;
using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  v1::DType type = v1::DTYPE_BFLOAT16;
  int64_t batches = 2, heads = 4, key_heads = 4, queries = 70, keys = 130, width = 64;
  bool is_causal = false;
  bool is_turned = true;  // rows of all heads one after another, as transformers' models have them
  bool has_mask = false;
  double dropout = 0;
  bool is_dynamic = false;  // how many batches there are is known at run time only
};

// cuDNN's operator for the gradients, as training's graphs have it; all three are outputs.
GraphMaker Graph(Case c) {
  GraphMaker g;
  if (c.is_dynamic) c.batches = g.Symbol(c.batches);
  struct Operand {
    int input;
    int64_t rows, heads;
  };
  const auto input = [&](int64_t rows, int64_t heads) {
    const Sizes sizes = c.is_turned ? Sizes{c.batches, rows, heads, c.width}
                                    : Sizes{c.batches, heads, rows, c.width};
    return Operand{g.Input(sizes, {}, c.type), rows, heads};
  };
  const Operand operands[] = {input(c.queries, c.heads), input(c.queries, c.heads),
                              input(c.keys, c.key_heads), input(c.keys, c.key_heads),
                              input(c.queries, c.heads)};
  const int log_sums = g.Input({c.batches, c.heads, c.queries, 1}, {});
  const int state = g.Input({}, {}, v1::DTYPE_INT64);
  const int mask = c.has_mask ? g.Input({c.batches, c.heads, c.queries, c.keys}, {}, c.type) : -1;
  std::vector<v1::Argument> args;
  for (const Operand& of : operands) {
    args.push_back(lowering::Value(
        c.is_turned ? g.Node("aten.permute.default",
                             {lowering::Value(of.input), lowering::IntList({0, 2, 1, 3})},
                             {c.batches, of.heads, of.rows, c.width}, c.type)
                    : of.input));
  }
  args.push_back(lowering::Value(log_sums));
  for (int i = 0; i < 2; ++i) args.push_back(lowering::Value(state));
  args.push_back(c.has_mask ? lowering::Value(mask) : lowering::NoArg());
  for (int i = 0; i < 2; ++i) args.push_back(lowering::NoArg());
  args.push_back(lowering::Int(c.queries));
  args.push_back(lowering::Int(c.keys));
  args.push_back(lowering::Float(c.dropout));
  args.push_back(lowering::Bool(c.is_causal));
  const Sizes of_queries = {c.batches, c.heads, c.queries, c.width};
  const Sizes of_keys = {c.batches, c.key_heads, c.keys, c.width};
  const int first = g.Node("aten._scaled_dot_product_cudnn_attention_backward.default",
                           std::move(args), of_queries, c.type);
  for (int i = 0; i < 2; ++i) g.MoreResult(of_keys, c.type);
  g.Keyword("scale", lowering::Float(0.125));
  for (int i = 0; i < 3; ++i) g.Output(first + i);
  return g;
}

// As torch has it: gradients are laid out as what they are of.
GraphMaker Turned(GraphMaker g) {
  for (v1::Node& node : *g.proto().mutable_nodes()) {
    for (v1::ValueType& result : *node.mutable_results()) {
      v1::TensorType& type = *result.mutable_tensor();
      const int64_t heads = type.sizes(1).value(), rows = type.sizes(2).value(),
                    width = type.sizes(3).value();
      const int64_t strides[] = {rows * heads * width, width, heads * width, 1};
      for (int i = 0; i < 4; ++i) type.mutable_strides(i)->set_value(strides[i]);
    }
  }
  return g;
}

ir::Module Lowered(const Case& c, const Target& target = *MakePtx()) {
  const bool is_turned = c.is_turned && !c.is_dynamic;
  return LowerFor(target, (is_turned ? Turned(Graph(c)) : Graph(c)).proto());
}

bool IsOneKernel(const Case& c, const Target& target = *MakePtx()) {
  const ir::Module module = Lowered(c, target);
  return module.operations.size() == 3 && std::holds_alternative<ir::Repeat>(module.operations[1]);
}

void CheckTree(const Case& c) {
  SCOPED_TRACE(StrCat(c.type, " ", c.heads, "/", c.key_heads, " ", c.queries, " x ", c.keys, " x ",
                      c.width, c.is_causal ? " causal" : "", c.is_turned ? " turned" : ""));
  ir::Module module = Lowered(c);
  ASSERT_EQ(module.operations.size(), 3u);
  ASSERT_TRUE(std::holds_alternative<ir::Repeat>(module.operations[1]));
  std::vector<int64_t> symbols;
  if (c.is_dynamic) symbols.push_back(c.batches);
  CheckTrees(module, symbols, 1e-4);
}

TEST(PtxGradientsTest, ATreeComputesWhatItsKernelsDo) {
  for (const v1::DType type : {v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT16}) {
    for (const bool is_causal : {false, true}) {
      CheckTree({.type = type, .heads = 2, .key_heads = 2, .is_causal = is_causal});
      CheckTree({.type = type,
                 .batches = 1,
                 .key_heads = 2,
                 .queries = 130,
                 .keys = 90,
                 .is_causal = is_causal,
                 .is_turned = false});
    }
  }
  CheckTree({.batches = 1, .heads = 3, .key_heads = 1, .queries = 64, .keys = 65, .width = 128});
  CheckTree(
      {.batches = 2, .heads = 1, .key_heads = 1, .queries = 70, .keys = 64, .is_dynamic = true});
}

void CheckCode(const Case& c) {
  SCOPED_TRACE(StrCat(c.type, " ", c.width, c.is_causal ? " causal" : ""));
  const Made made = CompileOne(Lowered(c), 1);
  ASSERT_EQ(made.objects.size(), 1u);
  EXPECT_THAT(made.schedules, HasSubstr("zeroed @"));
  EXPECT_THAT(made.schedules, HasSubstr(StrCat("attend_gradients<", c.width, ", ")));
  EXPECT_THAT(made.objects[0], HasSubstr(StrCat("m64n", c.width, "k16.f32.")));
  EXPECT_THAT(made.objects[0],
              HasSubstr("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group"));
  EXPECT_THAT(made.objects[0], HasSubstr("griddepcontrol.wait"));
  EXPECT_THAT(made.objects[0], Not(HasSubstr(".local")));
  const EmittedKernel& kernel = made.kernels[0];
  EXPECT_TRUE(kernel.waits);
  ASSERT_EQ(kernel.tensor_maps.size(), 7u);
  EXPECT_EQ(kernel.tensor_maps[4].box, (std::vector{32, 64, 1, 1}));
  ASSERT_EQ(kernel.zeroed.size(), 1u);
  EXPECT_EQ(kernel.zeroed[0], kernel.tensor_maps[4].buffer);
  EXPECT_EQ(made.module.buffers[kernel.zeroed[0]].dtype, DType::kF32);
  EXPECT_LE(kernel.grid.shared_bytes.value(), 227 << 10);
  Assemble(made.objects[0], "sm_90a");
}

TEST(PtxGradientsTest, AllShapesAreOnTensorCoresWithoutSpills) {
  for (const int64_t width : {64, 128}) {
    for (const v1::DType type : {v1::DTYPE_BFLOAT16, v1::DTYPE_FLOAT16}) {
      for (const bool is_causal : {false, true}) {
        Case c = {.type = type, .queries = 1000, .keys = 1000, .width = width};
        c.is_causal = is_causal;
        c.key_heads = is_causal ? 4 : 2;
        CheckCode(c);
      }
    }
  }
  CheckCode({.batches = 3, .is_causal = true, .is_dynamic = true});
}

// Their tiles add to the queries' gradient in the order in which they come.
TEST(PtxGradientsTest, ADeterministicGraphsAreALibrarys) {
  EXPECT_TRUE(IsOneKernel({}));
  DeviceInfo device;
  device.arch = "sm_90a";
  device.deterministic = true;
  const auto target = (*FindTarget("ptx"))->make(device);
  ASSERT_TRUE(target.ok()) << target.status();
  const ir::Module module = Lowered({}, **target);
  ASSERT_EQ(module.operations.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ir::Library>(module.operations[0]));
}

TEST(PtxGradientsTest, WhatTheKernelDoesNotTakeIsALibrarys) {
  EXPECT_FALSE(IsOneKernel({}, *MakePtx("sm_90")));
  EXPECT_FALSE(IsOneKernel({.type = v1::DTYPE_FLOAT32}));
  EXPECT_FALSE(IsOneKernel({.width = 96}));
  EXPECT_FALSE(IsOneKernel({.has_mask = true}));
  EXPECT_FALSE(IsOneKernel({.dropout = 0.1}));
  EXPECT_FALSE(IsOneKernel({.queries = 20})) << "few queries";
  EXPECT_FALSE(IsOneKernel({.keys = 20})) << "few keys";
}

}  // namespace
}  // namespace kiln::codegen
