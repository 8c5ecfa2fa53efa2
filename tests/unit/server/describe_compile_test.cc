#include "server/web/describe_compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/page.pb.h"

namespace kiln::server {
namespace {

using ::testing::ElementsAre;

v1::Node& AddNode(v1::Graph& graph, const std::string& name) {
  v1::Node& node = *graph.add_nodes();
  node.set_name(name);
  node.set_op("aten.add.Tensor");
  v1::TensorType& type = *node.add_results()->mutable_tensor();
  type.set_dtype(v1::DTYPE_FLOAT32);
  type.add_sizes()->set_value(4);
  type.add_sizes()->mutable_expr();
  return node;
}

TEST(DescribeCompileTest, OperatorsNameWhatTheyRead) {
  v1::Graph graph;
  graph.add_inputs()->set_name("x");
  graph.add_constants();
  AddNode(graph, "first").add_args()->set_value(0);
  v1::Node& second = AddNode(graph, "second");
  v1::Argument::List& list = *second.add_args()->mutable_list();
  list.add_items()->set_value(2);
  list.add_items()->set_value(1);  // a constant: no operator
  second.add_kwargs()->mutable_value()->set_value(2);
  graph.add_outputs()->set_value(3);
  v1::CompileDetail detail;
  DescribeCompile(graph, v1::Artifact(), detail);
  ASSERT_EQ(detail.nodes_size(), 2);
  EXPECT_THAT(detail.nodes(0).graph_inputs(), ElementsAre("x"));
  EXPECT_THAT(detail.nodes(1).inputs(), ElementsAre(0));
  EXPECT_EQ(detail.nodes(0).type(), "float32[4, s]");
  EXPECT_THAT(detail.outputs(), ElementsAre("second"));
}

TEST(DescribeCompileTest, ReferencesToNothingAreLeftOut) {
  v1::Graph graph;
  v1::Node& node = AddNode(graph, "n");
  node.add_args()->set_value(4'000'000'000);
  node.add_args()->set_value(0);  // itself
  v1::Argument* deep = node.add_args();
  for (int i = 0; i < 60; ++i) deep = deep->mutable_list()->add_items();
  deep->set_value(0);
  graph.add_outputs()->set_value(77);
  v1::CompileDetail detail;
  DescribeCompile(graph, v1::Artifact(), detail);
  EXPECT_EQ(detail.nodes(0).inputs_size(), 0);
  EXPECT_EQ(detail.outputs_size(), 0);
}

TEST(DescribeCompileTest, StepsKernelsAndTextsAreListedWithoutTheTexts) {
  v1::Artifact artifact;
  artifact.mutable_header()->set_target(v1::TARGET_CPP);
  artifact.set_binary("elf");
  artifact.add_binaries()->set_data("text");
  v1::KernelInfo& info = *artifact.mutable_header()->add_kernels();
  info.set_compile_ns(2'500'000);
  info.set_key("abc");
  artifact.mutable_program()->add_steps()->mutable_launch()->set_kernel("k1");
  artifact.mutable_program()->add_steps()->mutable_library()->set_op("aten.topk.default");
  artifact.mutable_program()->add_steps()->mutable_copy();
  artifact.mutable_program()->set_prepare_steps(1);
  v1::Debug::KernelSource& kernel = *artifact.mutable_debug()->add_kernels();
  kernel.set_symbol("k1");
  kernel.set_source("12345");
  kernel.add_ops("add");
  kernel.add_plans()->set_strategy("AFE");
  artifact.mutable_debug()->add_ir()->set_text("module {}");
  v1::FusionDecision& decision = *artifact.mutable_debug()->add_decisions();
  decision.set_reason("each element is used once");
  v1::CompileDetail detail;
  DescribeCompile(v1::Graph(), artifact, detail);
  EXPECT_EQ(detail.target(), "cpp");
  EXPECT_EQ(detail.binary_bytes(), 7) << "of every kind";
  ASSERT_EQ(detail.steps_size(), 3);
  EXPECT_EQ(detail.steps(0).kernel(), "k1");
  EXPECT_TRUE(detail.steps(0).prepares());
  EXPECT_FALSE(detail.steps(1).prepares());
  EXPECT_EQ(detail.steps(1).kind(), "library");
  EXPECT_EQ(detail.steps(2).kind(), "copy");
  EXPECT_EQ(detail.kernels(0).source_bytes(), 5);
  ASSERT_EQ(detail.kernels(0).plans_size(), 1);
  EXPECT_EQ(detail.kernels(0).plans(0).strategy(), "AFE");
  EXPECT_DOUBLE_EQ(detail.kernels(0).compile_ms(), 2.5);
  EXPECT_EQ(detail.ir(0).size_bytes(), 9);
  EXPECT_EQ(detail.decisions(0).reason(), "each element is used once");
}

}  // namespace
}  // namespace kiln::server
