// Machine code of GPUs beside PTX, through the whole service: by programs that stand for ptxas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compiler/kernels_ahead.h"
#include "kiln/v1/artifact.pb.h"
#include "tests/integration/calls.h"
#include "tests/integration/graphs.h"
#include "tests/integration/process.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Of a client whose driver takes cubins and PTX.
v1::CompileRequest ForGpu(int64_t elements) {
  v1::CompileRequest request = QuickRequest(elements);
  v1::Device& device = *request.mutable_device();
  device.set_target(v1::TARGET_PTX);
  device.set_arch("sm_80");
  for (v1::BinaryKind kind : {v1::BINARY_KIND_CUBIN, v1::BINARY_KIND_PTX}) {
    device.add_binary_formats()->set_kind(kind);
  }
  return request;
}

class CubinTest : public ServerTest {
 protected:
  // Whose cubins are all of graphs that a test compiles.
  bool Start(std::vector<std::string> flags) {
    flags.push_back("--assemble-ahead=off");
    return StartServer(flags);
  }

  v1::Artifact Compile(const v1::CompileRequest& request) {
    Answer answer = integration::Compile(stub(), request);
    EXPECT_TRUE(answer.ok()) << Text(answer.status);
    return answer.artifact;
  }

  // Programs that stand for ptxas and run, children of the server's.
  std::vector<pid_t> Assemblers() {
    std::vector<pid_t> found;
    for (const pid_t task : server().Processes()) {
      for (const pid_t child : ChildrenOf(task)) found.push_back(child);
    }
    return found;
  }
  // Once there are some.
  std::vector<pid_t> WaitingAssemblers() {
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (Assemblers().empty() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(10));
    return Assemblers();
  }

  double Cubins(const std::string& result) {
    return Metrics().Sum("kiln_cubins_total", {{"result", result}});
  }
};

TEST_F(CubinTest, AnArtifactHasCubinsThenPtxAndNamesTheAssembler) {
  ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-works"}));
  const v1::Artifact artifact = Compile(ForGpu(64));
  ASSERT_EQ(artifact.binaries_size(), 2);
  EXPECT_EQ(artifact.binaries(0).kind(), v1::BINARY_KIND_CUBIN);
  EXPECT_THAT(artifact.binaries(0).data(), HasSubstr("made by a fake"));
  EXPECT_EQ(artifact.binaries(1).kind(), v1::BINARY_KIND_PTX);
  EXPECT_EQ(Cubins("ok"), 1);
  EXPECT_EQ(Cubins("error"), 0);
  ASSERT_EQ(artifact.header().kernels_size(), 1);
  EXPECT_EQ(artifact.header().kernels(0).assembler(), "ptxas 0.1.2");
  // Another artifact's kernel comes from the cache, cubin and all.
  v1::CompileRequest other = ForGpu(64);
  other.mutable_options()->set_prepare_memory(1);
  const v1::Artifact cached = Compile(other);
  EXPECT_EQ(cached.binaries_size(), 2);
  EXPECT_TRUE(cached.header().kernels(0).cached());
  EXPECT_EQ(cached.header().kernels(0).assembler(), "ptxas 0.1.2");
  EXPECT_EQ(Cubins("ok"), 1);
}

TEST_F(CubinTest, AServerMakesCubinsOfItsBuildsKernelsOnce) {
  const auto kernels = static_cast<double>(ReadKernelsAhead(KernelsAhead()).size());
  if (kernels == 0) GTEST_SKIP() << "builds with sanitizers have no kernels ahead";
  ASSERT_TRUE(StartServer({"--ptxas=" KILN_FAKE_PTXAS "-works"}));
  EXPECT_TRUE(Eventually(absl::Seconds(60), [&] { return Cubins("ok") >= kernels; }));
  EXPECT_EQ(Cubins("ok"), kernels);
  EXPECT_EQ(Metrics().Sum("kiln_cache_entries", {{"kind", "kernel"}, {"tier", "disk"}}), kernels);
  StopServer();
  // They are in the cache by now.
  ASSERT_TRUE(StartServer({"--ptxas=" KILN_FAKE_PTXAS "-works"}));
  EXPECT_EQ(Compile(ForGpu(64)).binaries_size(), 2);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(Cubins("ok"), 1) << "the graph's";
}

TEST_F(CubinTest, AnAssemblerThatHasStartedServesTheNextKernelAndMayBeKilled) {
  ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-works", "--workers=1"}));
  EXPECT_EQ(Compile(ForGpu(64)).binaries_size(), 2);
  const std::vector<pid_t> first = WaitingAssemblers();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(Compile(ForGpu(128)).binaries_size(), 2);
  EXPECT_EQ(getpgid(first[0]), -1) << "it was there for that kernel";
  const std::vector<pid_t> second = WaitingAssemblers();
  ASSERT_EQ(second.size(), 1u);
  kill(second[0], SIGKILL);
  EXPECT_EQ(Compile(ForGpu(256)).binaries_size(), 2);
  EXPECT_EQ(Cubins("ok"), 3);
}

TEST_F(CubinTest, AServerThatShallHaveNoProcessesAheadHasNoAssemblersThatWait) {
  ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-works", "--workers=1", "--worker-standby=0"}));
  EXPECT_EQ(Compile(ForGpu(64)).binaries_size(), 2);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_THAT(Assemblers(), IsEmpty());
  EXPECT_EQ(Compile(ForGpu(128)).binaries_size(), 2);
}

TEST_F(CubinTest, WhoAsksForDebugSeesPtxAndMachineCode) {
  ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-works", "--nvdisasm=" KILN_FAKE_PTXAS "-works"}));
  v1::CompileRequest request = ForGpu(64);
  EXPECT_EQ(Compile(request).debug().kernels_size(), 0);
  // The same kernel, which the cache has by now.
  request.mutable_options()->set_debug(true);
  const v1::Artifact artifact = Compile(request);
  ASSERT_EQ(artifact.debug().kernels_size(), 1);
  const v1::Debug::KernelSource& kernel = artifact.debug().kernels(0);
  EXPECT_THAT(kernel.assembly(), HasSubstr(absl::StrCat(".entry ", kernel.symbol())));
  EXPECT_THAT(kernel.machine_code(), HasSubstr("machine code: ELF"));
}

TEST_F(CubinTest, ADisassemblerThatFailsOrHangsLeavesTheRest) {
  for (const char* how : {"-fail", "-hang"}) {
    ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-works",
                       absl::StrCat("--nvdisasm=" KILN_FAKE_PTXAS, how), "--worker-timeout=3s"}));
    v1::CompileRequest request = ForGpu(64);
    request.mutable_options()->set_debug(true);
    const v1::Artifact artifact = Compile(request);
    ASSERT_EQ(artifact.debug().kernels_size(), 1);
    EXPECT_EQ(artifact.debug().kernels(0).machine_code(), "");
    EXPECT_EQ(artifact.binaries_size(), 2);
    StopServer();
  }
}

TEST_F(CubinTest, AnAssemblerThatFailsLeavesPtx) {
  ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-fail"}));
  const v1::Artifact artifact = Compile(ForGpu(64));
  ASSERT_EQ(artifact.binaries_size(), 1);
  EXPECT_EQ(artifact.binaries(0).kind(), v1::BINARY_KIND_PTX);
  EXPECT_EQ(Cubins("error"), 1);
}

TEST_F(CubinTest, AnAssemblerThatHangsIsEndedAndLeavesPtx) {
  ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-hang", "--worker-timeout=3s"}));
  EXPECT_EQ(Compile(ForGpu(64)).binaries_size(), 1);
  EXPECT_EQ(Cubins("error"), 1);
  EXPECT_EQ(Compile(ForGpu(128)).binaries_size(), 1) << "the next one is tried";
}

TEST_F(CubinTest, WithoutOneThereIsPtxAlone) {
  ASSERT_TRUE(Start({"--ptxas=none"}));
  EXPECT_EQ(Compile(ForGpu(64)).binaries_size(), 1);
  EXPECT_EQ(Cubins("ok") + Cubins("error"), 0);
}

TEST_F(CubinTest, AClientThatTakesNoCubinsGetsNone) {
  ASSERT_TRUE(Start({"--ptxas=" KILN_FAKE_PTXAS "-works"}));
  v1::CompileRequest request = ForGpu(64);
  request.mutable_device()->mutable_binary_formats()->DeleteSubrange(0, 1);
  EXPECT_EQ(Compile(request).binaries_size(), 1);
  EXPECT_EQ(Cubins("ok"), 0);
}

TEST_F(CubinTest, ANamedFileThatIsNoProgramIsAnErrorOfTheConfiguration) {
  const Ended ended = RunToEnd(
      {KILND, "--ptxas=/absent", "--listen=127.0.0.1:0", absl::StrCat("--data-dir=", data_dir())});
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.errors, HasSubstr("'/absent' is no program"));
}

}  // namespace
}  // namespace kiln::integration
