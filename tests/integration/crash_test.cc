// Workers and servers that are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using CrashTest = ServerTest;

// Calls `strike` once, while one of the request's kernels is compiled and others are not yet.
Answer StrikeInMidCompile(v1::CompileService::Stub& stub, const v1::CompileRequest& request,
                          const std::function<void()>& strike) {
  bool struck = false;
  Answer answer = Compile(stub, request, [&](const v1::Progress& progress, grpc::ClientContext&) {
    if (struck || progress.stage() != "compile" || progress.kernels_done() == 0) return;
    ASSERT_LT(progress.kernels_done(), progress.kernels_total());
    strike();
    struck = true;
  });
  EXPECT_TRUE(struck) << "the compile ended before";
  return answer;
}

TEST_F(CrashTest, ATaskKilledInMidCompileCostsItsJobAndItsWorkerNothing) {
  ASSERT_TRUE(StartServer({"--workers=1", "--worker-standby=0"}));
  const std::vector<pid_t> before = server().Workers();
  ASSERT_EQ(before.size(), 1u);
  Answer answer = StrikeInMidCompile(stub(), SlowRequest(/*count=*/8, /*seed=*/1), [&] {
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
      for (pid_t pid : server().Processes()) {
        if (pid != before[0]) return kill(pid, SIGKILL) == 0;
      }
      return false;
    }));
  });
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.artifact.header().kernels_size(), 8);
  EXPECT_EQ(server().Workers(), before);
  EXPECT_EQ(Metrics().Sum("kiln_worker_exits_total", {{"reason", "crash"}}), 1);
}

TEST_F(CrashTest, AWorkerKilledInMidCompileCostsItsJobNothingAndIsBackSoon) {
  ASSERT_TRUE(StartServer({"--workers=1"}));
  const std::vector<pid_t> before = server().Workers();
  ASSERT_EQ(before.size(), 1u);
  absl::Duration until_new_worker = absl::InfiniteDuration();
  Answer answer = StrikeInMidCompile(stub(), SlowRequest(/*count=*/8, /*seed=*/1), [&] {
    kill(before[0], SIGKILL);
    const absl::Time killed = absl::Now();
    // Reaped, and what there is now has come since.
    ASSERT_TRUE(Eventually(absl::Seconds(10),
                           [&] { return kill(before[0], 0) != 0 && !server().Workers().empty(); }));
    until_new_worker = absl::Now() - killed;
  });
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.artifact.header().kernels_size(), 8);
  EXPECT_LT(until_new_worker, absl::Seconds(3));
  EXPECT_EQ(server().Workers().size(), 1u);
  MetricText metrics = Metrics();
  EXPECT_EQ(metrics.Sum("kiln_worker_exits_total", {{"reason", "crash"}}), 1);
  EXPECT_EQ(metrics.Sum("kiln_workers"), 1);
}

TEST_F(CrashTest, AnIdleWorkerThatIsKilledIsReplaced) {
  ASSERT_TRUE(StartServer());
  ASSERT_TRUE(Eventually(absl::Seconds(30),
                         [&] { return Metrics().Sum("kiln_workers", {{"state", "idle"}}) == 2; }));
  std::vector<pid_t> before = server().Workers();
  ASSERT_EQ(before.size(), 2u);
  for (pid_t worker : before) kill(worker, SIGKILL);
  EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
    std::vector<pid_t> now = server().Workers();
    bool fresh = std::none_of(now.begin(), now.end(), [&](pid_t pid) {
      return std::find(before.begin(), before.end(), pid) != before.end();
    });
    return fresh && Metrics().Sum("kiln_workers", {{"state", "idle"}}) == 2;
  }));
  EXPECT_TRUE(Compile(stub(), QuickRequest(100)).ok());
}

TEST_F(CrashTest, AGraphThatKillsWorkersFailsTypedAndIsRefusedForAWhile) {
  ASSERT_TRUE(StartServer({"--workers=1"}));
  v1::CompileRequest request = SlowRequest(/*count=*/8, /*seed=*/2);
  std::atomic<bool> ended = false;
  // Stands in for a compiler bug: no worker survives this graph.
  std::thread killer([&] {
    while (!ended) {
      if (Metrics().Sum("kiln_workers", {{"state", "busy"}}) > 0) {
        for (pid_t pid : server().Processes()) kill(pid, SIGKILL);
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
  });
  Answer killed = Compile(stub(), request);
  ended = true;
  killer.join();
  EXPECT_EQ(killed.status.error_code(), grpc::StatusCode::INTERNAL) << Text(killed.status);
  EXPECT_EQ(killed.detail.reason(), v1::ErrorDetail::REASON_WORKER_CRASHED);
  Answer refused = Compile(stub(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << Text(refused.status);
  EXPECT_EQ(refused.detail.reason(), v1::ErrorDetail::REASON_WORKER_CRASHED);
  Answer other = Compile(stub(), QuickRequest(100));
  EXPECT_TRUE(other.ok()) << Text(other.status);
}

TEST_F(CrashTest, WorkersAndTheirTasksEndWithTheirServer) {
  ASSERT_TRUE(StartServer());
  std::vector<pid_t> processes;
  Answer answer = StrikeInMidCompile(stub(), SlowRequest(/*count=*/40, /*seed=*/5), [&] {
    EXPECT_TRUE(Eventually(absl::Seconds(10), [&] {
      processes = server().Processes();
      return processes.size() > 2;  // a task's is among them
    }));
    server().Kill();
  });
  EXPECT_FALSE(answer.ok());
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    return std::all_of(processes.begin(), processes.end(),
                       [](pid_t pid) { return kill(pid, 0) != 0; });
  }));
}

// Compiles one small graph after another on its own connection, until the server is gone, and notes
// the keys that it was answered with.
class Load {
 public:
  void Run(const ServerProcess& server, int64_t first, int64_t step) {
    auto stub = server.NewStub();
    for (int64_t elements = first;; elements += step) {
      Answer answer = Compile(*stub, QuickRequest(elements), nullptr, absl::Seconds(30));
      if (!answer.ok()) return;
      absl::MutexLock lock(&mu_);
      keys_.push_back(answer.artifact.header().key());
    }
  }
  std::vector<std::string> keys() {
    absl::MutexLock lock(&mu_);
    return keys_;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> keys_ ABSL_GUARDED_BY(mu_);
};

TEST_F(CrashTest, AServerKilledUnderCacheWritesServesEveryEntryItAnsweredWith) {
  Load load;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(StartServer());
    size_t enough = load.keys().size() + 8;
    std::vector<std::thread> clients;
    for (int64_t i = 0; i < 2; ++i) {
      clients.emplace_back([&, i] { load.Run(server(), 10'000 * (round + 1) + i, 2); });
    }
    EXPECT_TRUE(Eventually(absl::Seconds(60), [&] { return load.keys().size() >= enough; }));
    server().Kill();
    for (std::thread& client : clients) client.join();
  }
  ASSERT_TRUE(StartServer());
  v1::VerifyCacheResponse verified = VerifyCache(stub());
  EXPECT_EQ(verified.corrupt(), 0);
  EXPECT_GE(verified.checked(), static_cast<int64_t>(load.keys().size()));
  for (const std::string& key : load.keys()) {
    Answer answer = Fetch(stub(), key);
    ASSERT_TRUE(answer.ok()) << "artifact " << key << ": " << Text(answer.status);
    EXPECT_EQ(answer.source, "disk");
    EXPECT_EQ(answer.artifact.header().key(), key);
  }
}

}  // namespace
}  // namespace kiln::integration
