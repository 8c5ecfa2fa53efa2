// Servers on one Redis compile a key once, and outlive each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/remote/entry_format.h"
#include "proto/base/key.h"
#include "proto/base/signing.h"
#include "tests/integration/crowd.h"
#include "tests/integration/graphs.h"
#include "tests/integration/redis_process.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

class LeaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RedisServerProgram().empty()) GTEST_SKIP() << "redis-server is not installed";
    auto redis = RedisProcess::Start();
    ASSERT_TRUE(redis.ok()) << redis.status();
    redis_ = *std::move(redis);
    ASSERT_TRUE(SigningKey::LoadOrCreate(absl::StrCat(dir_.path(), "/cluster.key")).ok());
  }
  // Servers of one cluster: one tier, one signing key. The machine may be busy: reads get time.
  std::unique_ptr<ServerProcess> Start(const std::string& name,
                                       const std::string& lease_wait = "1m") {
    auto server = ServerProcess::Start(
        absl::StrCat(dir_.path(), "/", name),
        {absl::StrCat("--remote-cache=redis://", redis_->address()),
         absl::StrCat("--signing-key=", dir_.path(), "/cluster.key"), "--remote-read-timeout=2s",
         "--remote-connect-timeout=2s", absl::StrCat("--remote-lease-wait=", lease_wait)});
    if (!server.ok()) {
      ADD_FAILURE() << server.status();
      return nullptr;
    }
    return *std::move(server);
  }
  TempDir dir_;
  std::unique_ptr<RedisProcess> redis_;
};

TEST_F(LeaseTest, AClusterCompilesAKeyOnce) {
  constexpr int kServers = 3;
  constexpr int kWaitersEach = 16;
  std::vector<std::unique_ptr<ServerProcess>> servers;
  std::vector<std::unique_ptr<v1::CompileService::Stub>> stubs;
  std::vector<v1::CompileService::Stub*> pointers;
  for (int i = 0; i < kServers; ++i) {
    servers.push_back(Start(absl::StrCat("server", i)));
    ASSERT_TRUE(servers.back());
    stubs.push_back(servers.back()->NewStub());
    pointers.push_back(stubs.back().get());
  }
  v1::CompileRequest request = SlowRequest(/*count=*/12, /*seed=*/1);
  Crowd crowd(pointers);
  for (int i = 0; i < kServers * kWaitersEach; ++i) crowd.Start(request);
  std::set<std::string> digests;
  std::map<std::string, int> sources;
  for (const CrowdAnswer& answer : crowd.Wait()) {
    ASSERT_TRUE(answer.status.ok()) << Text(answer.status);
    digests.insert(answer.digest);
    ++sources[answer.source];
  }
  double compiles = 0;
  double kernels = 0;
  for (auto& server : servers) {
    MetricText metrics = server->Metrics();
    compiles += metrics.Sum("kiln_compile_duration_seconds_count");
    kernels += metrics.Sum("kiln_kernels_compiled_total");
  }
  std::cout << kServers << " servers, " << kServers * kWaitersEach << " clients: " << compiles
            << " compile, " << kernels << " kernels, " << digests.size() << " digest" << std::endl;
  EXPECT_EQ(digests.size(), 1u);
  EXPECT_EQ(compiles, 1);
  EXPECT_EQ(kernels, 12);
  EXPECT_EQ(sources["compiled"], 1);
}

TEST_F(LeaseTest, TheDeathOfTheServerThatCompilesCostsItsLease) {
  auto holder = Start("holder");
  auto other = Start("other");
  ASSERT_TRUE(holder && other);
  v1::CompileRequest request = SlowRequest(/*count=*/16, /*seed=*/2);
  auto holder_stub = holder->NewStub();
  Crowd on_holder({holder_stub.get()});
  on_holder.Start(request);
  ASSERT_TRUE(Eventually(absl::Seconds(60),
                         [&] { return holder->Metrics().Sum("kiln_kernels_compiled_total") > 0; }));
  auto other_stub = other->NewStub();
  Crowd on_other({other_stub.get()});
  for (int i = 0; i < 4; ++i) on_other.Start(request);
  ASSERT_TRUE(Eventually(absl::Seconds(30), [&] {
    MetricText metrics = other->Metrics();
    return metrics.Sum("kiln_waiters") == 4 && metrics.Sum("kiln_jobs_running") == 0;
  })) << "it waits, and takes no place";
  EXPECT_EQ(other->Metrics().Sum("kiln_kernels_compiled_total"), 0);
  holder->Kill();
  absl::Time killed = absl::Now();
  EXPECT_FALSE(on_holder.Wait()[0].status.ok());
  ASSERT_TRUE(Eventually(absl::Seconds(30),
                         [&] { return other->Metrics().Sum("kiln_jobs_running") == 1; }));
  absl::Duration taken_over = absl::Now() - killed;
  std::cout << "taken over " << taken_over << " after the holder's death" << std::endl;
  EXPECT_LT(taken_over, absl::Seconds(5));
  for (const CrowdAnswer& answer : on_other.Wait()) {
    EXPECT_TRUE(answer.status.ok()) << Text(answer.status);
  }
}

TEST_F(LeaseTest, AForgedLeaseCostsItsWaitAndNoMore) {
  auto server = Start("server", "1s");
  ASSERT_TRUE(server);
  const v1::CompileRequest request = QuickRequest(700);
  const std::string build = GetServerInfo(*server->NewStub()).compiler_build();
  const cache::Key key = {cache::EntryKind::kArtifact,
                          ArtifactKey(request.graph(), request.device(), request.options(), build)};
  // Nobody compiles it, and it never runs out.
  ASSERT_EQ(redis_->Call({"SET", cache::LeaseKeyName(key), "forged"}), "OK");
  const absl::Time start = absl::Now();
  const Answer answer = Compile(*server->NewStub(), request, nullptr, absl::Seconds(30));
  EXPECT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.source, "compiled");
  EXPECT_GE(absl::Now() - start, absl::Seconds(1));
  EXPECT_EQ(redis_->Call({"GET", cache::LeaseKeyName(key)}), "forged") << "it is not ours to touch";
}

TEST_F(LeaseTest, WithoutRedisEachServerServesAlone) {
  auto server = Start("alone");
  ASSERT_TRUE(server);
  redis_.reset();
  auto stub = server->NewStub();
  Answer answer = Compile(*stub, QuickRequest(100));
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.source, "compiled");
}

}  // namespace
}  // namespace kiln::integration
