// How servers leave: hits go on, compiles finish, nobody notices a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/crowd.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using DrainTest = ServerTest;

TEST_F(DrainTest, AnIdleServerEndsAtOnceHoweverManyClientsAreConnected) {
  ASSERT_TRUE(StartServer());
  std::vector<std::unique_ptr<v1::CompileService::Stub>> idle;
  for (int i = 0; i < 8; ++i) {
    idle.push_back(server().NewStub());
    GetServerInfo(*idle.back());
  }
  ASSERT_TRUE(Compile(stub(), QuickRequest(100)).ok());
  absl::Time start = absl::Now();
  EXPECT_EQ(server().Terminate(), 0);
  absl::Duration took = absl::Now() - start;
  std::cout << "SIGTERM to exit, 9 idle clients connected: " << took << "\n";
  EXPECT_LT(took, absl::Seconds(3));
}

TEST_F(DrainTest, HitsGoOnWhileTheLastCompileFinishes) {
  ASSERT_TRUE(StartServer());
  Answer known = Compile(stub(), QuickRequest(100));
  ASSERT_TRUE(known.ok());
  auto compiling_stub = server().NewStub();
  Crowd crowd({compiling_stub.get()});
  v1::CompileRequest request = SlowRequest(/*count=*/40, /*seed=*/1);
  crowd.Start(request);
  ASSERT_TRUE(Eventually(absl::Seconds(60),
                         [&] { return Metrics().Sum("kiln_kernels_compiled_total") > 1; }));
  server().process().Signal(SIGTERM);
  ASSERT_TRUE(Eventually(absl::Seconds(5), [&] { return GetServerInfo(stub()).draining(); }));
  auto fresh_stub = server().NewStub();
  for (int i = 0; i < 20; ++i) {
    Answer hit = Fetch(i % 2 == 0 ? stub() : *fresh_stub, known.artifact.header().key());
    EXPECT_TRUE(hit.ok()) << Text(hit.status);
  }
  Answer again = Compile(*fresh_stub, QuickRequest(100));
  EXPECT_TRUE(again.ok()) << "a hit, too: " << Text(again.status);
  Answer refused = Compile(*fresh_stub, QuickRequest(200));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE) << Text(refused.status);
  EXPECT_EQ(refused.detail.reason(), v1::ErrorDetail::REASON_DRAINING);
  std::vector<CrowdAnswer> answers = crowd.Wait();
  EXPECT_TRUE(answers[0].status.ok()) << Text(answers[0].status);
  auto code = server().process().Wait(absl::Seconds(10));
  ASSERT_TRUE(code.has_value());
  EXPECT_EQ(*code, 0);
}

// A client of two servers: the next one where one is away. As a load balancer would.
class TwoServers {
 public:
  explicit TwoServers(const std::vector<std::string>& addresses) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
    for (const std::string& address : addresses) {
      stubs_.push_back(v1::CompileService::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)));
    }
  }
  // Tries again, elsewhere, only what is UNAVAILABLE.
  template <typename F>
  Answer Call(F call) {
    Answer answer;
    for (int attempt = 0; attempt < 100; ++attempt) {
      answer = call(*stubs_[at_]);
      if (answer.status.error_code() != grpc::StatusCode::UNAVAILABLE) return answer;
      ++retries;
      at_ = (at_ + 1) % stubs_.size();
      if (attempt > 0) absl::SleepFor(absl::Milliseconds(20));
    }
    return answer;
  }
  int retries = 0;

 private:
  std::vector<std::unique_ptr<v1::CompileService::Stub>> stubs_;
  size_t at_ = 0;
};

// Calls until told to stop: hits, and now and then a compile of its own.
struct Caller {
  int calls = 0;
  int compiles = 0;
  int retries = 0;
  std::vector<std::string> failures;

  void Run(int number, const std::vector<std::string>& addresses, const std::string& key,
           const std::atomic<bool>& stop) {
    TwoServers servers(addresses);
    while (!stop) {
      Answer answer;
      if (++calls % 8 == 0) {
        int64_t elements = 1000 + 1000 * number + ++compiles;
        answer = servers.Call([&](auto& stub) { return Compile(stub, QuickRequest(elements)); });
      } else {
        answer = servers.Call([&](auto& stub) { return Fetch(stub, key); });
      }
      if (!answer.ok()) failures.push_back(Text(answer.status));
      absl::SleepFor(absl::Milliseconds(2));
    }
    retries = servers.retries;
  }
};

TEST(RollingRestart, OfTwoServersUnderLoadFailsNoCall) {
  TempDir dir;
  std::vector<std::unique_ptr<ServerProcess>> servers;
  std::vector<std::string> addresses;
  std::string key;
  for (int i = 0; i < 2; ++i) {
    auto server = ServerProcess::Start(absl::StrCat(dir.path(), "/", i));
    ASSERT_TRUE(server.ok()) << server.status();
    Answer known = Compile(*(*server)->NewStub(), QuickRequest(100));
    ASSERT_TRUE(known.ok()) << Text(known.status);
    key = known.artifact.header().key();
    addresses.push_back((*server)->grpc_address());
    servers.push_back(*std::move(server));
  }
  constexpr int kCallers = 4;
  std::atomic<bool> stop = false;
  std::vector<Caller> callers(kCallers);
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([&, i] { callers[static_cast<size_t>(i)].Run(i, addresses, key, stop); });
  }
  constexpr int kRounds = 2;
  bool restarted = true;
  for (int round = 0; round < kRounds && restarted; ++round) {
    for (size_t i = 0; i < servers.size() && restarted; ++i) {
      absl::SleepFor(absl::Milliseconds(300));
      EXPECT_EQ(servers[i]->Terminate(), 0);
      auto again = ServerProcess::Start(absl::StrCat(dir.path(), "/", i),
                                        {absl::StrCat("--listen=", addresses[i])});
      EXPECT_TRUE(again.ok()) << again.status();
      restarted = again.ok();
      if (restarted) servers[i] = *std::move(again);
    }
  }
  absl::SleepFor(absl::Milliseconds(300));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  int calls = 0;
  int compiles = 0;
  int retries = 0;
  std::vector<std::string> failures;
  for (const Caller& caller : callers) {
    calls += caller.calls;
    compiles += caller.compiles;
    retries += caller.retries;
    failures.insert(failures.end(), caller.failures.begin(), caller.failures.end());
  }
  std::cout << 2 * kRounds << " restarts under load: " << calls << " calls, " << compiles
            << " of them compiles, " << retries << " retries, " << failures.size() << " failures\n";
  EXPECT_THAT(failures, ::testing::IsEmpty());
  EXPECT_GT(compiles, 10);
}

}  // namespace
}  // namespace kiln::integration
