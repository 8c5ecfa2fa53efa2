// Requests that no server should accept: each gets its own error, and the server goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>

#include "absl/time/clock.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;

class RefusalTest : public ServerTest {
 protected:
  void SetUp() override { ASSERT_TRUE(StartServer()); }
  // The server is as good as before.
  void TearDown() override {
    if (HasFatalFailure()) return;
    Answer answer = Compile(stub(), QuickRequest(64));
    EXPECT_TRUE(answer.ok()) << Text(answer.status);
    EXPECT_EQ(Metrics().Sum("kiln_worker_exits_total"), 0) << "a worker died of bad input";
  }

  void ExpectBadGraph(const v1::CompileRequest& request, const std::string& node) {
    Answer answer = Compile(stub(), request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << Text(answer.status);
    EXPECT_EQ(answer.detail.reason(), v1::ErrorDetail::REASON_BAD_GRAPH);
    EXPECT_EQ(answer.detail.node(), node);
    EXPECT_FALSE(answer.detail.expected().empty());
    EXPECT_THAT(answer.status.error_message(), HasSubstr(node));
  }
};

TEST_F(RefusalTest, ADanglingValueNamesItsNode) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()->mutable_nodes(1)->mutable_args(0)->set_value(77);
  ExpectBadGraph(request, "square");
}

TEST_F(RefusalTest, AValueOfALaterNodeIsNoValueYet) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()->mutable_nodes(0)->mutable_args(0)->set_value(3);  // the last node's
  ExpectBadGraph(request, "relu");
}

TEST_F(RefusalTest, ANegativeSizeNamesItsNode) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()
      ->mutable_nodes(2)
      ->mutable_results(0)
      ->mutable_tensor()
      ->mutable_sizes(0)
      ->set_value(-64);
  ExpectBadGraph(request, "sum");
}

TEST_F(RefusalTest, AnOverflowingSizeNamesItsInput) {
  GraphBuilder builder;
  uint32_t x = builder.Input({1});
  builder.Output(builder.Node("relu", "aten.relu.default", {x}, {1}));
  v1::CompileRequest request = builder.Request();
  v1::TensorType& type =
      *request.mutable_graph()->mutable_inputs(0)->mutable_type()->mutable_tensor();
  type.clear_sizes();
  type.clear_strides();
  for (int i = 0; i < 3; ++i) {
    type.add_sizes()->set_value(INT64_MAX);
    type.add_strides()->set_value(1);
  }
  ExpectBadGraph(request, "input 0 (input_0)");
}

TEST_F(RefusalTest, AMissingDtypeNamesItsNode) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()->mutable_nodes(0)->mutable_results(0)->mutable_tensor()->clear_dtype();
  ExpectBadGraph(request, "relu");
}

TEST_F(RefusalTest, AnUnknownOperatorWithoutALibraryIsUnimplementedAndNamed) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()->mutable_nodes(0)->set_op("aten.no_such_operator.default");
  Answer answer = Compile(stub(), request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << Text(answer.status);
  EXPECT_EQ(answer.detail.reason(), v1::ErrorDetail::REASON_UNSUPPORTED);
  EXPECT_EQ(answer.detail.node(), "relu");
  EXPECT_EQ(answer.detail.op(), "aten.no_such_operator.default");
}

TEST_F(RefusalTest, AnUnknownOperatorWithALibraryBecomesALibraryStep) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()->mutable_nodes(0)->set_op("aten.no_such_operator.default");
  request.mutable_device()->add_libraries("torch");
  Answer answer = Compile(stub(), request);
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.artifact.header().library_steps(), 1);
  EXPECT_EQ(Metrics().Sum("kiln_library_steps_total", {{"op", "aten.no_such_operator.default"}}),
            1);
}

TEST_F(RefusalTest, AnEmptyRequestIsInvalid) {
  Answer answer = Compile(stub(), v1::CompileRequest());
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Text(answer.status);
}

TEST_F(RefusalTest, ATargetThatIsNotBuiltInIsUnimplemented) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_device()->set_target(static_cast<v1::Target>(99));
  Answer answer = Compile(stub(), request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << Text(answer.status);
}

TEST_F(RefusalTest, AMessageOf100MegabytesIsRefused) {
  v1::CompileRequest request = QuickRequest(64);
  request.mutable_graph()->add_constants()->set_data(std::string(100 << 20, 'x'));
  absl::Time start = absl::Now();
  Answer answer = Compile(stub(), request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << Text(answer.status);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_F(RefusalTest, AMillionNodesAreRefusedQuickly) {
  v1::CompileRequest request = QuickRequest(64);
  v1::Graph& graph = *request.mutable_graph();
  v1::Node node = graph.nodes(0);
  node.clear_name();
  graph.mutable_nodes()->Reserve(1'000'000);
  while (graph.nodes_size() < 1'000'000) *graph.add_nodes() = node;
  absl::Time start = absl::Now();
  Answer answer = Compile(stub(), request);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Text(answer.status);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("1000000 nodes"));
}

TEST_F(RefusalTest, DeeplyNestedArgumentsAreRefused) {
  v1::CompileRequest request = QuickRequest(64);
  v1::Argument* argument = request.mutable_graph()->mutable_nodes(0)->mutable_args(0);
  for (int i = 0; i < 5000; ++i) argument = argument->mutable_list()->add_items();
  argument->set_value(0);
  Answer answer = Compile(stub(), request);
  EXPECT_FALSE(answer.ok());
}

}  // namespace
}  // namespace kiln::integration
