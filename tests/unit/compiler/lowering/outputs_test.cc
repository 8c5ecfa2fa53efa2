#include "compiler/ir/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/compiler/lowering/graph_maker.h"

namespace kiln::lowering {
namespace {

using testing::ElementsAre;

const ir::BufferWindow& Window(const ir::Module& module, size_t i) {
  return std::get<ir::BufferWindow>(module.outputs.at(i).value);
}

TEST(Outputs, AComputedBufferBecomesTheOutput) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  g.Output(g.Node("aten.neg.default", {Value(x)}, {2, 3}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(module.operations.size(), 1u);
  EXPECT_EQ(module.buffers[Window(module, 0).buffer].kind, ir::BufferKind::kOutput);
}

TEST(Outputs, AnInputIsItself) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  g.Output(x);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(module.buffers[Window(module, 0).buffer].kind, ir::BufferKind::kInput);
  EXPECT_TRUE(module.operations.empty());
  EXPECT_THAT(RunOne(g), ElementsAre(1, 2));
}

TEST(Outputs, ACopyOfAnInputIsACopy) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  g.Output(g.Node("aten.clone.default", {Value(x)}, {2}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(module.buffers[Window(module, 0).buffer].kind, ir::BufferKind::kOutput);
  EXPECT_THAT(RunOne(g), ElementsAre(1, 2));
}

TEST(Outputs, TheSameValueTwiceAndAViewOfItAreOneBuffer) {
  GraphMaker g;
  const int x = g.Input({4}, {1, 2, 3, 4});
  const int y = g.Node("aten.neg.default", {Value(x)}, {4});
  const int half = g.Node("aten.slice.Tensor", {Value(y), Int(0), Int(2), Int(4)}, {2});
  g.Output(y);
  g.Output(y);
  g.Output(half);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(Window(module, 0).buffer, Window(module, 1).buffer);
  EXPECT_EQ(Window(module, 0).buffer, Window(module, 2).buffer);
  EXPECT_TRUE(Window(module, 2).offset.is_const(2));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[2].floats, ElementsAre(-3, -4));
}

TEST(Outputs, ACopyIsMemoryOfItsOwn) {
  GraphMaker g;
  const int x = g.Input({4}, {1, 2, 3, 4});
  const int y = g.Node("aten.neg.default", {Value(x)}, {4});
  g.Output(y);
  g.Output(g.Node("aten.clone.default", {Value(y)}, {4}));
  g.Output(g.Node("aten.alias.default", {Value(y)}, {4}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_NE(Window(module, 0).buffer, Window(module, 1).buffer);
  EXPECT_EQ(Window(module, 0).buffer, Window(module, 2).buffer);
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(-1, -2, -3, -4));
}

TEST(Outputs, ACopyThatComesFirstLeavesTheMemoryToThoseThatShareIt) {
  GraphMaker g;
  const int x = g.Input({4}, {1, 2, 3, 4});
  const int y = g.Node("aten.neg.default", {Value(x)}, {4});
  g.Output(g.Node("aten.clone.default", {Value(y)}, {4}));
  g.Output(g.Node("aten.slice.Tensor", {Value(y), Int(0), Int(2), Int(4)}, {2}));
  g.Output(y);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(Window(module, 1).buffer, Window(module, 2).buffer);
  EXPECT_NE(Window(module, 0).buffer, Window(module, 1).buffer);
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(-3, -4));
}

TEST(Outputs, PartsOfOneCopyShareIt) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  const int y = g.Node("aten.repeat.default", {Value(x), IntList({2})}, {4});
  g.Output(g.Node("aten.slice.Tensor", {Value(y), Int(0), Int(0), Int(1)}, {1}));
  g.Output(g.Node("aten.slice.Tensor", {Value(y), Int(0), Int(1), Int(4)}, {3}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(Window(module, 0).buffer, Window(module, 1).buffer);
  EXPECT_TRUE(Window(module, 1).offset.is_const(1));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[1].floats, ElementsAre(2, 1, 2));
}

TEST(Outputs, ViewsOfAnInputAreWindowsOnIt) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  g.Output(g.Node("aten.select.int", {Value(x), Int(0), Int(1)}, {3}));
  g.Output(g.Node("aten.alias.default", {Value(x)}, {2, 3}));
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(module.buffers[Window(module, 0).buffer].kind, ir::BufferKind::kInput);
  EXPECT_EQ(Window(module, 0).buffer, Window(module, 1).buffer);
  EXPECT_TRUE(Window(module, 0).offset.is_const(3));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(4, 5, 6));
}

TEST(Outputs, CopiesKeepGapsAndExpandedDimensions) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  const int select = g.Node("aten.select.int", {Value(x), Int(1), Int(1)}, {2});
  const int expand = g.Node("aten.expand.default", {Value(x), IntList({4, 2, 3})}, {4, 2, 3});
  const int column = g.Node("aten.clone.default", {Value(select)}, {2});
  const int wide = g.Node("aten.clone.default", {Value(expand)}, {4, 2, 3});
  g.proto().mutable_nodes(2)->mutable_results(0)->mutable_tensor()->mutable_strides(0)->set_value(
      3);
  v1::TensorType& type = *g.proto().mutable_nodes(3)->mutable_results(0)->mutable_tensor();
  type.mutable_strides(0)->set_value(0);
  g.Output(column);
  g.Output(wide);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_TRUE(Window(module, 0).strides[0].is_const(3));
  EXPECT_TRUE(Window(module, 1).strides[0].is_const(0));
  EXPECT_TRUE(module.buffers[Window(module, 1).buffer].sizes[0].is_const(1));
  const auto outputs = g.Run();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT((*outputs)[0].floats, ElementsAre(2, 5));
  EXPECT_EQ((*outputs)[1].floats.size(), 24u);
}

TEST(Outputs, HaveTheRecordedStrides) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  const int y = g.Node("aten.neg.default", {Value(x)}, {2, 3});
  v1::TensorType& type = *g.proto().mutable_nodes(0)->mutable_results(0)->mutable_tensor();
  type.mutable_strides(0)->set_value(1);
  type.mutable_strides(1)->set_value(2);
  g.Output(y);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_TRUE(Window(module, 0).strides[0].is_const(1));
  EXPECT_TRUE(Window(module, 0).strides[1].is_const(2));
  EXPECT_THAT(RunOne(g), ElementsAre(-1, -2, -3, -4, -5, -6));
}

TEST(Outputs, ATransposedResultIsAWindowWithoutACopy) {
  GraphMaker g;
  const int x = g.Input({2, 3}, {1, 2, 3, 4, 5, 6});
  const int y = g.Node("aten.neg.default", {Value(x)}, {2, 3});
  const int t = g.Node("aten.permute.default", {Value(y), IntList({1, 0})}, {3, 2});
  v1::TensorType& type = *g.proto().mutable_nodes(1)->mutable_results(0)->mutable_tensor();
  type.mutable_strides(0)->set_value(1);
  type.mutable_strides(1)->set_value(3);
  g.Output(t);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  EXPECT_EQ(module.operations.size(), 1u);
  EXPECT_THAT(RunOne(g), ElementsAre(-1, -4, -2, -5, -3, -6));
}

TEST(Mutations, StoreIntoInputsAfterEverythingElse) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  const int y = g.Node("aten.add.Tensor", {Value(x), Int(1)}, {2});
  const int z = g.Node("aten.neg.default", {Value(x)}, {2});
  g.Output(z);
  v1::Mutation& mutation = *g.proto().add_mutations();
  mutation.set_input(x);
  mutation.set_value(y);
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  ASSERT_TRUE(ir::Verify(module).ok()) << ir::Verify(module);
  const auto& last = std::get<ir::Kernel>(module.operations.back());
  EXPECT_EQ(module.buffers[last.phases.back().body.back().buffer].kind, ir::BufferKind::kInput);
  EXPECT_THAT(RunOne(g), ElementsAre(-1, -2));
}

TEST(Mutations, SwappedInputsAreReadBeforeEitherIsWritten) {
  GraphMaker g;
  const int x = g.Input({2}, {1, 2});
  const int y = g.Input({2}, {3, 4});
  for (const auto& [input, value] : {std::pair{x, y}, std::pair{y, x}}) {
    v1::Mutation& mutation = *g.proto().add_mutations();
    mutation.set_input(input);
    mutation.set_value(value);
  }
  ir::Module module;
  ASSERT_TRUE(g.Lower(module).ok());
  ASSERT_TRUE(ir::Verify(module).ok()) << ir::Verify(module);
  // Two copies, then two stores that read the copies.
  ASSERT_EQ(module.operations.size(), 4u);
  for (const size_t i : {2, 3}) {
    const auto& kernel = std::get<ir::Kernel>(module.operations[i]);
    EXPECT_EQ(module.buffers[kernel.phases[0].body[0].buffer].kind, ir::BufferKind::kTemp);
  }
}

}  // namespace
}  // namespace kiln::lowering
