// Servers that share a tier: two kilnd over one redis-server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/base/signing.h"
#include "tests/integration/graphs.h"
#include "tests/integration/redis_process.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

constexpr int64_t kElements = 1000;

class SharedTierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RedisServerProgram().empty()) GTEST_SKIP() << "redis-server is not installed";
    auto redis = RedisProcess::Start();
    ASSERT_TRUE(redis.ok()) << redis.status();
    redis_ = *std::move(redis);
    ASSERT_TRUE(SigningKey::LoadOrCreate(ClusterKey()).ok());
  }
  std::string ClusterKey() const { return absl::StrCat(dir_.path(), "/cluster.key"); }
  // On a folder of its own; null, and a failure, where it does not start.
  std::unique_ptr<ServerProcess> Start(const std::string& folder,
                                       std::vector<std::string> flags = {}) {
    flags.push_back(absl::StrCat("--remote-cache=redis://", redis_->address()));
    auto server = ServerProcess::Start(absl::StrCat(dir_.path(), "/", folder), flags);
    if (!server.ok()) {
      ADD_FAILURE() << server.status();
      return nullptr;
    }
    return *std::move(server);
  }
  std::unique_ptr<ServerProcess> StartOfCluster(const std::string& folder,
                                                std::vector<std::string> flags = {}) {
    // Servers that trust each other are given one key.
    flags.push_back(absl::StrCat("--signing-key=", ClusterKey()));
    return Start(folder, std::move(flags));
  }
  Answer CompileOn(ServerProcess& server) { return Compile(*server.NewStub(), request_); }
  static double Reads(ServerProcess& server, const std::string& result) {
    return server.Metrics().Sum("kiln_cache_requests_total",
                                {{"tier", "remote"}, {"result", result}});
  }
  static bool HasWritten(ServerProcess& server, int count) {
    return Eventually(absl::Seconds(30), [&] {
      return server.Metrics().Sum("kiln_remote_writes_total", {{"result", "ok"}}) >= count;
    });
  }
  void ExpectRightAnswer(const Answer& answer) {
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    std::vector<float> x = SampleInput(kElements);
    auto y = RunArtifact(answer.bytes, x);
    ASSERT_TRUE(y.ok()) << y.status();
    EXPECT_THAT(*y, ::testing::Pointwise(::testing::FloatEq(), QuickAnswer(x)));
  }

  TempDir dir_;
  std::unique_ptr<RedisProcess> redis_;
  const v1::CompileRequest request_ = QuickRequest(kElements);
};

TEST_F(SharedTierTest, WhatOneServerCompiledAnotherGetsAndKeeps) {
  auto one = StartOfCluster("one", {"--remote-read-timeout=2s"});
  auto other = StartOfCluster("other", {"--remote-read-timeout=2s"});
  ASSERT_TRUE(one && other);
  Answer compiled = CompileOn(*one);
  ASSERT_TRUE(compiled.ok()) << Text(compiled.status);
  EXPECT_EQ(compiled.source, "compiled");
  ASSERT_TRUE(HasWritten(*one, 2)) << "the artifact and its kernel";

  Answer shared = CompileOn(*other);
  ExpectRightAnswer(shared);
  EXPECT_EQ(shared.source, "remote");
  EXPECT_EQ(shared.bytes, compiled.bytes);
  EXPECT_EQ(Reads(*other, "hit"), 1);
  EXPECT_EQ(other->Metrics().Sum("kiln_kernels_compiled_total"), 0);
  EXPECT_GE(other->Metrics().Sum("kiln_remote_request_duration_seconds_count",
                                 {{"operation", "get"}, {"result", "ok"}}),
            1);
  EXPECT_EQ(other->Metrics().Sum("kiln_remote_nodes", {{"breaker", "closed"}}), 1);

  EXPECT_EQ(CompileOn(*other).source, "memory");
  EXPECT_EQ(other->Terminate(), 0);
  redis_->Kill();
  other = StartOfCluster("other");
  ASSERT_TRUE(other);
  EXPECT_EQ(CompileOn(*other).source, "disk") << "it was kept on the server's own disk";
}

TEST_F(SharedTierTest, AFetchLooksInTheSharedTierToo) {
  auto one = StartOfCluster("one", {"--remote-read-timeout=2s"});
  auto other = StartOfCluster("other", {"--remote-read-timeout=2s"});
  ASSERT_TRUE(one && other);
  Answer compiled = CompileOn(*one);
  ASSERT_TRUE(HasWritten(*one, 2));
  Answer fetched = Fetch(*other->NewStub(), compiled.artifact.header().key());
  ASSERT_TRUE(fetched.ok()) << Text(fetched.status);
  EXPECT_EQ(fetched.source, "remote");
}

TEST_F(SharedTierTest, StrangersEntriesCountOnlyOnceTheirKeyIsTrusted) {
  auto one = Start("one", {"--remote-read-timeout=2s"});
  auto other = Start("other", {"--remote-read-timeout=2s"});
  ASSERT_TRUE(one && other);
  ASSERT_TRUE(CompileOn(*one).ok());
  ASSERT_TRUE(HasWritten(*one, 2));
  Answer answer = CompileOn(*other);
  ExpectRightAnswer(answer);
  EXPECT_EQ(answer.source, "compiled");
  EXPECT_GE(Reads(*other, "untrusted"), 1);
  EXPECT_EQ(Reads(*other, "corrupt"), 0);
  EXPECT_EQ(Reads(*other, "error"), 0);
  const std::string signer = FormatPublicKey(GetServerInfo(*one->NewStub()).public_key());
  ASSERT_TRUE(Compile(*one->NewStub(), QuickRequest(2 * kElements)).ok());
  ASSERT_TRUE(HasWritten(*one, 4));
  ASSERT_TRUE(Compile(*other->NewStub(), QuickRequest(2 * kElements)).ok());
  const std::string log = other->process().Errors();
  EXPECT_THAT(log, ::testing::HasSubstr(signer));
  EXPECT_THAT(log, ::testing::HasSubstr("give both servers the same --signing-key"));
  EXPECT_EQ(log.find("give both servers"), log.rfind("give both servers")) << "told once";

  // What the other has written over it is its own; the first trusts it when told to.
  ASSERT_TRUE(HasWritten(*other, 4));
  const std::string key = FormatPublicKey(GetServerInfo(*other->NewStub()).public_key());
  auto trusting = Start("trusting", {"--remote-read-timeout=2s", "--remote-trusted-keys=" + key});
  ASSERT_TRUE(trusting);
  EXPECT_EQ(CompileOn(*trusting).source, "remote");
}

TEST_F(SharedTierTest, DamagedEntriesAreCompiledAgainAndMended) {
  auto one = StartOfCluster("one");
  ASSERT_TRUE(one);
  ASSERT_TRUE(CompileOn(*one).ok());
  ASSERT_TRUE(HasWritten(*one, 2));
  for (absl::string_view name :
       absl::StrSplit(redis_->Call({"KEYS", "kiln:1:[ak]*"}), ' ', absl::SkipEmpty())) {
    redis_->Call({"SETRANGE", std::string(name), "500", "damage"});
  }
  auto other = StartOfCluster("other", {"--remote-read-timeout=2s"});
  ASSERT_TRUE(other);
  Answer answer = CompileOn(*other);
  ExpectRightAnswer(answer);
  EXPECT_EQ(answer.source, "compiled");
  EXPECT_GE(Reads(*other, "corrupt"), 2) << "the artifact and its kernel";
  EXPECT_EQ(Reads(*other, "hit"), 0);
  ASSERT_TRUE(HasWritten(*other, 2));
  auto third = StartOfCluster("third", {"--remote-read-timeout=2s"});
  ASSERT_TRUE(third);
  EXPECT_EQ(CompileOn(*third).source, "remote");
}

TEST_F(SharedTierTest, ATierThatStallsHoldsNobodyUp) {
  auto server = StartOfCluster("one");
  ASSERT_TRUE(server);
  redis_->Stop();
  const absl::Time start = absl::Now();
  for (int64_t elements : {1000, 2000, 3000}) {
    Answer answer = Compile(*server->NewStub(), QuickRequest(elements));
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    EXPECT_EQ(answer.source, "compiled");
    EXPECT_EQ(Compile(*server->NewStub(), QuickRequest(elements)).source, "memory");
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << "a few reads of a tenth of a second";
  EXPECT_GE(Reads(*server, "error"), 3);
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
    return server->Metrics().Sum("kiln_remote_nodes", {{"breaker", "open"}}) == 1;
  }));
  redis_->Continue();
  // What was compiled meanwhile waited, and is shared now.
  EXPECT_TRUE(HasWritten(*server, 1));
  EXPECT_EQ(server->Terminate(), 0);
}

// Connections of this machine to a port of loopback, those that were accepted by the kernel only
// among them.
int ConnectionsTo(int port) {
  std::ifstream file("/proc/net/tcp");
  const std::string remote = absl::StrFormat("0100007F:%04X", port);
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    count += fields.size() > 3 && fields[2] == remote && fields[3] == "01";
  }
  return count;
}

TEST_F(SharedTierTest, CallsThatWaitForTheTierHoldUpNoOthers) {
  {
    auto before = StartOfCluster("one");
    ASSERT_TRUE(before);
    ASSERT_TRUE(CompileOn(*before).ok());
    EXPECT_EQ(before->Terminate(), 0);
  }
  // Nothing is in its memory; what it does not have takes it as long as Redis stalls.
  auto server = StartOfCluster("one", {"--remote-read-timeout=60s"});
  ASSERT_TRUE(server);
  redis_->Stop();
  constexpr int kOfEach = 6;  // more than the threads that calls had in common
  std::atomic<int> ended = 0;
  std::vector<std::thread> waiting;
  for (int i = 0; i < kOfEach; ++i) {
    waiting.emplace_back([&, i] {
      Fetch(*server->NewStub(), Sha256(absl::StrCat("none ", i)).ToHex());
      ++ended;
    });
    waiting.emplace_back([&, i] {
      EXPECT_TRUE(Compile(*server->NewStub(), QuickRequest(2000 + i)).ok());
      ++ended;
    });
  }
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] { return ConnectionsTo(redis_->port()) >= 8; }));
  auto stub = server->NewStub();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ServerInfo info;
  const grpc::Status asked = stub->GetServerInfo(&context, {}, &info);
  EXPECT_TRUE(asked.ok()) << Text(asked);
  const Answer hit = Compile(*stub, request_, nullptr, absl::Seconds(10));
  EXPECT_TRUE(hit.ok()) << Text(hit.status);
  EXPECT_EQ(hit.source, "disk");
  EXPECT_EQ(ended, 0) << "they waited all the while";
  redis_->Continue();
  for (std::thread& thread : waiting) thread.join();
}

// A graph whose artifact has constants of about 2 MiB.
v1::CompileRequest LargeRequest(float seed) {
  constexpr int64_t kConstantElements = 16384;
  GraphBuilder builder;
  uint32_t sum = builder.Input({kConstantElements});
  for (int i = 0; i < 32; ++i) {
    std::vector<float> values(kConstantElements);
    for (size_t k = 0; k < values.size(); ++k) values[k] = seed + static_cast<float>(i + k);
    const uint32_t constant = builder.Constant(values);
    sum = builder.Node(absl::StrCat("add_", i), "aten.add.Tensor", {sum, constant},
                       {kConstantElements});
  }
  builder.Output(sum);
  return builder.Request();
}

TEST_F(SharedTierTest, WhatHadNoRoomWhileTheTierStalledIsSharedLater) {
  auto server = StartOfCluster("one", {"--remote-queue-size=1MiB", "--remote-write-timeout=200ms"});
  ASSERT_TRUE(server);
  redis_->Stop();
  for (float seed : {1.0f, 2.0f}) {
    const Answer answer = Compile(*server->NewStub(), LargeRequest(seed));
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    ASSERT_GT(answer.bytes.size(), size_t{2} << 20);
  }
  EXPECT_GE(server->Metrics().Sum("kiln_remote_writes_total", {{"result", "deferred"}}), 1);
  EXPECT_GE(server->Metrics().Sum("kiln_remote_deferred_entries"), 1);
  redis_->Continue();
  EXPECT_TRUE(Eventually(absl::Seconds(30), [&] {
    const MetricText metrics = server->Metrics();
    return metrics.Sum("kiln_remote_deferred_entries") == 0 &&
           metrics.Sum("kiln_remote_queued_entries") == 0;
  }));
  EXPECT_EQ(server->Metrics().Sum("kiln_remote_writes_total", {{"result", "dropped"}}), 0);
  auto other = StartOfCluster("other", {"--remote-read-timeout=2s"});
  ASSERT_TRUE(other);
  for (float seed : {1.0f, 2.0f}) {
    EXPECT_EQ(Compile(*other->NewStub(), LargeRequest(seed)).source, "remote") << seed;
  }
}

TEST_F(SharedTierTest, ATierThatIsAwayKeepsNoServerFromStartingOrEnding) {
  redis_->Kill();
  auto server = StartOfCluster("one");
  ASSERT_TRUE(server);
  ExpectRightAnswer(CompileOn(*server));
  const absl::Time start = absl::Now();
  EXPECT_EQ(server->Terminate(), 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST_F(SharedTierTest, AClusterCompilesOnce) {
  auto one = StartOfCluster("one", {"--remote-read-timeout=2s"});
  auto other = StartOfCluster("other", {"--remote-read-timeout=2s"});
  ASSERT_TRUE(one && other);
  const v1::CompileRequest slow = SlowRequest(4, 1);
  std::vector<Answer> answers(2);
  std::thread second([&] { answers[1] = Compile(*other->NewStub(), slow); });
  answers[0] = Compile(*one->NewStub(), slow);
  second.join();
  int compiled = 0;
  for (const Answer& answer : answers) {
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    compiled += answer.source == "compiled";
  }
  EXPECT_EQ(compiled, 1) << answers[0].source << " and " << answers[1].source;
  EXPECT_EQ(answers[0].bytes, answers[1].bytes);
}

TEST(RemoteCacheSetting, ABadAddressEndsTheServerWithASentence) {
  auto kilnd = Process::Start({KilndPath(), "--remote-cache=http://host"});
  ASSERT_TRUE(kilnd.ok()) << kilnd.status();
  EXPECT_EQ((*kilnd)->Wait(absl::Seconds(30)), 78);
  EXPECT_THAT((*kilnd)->Errors(), ::testing::HasSubstr("redis://HOST:6379"));
}

TEST(RemoteCacheSetting, AFileWithoutCertificatesIsFoundByTheCheckAndByTheStart) {
  TempDir dir;
  for (const char* flag : {"--check-config", "--metrics-listen=127.0.0.1:0"}) {
    auto kilnd = Process::Start({KilndPath(), "--remote-cache=rediss://host",
                                 "--remote-ca=/dev/null", "--data-dir", dir.path(), flag});
    ASSERT_TRUE(kilnd.ok()) << kilnd.status();
    EXPECT_EQ((*kilnd)->Wait(absl::Seconds(30)), 78) << flag;
    EXPECT_THAT((*kilnd)->Errors(), ::testing::HasSubstr("--remote-ca: no certificates"));
  }
}

}  // namespace
}  // namespace kiln::integration
