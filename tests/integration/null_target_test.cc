// Target null through the whole service: what a new target gets for its folder and its line in the
// list of targets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"
#include "proto/base/key.h"
#include "tests/integration/graphs.h"
#include "tests/integration/http_get.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::CompileRequest ForNull(v1::CompileRequest request) {
  request.mutable_device()->set_target(v1::TARGET_NULL);
  request.mutable_device()->set_arch("loop-ir");
  return request;
}

std::string BuildOf(const v1::ServerInfo& info, v1::Target target) {
  for (const v1::TargetBuild& build : info.target_builds()) {
    if (build.target() == target) return build.compiler_build();
  }
  return "";
}

class NullTargetTest : public ServerTest {
 protected:
  // `kiln` with `arguments`, against the server.
  Ended Kiln(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), KILN_CLI);
    return RunToEnd(arguments, {absl::StrCat("KILN_SERVER=", server().grpc_address())});
  }

  std::string SaveGraph() {
    const std::string path = files_.path() + "/graph.kgraph";
    std::ofstream(path, std::ios::binary) << QuickRequest(64).graph().SerializeAsString();
    return path;
  }

  TempDir files_;
};

TEST_F(NullTargetTest, CompilesToTheTextOfItsKernelsAndIsCachedUnderItsOwnKey) {
  ASSERT_TRUE(StartServer());
  const v1::CompileRequest cpp = QuickRequest(64);
  const v1::CompileRequest null = ForNull(cpp);
  const v1::ServerInfo info = GetServerInfo(stub());
  EXPECT_THAT(info.targets(), Contains(v1::TARGET_NULL));
  EXPECT_EQ(BuildOf(info, v1::TARGET_CPP), info.compiler_build()) << "for older clients";
  EXPECT_NE(BuildOf(info, v1::TARGET_NULL), info.compiler_build());

  Answer of_cpp = Compile(stub(), cpp);
  ASSERT_TRUE(of_cpp.ok()) << Text(of_cpp.status);
  EXPECT_EQ(of_cpp.artifact.header().key(),
            ArtifactKey(cpp.graph(), cpp.device(), cpp.options(), info.compiler_build()).ToHex());
  EXPECT_TRUE(of_cpp.artifact.binaries().empty());
  Answer answer = Compile(stub(), null);
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.source, "compiled");
  const v1::ArtifactHeader& header = answer.artifact.header();
  EXPECT_EQ(header.target(), v1::TARGET_NULL);
  EXPECT_EQ(header.compiler_build(), BuildOf(info, v1::TARGET_NULL));
  EXPECT_EQ(
      header.key(),
      ArtifactKey(null.graph(), null.device(), null.options(), header.compiler_build()).ToHex());
  EXPECT_EQ(answer.artifact.binary(), "");
  ASSERT_EQ(answer.artifact.binaries_size(), 1);
  EXPECT_EQ(answer.artifact.binaries(0).kind(), v1::BINARY_KIND_LOOP_IR);
  const v1::LaunchStep& launch = answer.artifact.program().steps(0).launch();
  EXPECT_EQ(launch.binary(), answer.artifact.binaries(0).number());
  EXPECT_THAT(answer.artifact.binaries(0).data(),
              HasSubstr(absl::StrCat("schedule @", launch.kernel(), " {")));
  EXPECT_THAT(answer.artifact.binaries(0).data(), HasSubstr("// interface: buffers {"));

  Answer again = Compile(stub(), null);
  EXPECT_EQ(again.source, "memory");
  EXPECT_EQ(again.bytes, answer.bytes);
  EXPECT_EQ(Fetch(stub(), header.key()).bytes, answer.bytes);
}

TEST_F(NullTargetTest, ItsKernelsAreCachedAsAnyOthers) {
  ASSERT_TRUE(StartServer());
  ASSERT_TRUE(Compile(stub(), ForNull(QuickRequest(64))).ok());
  v1::CompileRequest other = ForNull(QuickRequest(64));
  other.mutable_options()->set_fast_math(true);  // another artifact of the same text
  Answer answer = Compile(stub(), other);
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.source, "compiled");
  ASSERT_EQ(answer.artifact.header().kernels_size(), 1);
  EXPECT_TRUE(answer.artifact.header().kernels(0).cached());
}

TEST_F(NullTargetTest, MetricsThePageAndExplainMissNameIt) {
  ASSERT_TRUE(StartServer());
  for (const char* target : {"cpp", "null"}) {
    EXPECT_EQ(Metrics().Sum("kiln_target_build_info", {{"target", target}}), 1) << target;
  }
  const v1::CompileRequest cpp = QuickRequest(64);
  ASSERT_TRUE(Compile(stub(), ForNull(cpp)).ok());
  EXPECT_EQ(
      Metrics().Sum("kiln_compile_duration_seconds_count", {{"target", "null"}, {"result", "ok"}}),
      1);
  EXPECT_EQ(Metrics().Sum("kiln_kernels_compiled_total", {{"target", "null"}}), 1);
  auto activity = HttpGet(server().http_address(), "/api/v1/activity");
  ASSERT_TRUE(activity.ok()) << activity.status();
  EXPECT_THAT(activity->body, HasSubstr("\"null\""));

  v1::ExplainMissRequest question;
  *question.mutable_graph() = cpp.graph();
  *question.mutable_device() = cpp.device();
  grpc::ClientContext context;
  v1::ExplainMissResponse miss;
  ASSERT_TRUE(stub().ExplainMiss(&context, question, &miss).ok());
  EXPECT_FALSE(miss.hit());
  std::vector<std::string> components;
  for (const v1::KeyDifference& difference : miss.differences()) {
    components.push_back(difference.component());
  }
  EXPECT_THAT(components, ::testing::ElementsAre("compiler build", "device.target", "device.arch"));
  *question.mutable_device() = ForNull(cpp).device();
  grpc::ClientContext other_context;
  v1::ExplainMissResponse hit;
  ASSERT_TRUE(stub().ExplainMiss(&other_context, question, &hit).ok());
  EXPECT_TRUE(hit.hit());
}

TEST_F(NullTargetTest, TheCommandLineCompilesForItAndRefusesToRunIt) {
  ASSERT_TRUE(StartServer());
  const std::string graph = SaveGraph();
  const std::string file = files_.path() + "/null.kart";
  Ended compiled = Kiln({"compile", graph, "--target", "null", "-o", file});
  ASSERT_EQ(compiled.code, 0) << compiled.errors;
  EXPECT_THAT(compiled.output, HasSubstr("for loop-ir"));
  EXPECT_THAT(Kiln({"compile", graph, "--target=null"}).output, HasSubstr("memory in"));
  EXPECT_THAT(Kiln({"compile", graph, "--target=null", "--emit", "source"}).output,
              HasSubstr("schedule @kiln_"));
  EXPECT_THAT(Kiln({"status"}).output, HasSubstr("targets    cpp, ptx, gcu, null"));
  EXPECT_THAT(Kiln({"explain-miss", graph, "--target=null"}).output, HasSubstr("hit: "));

  Ended run = Kiln({"run", file});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.errors, StartsWith("kiln: the artifact is for target null; this client runs"));
  Ended unknown = Kiln({"compile", graph, "--target=tpu"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.errors, HasSubstr("--target is 'tpu'; expected cpp, ptx, gcu, null"));
}

TEST_F(NullTargetTest, ADeviceThatIsNoneOfItsIsRefused) {
  ASSERT_TRUE(StartServer());
  v1::CompileRequest request = ForNull(QuickRequest(64));
  request.mutable_device()->set_arch("znver4");
  Answer answer = Compile(stub(), request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Text(answer.status);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("has the architecture loop-ir"));
}

}  // namespace
}  // namespace kiln::integration
