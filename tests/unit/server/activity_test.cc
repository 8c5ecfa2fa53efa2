#include "server/observe/activity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kiln/v1/activity.pb.h"
#include "kiln/v1/compile_service.pb.h"

namespace kiln::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::StartsWith;

Digest KeyOf(const std::string& name) {
  return Sha256(name);
}

class ActivityTest : public ::testing::Test {
 protected:
  ActivityTest() { Make({}); }

  void Make(ActivityOptions options) {
    options.clock = [this] { return now_; };
    log_ = std::make_unique<ActivityLog>(options);
  }
  void Queue(int64_t job, const std::string& name, const std::string& tenant = "default",
             size_t padding_bytes = 0) {
    auto request = std::make_shared<v1::CompileRequest>();
    request->mutable_graph()->set_name(name);
    request->mutable_graph()->add_nodes()->set_location(std::string(padding_bytes, 'x'));
    request->mutable_device()->set_target(v1::TARGET_CPP);
    Caller caller;
    caller.tenant = tenant;
    log_->JobQueued(job, KeyOf(name), request, caller);
  }
  // Queued, started at once, and done after `took`.
  void Run(int64_t job, const std::string& name, absl::Duration took,
           const absl::Status& status = absl::OkStatus()) {
    Queue(job, name);
    log_->JobStarted(job);
    now_ += took;
    log_->JobEnded(job, status, status.ok() ? "compiled" : "");
  }
  v1::Activity Snapshot(int recent = 100, int slowest = 100) {
    v1::Activity out;
    log_->Snapshot(recent, slowest, out);
    return out;
  }
  static std::vector<std::string> Graphs(
      const google::protobuf::RepeatedPtrField<v1::CompileRecord>& records) {
    std::vector<std::string> out;
    for (const auto& record : records) out.push_back(record.graph());
    return out;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<ActivityLog> log_;
};

TEST_F(ActivityTest, AJobIsListedAsItWaitsRunsAndHasRun) {
  Queue(7, "bert", "team");
  EXPECT_EQ(Snapshot().running(0).started_unix_us(), 0);
  EXPECT_EQ(Snapshot().tenants(0).queued(), 1);
  now_ += absl::Seconds(1);
  log_->JobStarted(7);
  log_->JobJoined(7);
  log_->StageStarted(7, "plan");
  v1::Activity activity = Snapshot();
  EXPECT_EQ(activity.running(0).stage(), "plan");
  EXPECT_EQ(activity.running(0).waiters(), 2);
  EXPECT_EQ(activity.tenants(0).tenant(), "team");
  EXPECT_EQ(activity.tenants(0).running(), 1);
  log_->StageDone(7, "plan", now_ + absl::Milliseconds(2), absl::Milliseconds(5));
  log_->KernelsFound(7, 3, 2);
  log_->KernelDone(7, "k", "add, mul", now_, absl::Milliseconds(4));
  now_ += absl::Milliseconds(80);
  log_->JobEnded(7, absl::OkStatus(), "compiled");
  activity = Snapshot();
  EXPECT_EQ(activity.running_size(), 0);
  ASSERT_EQ(activity.recent_size(), 1);
  const v1::CompileRecord& listed = activity.recent(0);
  EXPECT_EQ(listed.started_unix_us() - listed.queued_unix_us(), 1'000'000);
  EXPECT_EQ(listed.finished_unix_us() - listed.started_unix_us(), 80'000);
  EXPECT_EQ(listed.outcome(), "OK");
  EXPECT_EQ(listed.stages_size(), 0);
  EXPECT_TRUE(listed.has_graph());
  v1::CompileRecord whole;
  ASSERT_TRUE(log_->FindRecord(KeyOf("bert").ToHex(), whole));
  ASSERT_EQ(whole.stages_size(), 2);
  EXPECT_EQ(whole.stages(0).start_us(), 2000);
  EXPECT_EQ(whole.stages(0).duration_us(), 5000);
  EXPECT_EQ(whole.stages(1).kernel(), "k");
  EXPECT_EQ(whole.stages(1).operators(), "add, mul");
  EXPECT_EQ(whole.kernels_total(), 3);
  EXPECT_EQ(activity.compiles(), 1);
  EXPECT_EQ(activity.coalesced(), 1);
  EXPECT_EQ(activity.compile_latency().count(), 1);
}

TEST_F(ActivityTest, RecentIsNewestFirstAndSlowestSlowestFirst) {
  Run(1, "a", absl::Seconds(2));
  Run(2, "b", absl::Seconds(9));
  Run(3, "c", absl::Seconds(1));
  v1::Activity activity = Snapshot();
  EXPECT_THAT(Graphs(activity.recent()), ElementsAre("c", "b", "a"));
  EXPECT_THAT(Graphs(activity.slowest()), ElementsAre("b", "a", "c"));
  activity = Snapshot(2, 1);
  EXPECT_THAT(Graphs(activity.recent()), ElementsAre("c", "b"));
  EXPECT_THAT(Graphs(activity.slowest()), ElementsAre("b"));
}

TEST_F(ActivityTest, TheSlowestOfYesterdayAreForgotten) {
  Run(1, "old", absl::Minutes(1));
  now_ += absl::Hours(25);
  Run(2, "new", absl::Seconds(1));
  EXPECT_THAT(Graphs(Snapshot().slowest()), ElementsAre("new"));
}

TEST_F(ActivityTest, AFailureKeepsItsReasonAndCountsAsNoCompile) {
  Run(1, "bad", absl::Seconds(1), absl::InvalidArgumentError("node add: no such size"));
  v1::Activity activity = Snapshot();
  EXPECT_EQ(activity.failures(), 1);
  EXPECT_EQ(activity.compiles(), 0);
  EXPECT_EQ(activity.compile_latency().count(), 0);
  EXPECT_EQ(activity.recent(0).outcome(), "INVALID_ARGUMENT: node add: no such size");
}

TEST_F(ActivityTest, AFetchAndItsCompileMissOnce) {
  log_->FetchMissed(KeyOf("a"));
  log_->CompileMissed(KeyOf("a"));
  EXPECT_EQ(Snapshot().misses(), 1);
  log_->CompileMissed(KeyOf("a"));  // nobody fetched before this one
  EXPECT_EQ(Snapshot().misses(), 2);
  for (int rank = 0; rank < 8; ++rank) log_->FetchMissed(KeyOf("b"));
  for (int rank = 0; rank < 8; ++rank) log_->CompileMissed(KeyOf("b"));
  EXPECT_EQ(Snapshot().misses(), 10);
}

TEST_F(ActivityTest, LatenciesAndPointsAreOfTheLastFiveMinutes) {
  for (int i = 1; i <= 100; ++i) log_->Hit("default", absl::Microseconds(100 * i));
  v1::Activity activity = Snapshot();
  EXPECT_EQ(activity.hits(), 100);
  EXPECT_NEAR(activity.hit_latency().p50_ms(), 5.0, 0.2);
  EXPECT_NEAR(activity.hit_latency().p95_ms(), 9.5, 0.35);
  EXPECT_NEAR(activity.hit_latency().p99_ms(), 9.9, 0.35);
  ASSERT_EQ(activity.history_size(), 61);
  EXPECT_EQ(activity.history(60).hits(), 100);
  now_ += absl::Seconds(30);
  EXPECT_EQ(Snapshot().history(54).hits(), 100);
  now_ += absl::Seconds(300);
  activity = Snapshot();
  EXPECT_EQ(activity.hit_latency().count(), 0);
  EXPECT_EQ(activity.hits(), 100);
}

TEST_F(ActivityTest, EverythingIsBounded) {
  Make({.max_recent = 3, .max_slowest = 2, .max_request_bytes = 40'000, .max_tenants = 2});
  for (int i = 0; i < 10; ++i) {
    std::string name = absl::StrCat("g", i);
    Queue(i, name, absl::StrCat("tenant", i), 8000);
    log_->JobStarted(i);
    for (int span = 0; span < 1000; ++span) {
      log_->KernelDone(i, std::string(10'000, 'k'), std::string(10'000, 'o'), now_,
                       absl::Milliseconds(1));
    }
    log_->JobEnded(i, absl::OkStatus(), "compiled");
    log_->Hit(absl::StrCat("tenant", i), absl::Milliseconds(1));
  }
  v1::Activity activity = Snapshot();
  EXPECT_THAT(Graphs(activity.recent()), ElementsAre("g9", "g8", "g7"));
  EXPECT_EQ(activity.slowest_size(), 2);
  EXPECT_EQ(activity.hits(), 10);
  EXPECT_LE(activity.tenants_size(), 4);  // two of each list, and "other"
  v1::CompileRecord record;
  ASSERT_TRUE(log_->FindRecord(KeyOf("g9").ToHex(), record));
  EXPECT_LE(record.ByteSizeLong(), 300'000u);
  EXPECT_EQ(log_->FindRequest(KeyOf("g1").ToHex()), nullptr);
  EXPECT_NE(log_->FindRequest(KeyOf("g9").ToHex()), nullptr);
  Queue(100, "huge", "default", 20'000);  // more than its share
  log_->JobStarted(100);
  EXPECT_EQ(log_->FindRequest(KeyOf("huge").ToHex()), nullptr);
  EXPECT_NE(log_->FindRequest(KeyOf("g9").ToHex()), nullptr);
}

TEST_F(ActivityTest, WhatIsKeptOfARequestIsItsBytes) {
  Make({});
  auto request = std::make_shared<v1::CompileRequest>();
  request->mutable_graph()->set_name("a");
  log_->JobQueued(1, KeyOf("a"), request, {});
  log_->JobStarted(1);
  EXPECT_EQ(request.use_count(), 1) << "parsed, it takes ten times as much";
  auto kept = log_->FindRequest(KeyOf("a").ToHex());
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->SerializeAsString(), request->SerializeAsString());
}

TEST_F(ActivityTest, SmallRequestsAreNotWithoutEnd) {
  Make({.max_request_bytes = 10'000});
  for (int i = 0; i < 100; ++i) Run(i, absl::StrCat("g", i), absl::Seconds(1));
  EXPECT_EQ(log_->FindRequest(KeyOf("g79").ToHex()), nullptr);
  EXPECT_NE(log_->FindRequest(KeyOf("g99").ToHex()), nullptr);
}

TEST_F(ActivityTest, ALongNameIsCutBetweenCharacters) {
  std::string name;
  for (int i = 0; i < 200; ++i) name += "\u00e9";
  Queue(1, name);
  std::string shown = Snapshot().running(0).graph();
  EXPECT_THAT(shown, StartsWith("\u00e9\u00e9"));
  EXPECT_THAT(shown, EndsWith("\u00e9..."));
  EXPECT_LE(shown.size(), 303u);
}

TEST_F(ActivityTest, ThePagesOwnCompilesLeaveNoTrace) {
  Queue(1, "inside", kPageTenant);
  log_->JobStarted(1);
  EXPECT_EQ(Snapshot().running_size(), 1);
  now_ += absl::Seconds(5);
  log_->JobEnded(1, absl::OkStatus(), "compiled");
  v1::Activity activity = Snapshot();
  EXPECT_EQ(activity.recent_size() + activity.slowest_size(), 0);
  EXPECT_EQ(activity.compiles(), 0);
  EXPECT_EQ(log_->FindRequest(KeyOf("inside").ToHex()), nullptr);
}

TEST_F(ActivityTest, NewsOfUnknownJobsIsIgnored) {
  log_->JobStarted(1);
  log_->StageDone(1, "plan", now_, absl::Seconds(1));
  log_->JobEnded(1, absl::OkStatus(), "compiled");
  EXPECT_EQ(Snapshot().recent_size(), 0);
  Run(2, "a", absl::Seconds(1));
  log_->JobEnded(2, absl::CancelledError("late"), "");
  EXPECT_EQ(Snapshot().recent_size(), 1);
  EXPECT_EQ(Snapshot().failures(), 0);
}

TEST(ActivityThreadsTest, HitsOfManyThreadsAllCount) {
  ActivityLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&log, t] {
      for (int i = 0; i < 20'000; ++i) log.Hit(absl::StrCat("t", t % 3), absl::Microseconds(50));
    });
  }
  v1::Activity meanwhile;
  log.Snapshot(10, 10, meanwhile);
  for (std::thread& thread : threads) thread.join();
  v1::Activity activity;
  log.Snapshot(10, 10, activity);
  EXPECT_EQ(activity.hits(), 160'000);
  EXPECT_EQ(activity.tenants_size(), 3);
}

}  // namespace
}  // namespace kiln::server
