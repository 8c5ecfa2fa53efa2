// Of which runs a server is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "client/credentials.h"
#include "client/endpoints.h"
#include "client/loader.h"
#include "client/run_report.h"
#include "client/trust.h"
#include "kiln/v1/compile_service.pb.h"
#include "tests/unit/client/artifacts.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/gcu/gcu_artifacts.h"

namespace kiln::testing {
namespace {

constexpr int64_t kPlanned = 8;  // DynamicAdd's hint

class GcuReport : public ::testing::Test {
 protected:
  void SetUp() override {
    WatchGcu();
    endpoint_ = std::make_shared<Endpoint>(server_.address(), *Credentials::Load({}),
                                           *Trust::Load({}), CallHeaders());
    ASSERT_TRUE(endpoint_->remote.GetServerInfo(absl::Seconds(5)).ok()) << "connects";
  }

  // Reports to the server under the digest of `key`.
  std::shared_ptr<const Program> Load(const std::string& key) {
    v1::Artifact artifact = DynamicAdd();
    artifact.mutable_program()->mutable_steps(0)->mutable_launch()->set_kernel("gcu_add");
    auto loaded = runtime::LoadedProgram::Load(Sealed(OnGcu(artifact)), nullptr, 1);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE((*loaded)->executor().TellsRuns());
    return std::make_shared<const Program>(*std::move(loaded),
                                           std::make_unique<RunReport>(endpoint_, Sha256(key)));
  }

  static absl::Status Run(const Program& program, int64_t n) {
    Values a = Iota(n, 1), b(static_cast<size_t>(n), 2);
    return RunOn(program, {&a, &b}).status();
  }

  std::vector<v1::ReportRunRequest> Reports() {
    std::lock_guard lock(server_.mutex);
    return server_.reports;
  }

  FakeServer server_;
  std::shared_ptr<Endpoint> endpoint_;
};

TEST_F(GcuReport, TheFirstRunOfThePlannedSizesIsTold) {
  const auto program = Load("a");
  EXPECT_EQ(Run(*program, 13), absl::OkStatus());
  EXPECT_FALSE(Run(*program, 1).ok()) << "no size of the program's";
  EXPECT_TRUE(Reports().empty());
  EXPECT_EQ(Run(*program, kPlanned), absl::OkStatus());
  ASSERT_EQ(Reports().size(), 1u);
  EXPECT_EQ(Reports()[0].key(), Sha256("a").view());
  EXPECT_EQ(Reports()[0].times().SerializeAsString(),
            program->LastDeviceTimes().SerializeAsString());
  EXPECT_EQ(Reports()[0].times().device(), "gcu-16m");
  EXPECT_GT(Reports()[0].times().launches(0).mean_us(), 0);
  EXPECT_EQ(Run(*program, kPlanned), absl::OkStatus());
  EXPECT_EQ(Reports().size(), 1u);
  EXPECT_EQ(Run(*Load("b"), kPlanned), absl::OkStatus());
  EXPECT_EQ(Reports().size(), 2u);
}

TEST_F(GcuReport, AServerThatIsAwayOrRefusesFailsNoRun) {
  const auto refused = Load("a");
  server_.refuse = true;
  EXPECT_EQ(Run(*refused, kPlanned), absl::OkStatus());
  const auto away = Load("b");
  server_.Stop();
  EXPECT_EQ(Run(*away, kPlanned), absl::OkStatus());
}

TEST_F(GcuReport, AServerThatIsSilentIsWaitedForOnceAndShortly) {
  const absl::Time start = absl::Now();
  {
    std::lock_guard silent(server_.mutex);
    for (const char* key : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
      EXPECT_EQ(Run(*Load(key), kPlanned), absl::OkStatus());
    }
  }
  const absl::Duration took = absl::Now() - start;
  EXPECT_GT(took, absl::Milliseconds(400));
  EXPECT_LT(took, absl::Seconds(3)) << "eight times half a second are four";
}

TEST_F(GcuReport, AForkedChildRunsAndTellsNothing) {
  const auto program = Load("a");
  const pid_t child = fork();
  if (child == 0) _exit(Run(*program, kPlanned).ok() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(Reports().empty());
  EXPECT_EQ(Run(*program, kPlanned), absl::OkStatus());
  EXPECT_EQ(Reports().size(), 1u);
}

TEST_F(GcuReport, AProgramOfAClientThatIsGoneTellsItsServerStill) {
  const auto program = Load("a");
  endpoint_.reset();
  EXPECT_EQ(Run(*program, kPlanned), absl::OkStatus());
  EXPECT_EQ(Reports().size(), 1u);
}

}  // namespace
}  // namespace kiln::testing
