// Machine code of GPUs beside PTX, through the whole service: by programs that stand for ptxas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;

class CubinTest : public ServerTest {
 protected:
  // What `kiln compile` gets for a GPU.
  v1::Artifact Compile(int64_t elements) {
    const std::string graph = files_.path() + "/graph.kgraph", made = files_.path() + "/made.kart";
    std::ofstream(graph, std::ios::binary) << QuickRequest(elements).graph().SerializeAsString();
    const Ended ended =
        RunToEnd({KILN_CLI, "compile", graph, "--target", "ptx", "--arch", "sm_80", "-o", made},
                 {absl::StrCat("KILN_SERVER=", server().grpc_address())});
    EXPECT_EQ(ended.code, 0) << ended.errors;
    std::ifstream file(made, std::ios::binary);
    v1::Artifact artifact;
    EXPECT_TRUE(artifact.ParseFromString(std::string(std::istreambuf_iterator<char>(file), {})));
    return artifact;
  }

  double Cubins(const std::string& result) {
    return Metrics().Sum("kiln_cubins_total", {{"result", result}});
  }

  TempDir files_;
};

TEST_F(CubinTest, AnArtifactHasCubinsThenPtxAndNamesTheAssembler) {
  ASSERT_TRUE(StartServer({"--ptxas=" KILN_FAKE_PTXAS "-works"}));
  const v1::Artifact artifact = Compile(64);
  ASSERT_EQ(artifact.binaries_size(), 2);
  EXPECT_EQ(artifact.binaries(0).kind(), v1::BINARY_KIND_CUBIN);
  EXPECT_THAT(artifact.binaries(0).data(), HasSubstr("made by a fake"));
  EXPECT_EQ(artifact.binaries(1).kind(), v1::BINARY_KIND_PTX);
  EXPECT_EQ(Cubins("ok"), 1);
  EXPECT_EQ(Cubins("error"), 0);
  // Another graph's kernel comes from the cache, cubin and all.
  EXPECT_EQ(Compile(64).binaries_size(), 2);
  EXPECT_EQ(Cubins("ok"), 1);
}

TEST_F(CubinTest, AnAssemblerThatFailsLeavesPtx) {
  ASSERT_TRUE(StartServer({"--ptxas=" KILN_FAKE_PTXAS "-fail"}));
  const v1::Artifact artifact = Compile(64);
  ASSERT_EQ(artifact.binaries_size(), 1);
  EXPECT_EQ(artifact.binaries(0).kind(), v1::BINARY_KIND_PTX);
  EXPECT_EQ(Cubins("error"), 1);
}

TEST_F(CubinTest, AnAssemblerThatHangsIsEndedAndLeavesPtx) {
  ASSERT_TRUE(StartServer({"--ptxas=" KILN_FAKE_PTXAS "-hang", "--worker-timeout=3s"}));
  EXPECT_EQ(Compile(64).binaries_size(), 1);
  EXPECT_EQ(Cubins("error"), 1);
  EXPECT_EQ(Compile(128).binaries_size(), 1) << "the next one is tried";
}

TEST_F(CubinTest, WithoutOneThereIsPtxAlone) {
  ASSERT_TRUE(StartServer());
  EXPECT_EQ(Compile(64).binaries_size(), 1);
  EXPECT_EQ(Cubins("ok") + Cubins("error"), 0);
}

TEST_F(CubinTest, ANamedFileThatIsNoProgramIsAnErrorOfTheConfiguration) {
  const Ended ended = RunToEnd({KILND, "--ptxas=/absent", "--listen=127.0.0.1:0"});
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.errors, HasSubstr("'/absent' is no program"));
}

}  // namespace
}  // namespace kiln::integration
