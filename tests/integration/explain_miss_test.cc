// Why a lookup missed, asked over the wire and by the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using ExplainMissTest = ServerTest;

v1::ExplainMissResponse Explain(v1::CompileService::Stub& stub, const v1::CompileRequest& request) {
  v1::ExplainMissRequest question;
  *question.mutable_graph() = request.graph();
  *question.mutable_device() = request.device();
  *question.mutable_options() = request.options();
  grpc::ClientContext context;
  v1::ExplainMissResponse answer;
  const grpc::Status status = stub.ExplainMiss(&context, question, &answer);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return answer;
}

std::vector<std::string> Components(const v1::ExplainMissResponse& answer) {
  std::vector<std::string> names;
  for (const v1::KeyDifference& difference : answer.differences()) {
    names.push_back(difference.component());
  }
  return names;
}

TEST_F(ExplainMissTest, NamesTheComponentThatDiffersFromTheNearest) {
  ASSERT_TRUE(StartServer());
  const v1::CompileRequest request = QuickRequest(1000);
  v1::ExplainMissResponse nothing = Explain(stub(), request);
  EXPECT_FALSE(nothing.hit());
  EXPECT_EQ(nothing.compared(), 0);
  EXPECT_EQ(nothing.nearest_key(), "");

  ASSERT_TRUE(Compile(stub(), request).ok());
  ASSERT_TRUE(Compile(stub(), QuickRequest(2000)).ok());
  v1::ExplainMissResponse hit = Explain(stub(), request);
  EXPECT_TRUE(hit.hit());
  EXPECT_THAT(Components(hit), IsEmpty());

  v1::CompileRequest other = request;
  other.mutable_device()->set_processors(request.device().processors() + 1);
  EXPECT_TRUE(Explain(stub(), other).hit()) << "the client's threads do not count";
  other.mutable_device()->set_l2_bytes(2 << 20);
  other.mutable_options()->set_fast_math(true);
  v1::ExplainMissResponse miss = Explain(stub(), other);
  EXPECT_FALSE(miss.hit());
  EXPECT_EQ(miss.compared(), 2);
  EXPECT_EQ(miss.nearest_key(), hit.key());
  EXPECT_THAT(Components(miss), ElementsAre("device.l2_bytes", "options.fast_math"));
  EXPECT_EQ(miss.differences(1).asked(), "true");
  EXPECT_EQ(miss.differences(1).nearest(), "false");
}

TEST_F(ExplainMissTest, AnArtifactThatWasRemovedIsItsOwnNearest) {
  ASSERT_TRUE(StartServer());
  const v1::CompileRequest request = QuickRequest(1000);
  ASSERT_TRUE(Compile(stub(), request).ok());
  v1::ClearCacheRequest clear;
  clear.set_kind("artifact");
  grpc::ClientContext context;
  v1::ClearCacheResponse cleared;
  ASSERT_TRUE(stub().ClearCache(&context, clear, &cleared).ok());
  v1::ExplainMissResponse miss = Explain(stub(), request);
  EXPECT_FALSE(miss.hit());
  EXPECT_EQ(miss.nearest_key(), miss.key());
  EXPECT_THAT(Components(miss), IsEmpty());
}

}  // namespace
}  // namespace kiln::integration
