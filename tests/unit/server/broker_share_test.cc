// Who shares a job and its place: clients that come back, tenants, and servers on one tier.
#include <gmock/gmock.h>

#include <vector>

#include "tests/unit/server/broker_fixture.h"
#include "tests/unit/server/fake_leases.h"

namespace kiln::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ReattachTest = BrokerTest;

constexpr auto kMayReturn = Broker::Departure::kMayReturn;

TEST_F(ReattachTest, AClientThatLostItsConnectionFindsItsJobStillRunning) {
  workers_.Close();
  auto first = Ask("k1");
  workers_.AwaitCount("k1", 1);
  broker_->Leave(first->ticket, kMayReturn);
  EXPECT_EQ(broker_->Counts().running, 1);
  auto again = Ask("k1");
  workers_.Open();
  ASSERT_TRUE(again->Artifact().ok());
  EXPECT_EQ(again->answer->source, "compiled");
  EXPECT_EQ(workers_.Count("k1"), 2) << "its plan and its kernel, each once";
  EXPECT_EQ(workers_.stopped_tasks(), 0);
  EXPECT_EQ(again->ticket.job, first->ticket.job);
}

TEST_F(ReattachTest, AClientThatDoesNotComeBackStopsTheJobAfterTheGracePeriod) {
  MakeBroker({.reattach_grace = absl::Milliseconds(150)});
  workers_.Close();
  absl::Time start = absl::Now();
  auto first = Ask("k1");
  workers_.AwaitCount("k1", 1);
  broker_->Leave(first->ticket, kMayReturn);
  EXPECT_TRUE(broker_->WaitUntilIdle(kPatience));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(150));
}

TEST_F(ReattachTest, WhoDoesNotComeBackStopsTheJobWithoutAGracePeriod) {
  MakeBroker({.reattach_grace = absl::Hours(1)});
  workers_.Close();
  auto first = Ask("k1");
  workers_.AwaitCount("k1", 1);
  broker_->Leave(first->ticket);
  EXPECT_TRUE(broker_->WaitUntilIdle(kPatience));
}

TEST_F(ReattachTest, WhoComesBackAndLeavesForGoodStopsTheJob) {
  MakeBroker({.reattach_grace = absl::Hours(1)});
  workers_.Close();
  broker_->Leave(Ask("k1")->ticket, kMayReturn);
  broker_->Leave(Ask("k1")->ticket);
  EXPECT_TRUE(broker_->WaitUntilIdle(kPatience));
}

class TenantTest : public BrokerTest {
 protected:
  static Caller Of(const std::string& tenant, Priority priority = Priority::kInteractive) {
    Caller caller;
    caller.tenant = tenant;
    caller.priority = priority;
    return caller;
  }
  // The order in which jobs are done.
  std::shared_ptr<Waiter> AskInOrder(const std::string& graph, const Caller& caller) {
    auto request = std::make_shared<v1::CompileRequest>();
    request->mutable_graph()->set_name(graph);
    auto waiter = std::make_shared<Waiter>();
    CompileCallbacks callbacks;
    callbacks.progress = [](const v1::Progress&) {};
    callbacks.done = [this, waiter, graph](const absl::StatusOr<CompileAnswer>& answer) {
      {
        absl::MutexLock lock(&mu_);
        order_.push_back(graph);
      }
      waiter->answer = answer;
      waiter->done.Notify();
    };
    waiter->refused = broker_->Join(Sha256(graph), request, caller, std::move(callbacks)).status();
    return waiter;
  }
  absl::Mutex mu_;
  std::vector<std::string> order_ ABSL_GUARDED_BY(mu_);
};

TEST_F(TenantTest, TakeTurnsAndInteractiveGoesFirst) {
  MakeBroker({.job_threads = 1});
  workers_.Close();
  std::vector<std::shared_ptr<Waiter>> waiters = {AskInOrder("first", Of("a"))};
  workers_.AwaitCount("first", 1);
  for (const char* graph : {"a1", "a2", "a3"}) waiters.push_back(AskInOrder(graph, Of("a")));
  waiters.push_back(AskInOrder("w1", Of("c", Priority::kWarmup)));
  waiters.push_back(AskInOrder("b1", Of("b")));
  workers_.Open();
  for (auto& waiter : waiters) ASSERT_TRUE(waiter->Artifact().ok());
  absl::MutexLock lock(&mu_);
  EXPECT_THAT(order_, ElementsAre("first", "b1", "a1", "a2", "a3", "w1"));
}

TEST_F(TenantTest, OneTenantLeavesAJobThreadToTheOthers) {
  MakeBroker({.job_threads = 3});
  workers_.Close();
  std::vector<std::shared_ptr<Waiter>> waiters;
  for (const char* graph : {"a1", "a2", "a3", "a4"}) waiters.push_back(Ask(graph, Of("a")));
  workers_.AwaitCount("a1", 1);
  workers_.AwaitCount("a2", 1);
  waiters.push_back(Ask("b1", Of("b")));
  workers_.AwaitCount("b1", 1);  // while a's wait
  EXPECT_EQ(workers_.Count("a3"), 0);
  BrokerCounts counts = broker_->Counts();
  ASSERT_EQ(counts.tenants.size(), 2u);
  EXPECT_EQ(counts.tenants[0].running, 2);
  EXPECT_EQ(counts.tenants[0].queued, 2);
  EXPECT_EQ(counts.tenants[1].running, 1);
  EXPECT_THAT(metrics_.Render({.tenants = counts.tenants}),
              HasSubstr("kiln_tenant_jobs_queued{tenant=\"a\"} 2\n"));
  workers_.Open();
  for (auto& waiter : waiters) ASSERT_TRUE(waiter->Artifact().ok());
  EXPECT_THAT(metrics_.Render({}),
              HasSubstr("kiln_tenant_compiles_total{result=\"ok\",tenant=\"a\"} 4\n"));
}

TEST_F(TenantTest, AJobThatLosesItsPlaceToAnotherTenantsSaysWhenToComeAgain) {
  MakeBroker({.job_threads = 1, .max_queued_jobs = 2});
  workers_.Close();
  auto running = Ask("a0", Of("a"));
  workers_.AwaitCount("a0", 1);
  auto kept = Ask("a1", Of("a"));
  auto evicted = Ask("a2", Of("a"));
  auto other = Ask("b1", Of("b"));
  ASSERT_TRUE(other->refused.ok()) << other->refused;
  absl::Status status = evicted->Artifact().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GT(GetDetail(status)->retry_after_ms(), 0);
  EXPECT_EQ(broker_->Counts().waiters, 3);
  workers_.Open();
  for (auto& waiter : {running, kept, other}) EXPECT_TRUE(waiter->Artifact().ok());
  EXPECT_THAT(metrics_.Render({}),
              HasSubstr("kiln_tenant_refused_total{reason=\"evicted\",tenant=\"a\"} 1\n"));
}

// Two brokers on one store and one tier of leases: two servers.
class SharedTierTest : public BrokerTest {
 protected:
  std::unique_ptr<Broker> MakeServer(cache::Leases* leases) {
    BrokerOptions options = {.job_threads = 3};
    options.lease = {absl::Milliseconds(200), absl::Milliseconds(5), absl::Milliseconds(20)};
    return std::make_unique<Broker>(
        options,
        CompileJobContext{workers_, kernels_, *store_, *store_, metrics_, {"build"}, FakeKernelKey},
        store_.get(), leases);
  }
  FakeLeaseTier tier_;
  FakeLeases leases_a_{&tier_};
  FakeLeases leases_b_{&tier_};
  std::unique_ptr<Broker> a_ = MakeServer(&leases_a_);
  std::unique_ptr<Broker> b_ = MakeServer(&leases_b_);
};

TEST_F(SharedTierTest, TwoServersCompileAKeyOnce) {
  workers_.Close();
  auto on_a = AskOf(*a_, "k1,k2");
  workers_.AwaitCount("k1,k2", 1);
  std::vector<std::shared_ptr<Waiter>> on_b;
  for (int i = 0; i < 10; ++i) on_b.push_back(AskOf(*b_, "k1,k2"));
  absl::SleepFor(absl::Milliseconds(500));  // more than the ttl: the lease is renewed
  EXPECT_EQ(workers_.Count("k1,k2"), 1);
  workers_.Open();
  auto artifact = on_a->Artifact();
  ASSERT_TRUE(artifact.ok());
  for (auto& waiter : on_b) {
    ASSERT_TRUE(waiter->Artifact().ok());
    EXPECT_EQ(waiter->answer->artifact->digest, on_a->answer->artifact->digest);
    EXPECT_NE(waiter->answer->source, "compiled");
  }
  EXPECT_EQ(workers_.Count("k1,k2"), 1);
  EXPECT_EQ(workers_.Count("k1"), 1);
}

TEST_F(SharedTierTest, AWaitForAnotherServerTakesNoThread) {
  workers_.Close();
  std::vector<std::shared_ptr<Waiter>> waiters;
  for (const char* graph : {"g1", "g2"}) waiters.push_back(AskOf(*a_, graph));
  for (const char* graph : {"g1", "g2"}) workers_.AwaitCount(graph, 1);
  for (const char* graph : {"g1", "g2", "own"}) waiters.push_back(AskOf(*b_, graph));
  workers_.AwaitCount("own", 1);
  // Each asks for its lease once before it waits.
  const absl::Time end = absl::Now() + kPatience;
  while (b_->Counts().running > 1 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(b_->Counts().running, 1);
  EXPECT_EQ(b_->Counts().queued, 2);
  workers_.Open();
  for (auto& waiter : waiters) EXPECT_TRUE(waiter->Artifact().ok());
  EXPECT_TRUE(b_->WaitUntilIdle(kPatience));
  EXPECT_EQ(b_->Counts().queued, 0);
}

TEST_F(SharedTierTest, TheHoldersDeathCostsItsLease) {
  {
    absl::MutexLock lock(&tier_.mu);  // a third server held it, and is gone
    tier_.leases[Sha256("graph k1")] = {&tier_, absl::Now() + absl::Milliseconds(300)};
  }
  absl::Time start = absl::Now();
  auto waiter = AskOf(*a_, "k1");
  ASSERT_TRUE(waiter->Artifact().ok());
  EXPECT_EQ(waiter->answer->source, "compiled");
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(250));
  EXPECT_TRUE(a_->WaitUntilIdle(kPatience));
  absl::MutexLock lock(&tier_.mu);
  EXPECT_TRUE(tier_.leases.empty()) << "it is released at the end";
}

TEST_F(SharedTierTest, WithoutTheTierEachServerCompiles) {
  {
    absl::MutexLock lock(&tier_.mu);
    tier_.reachable = false;
  }
  EXPECT_TRUE(AskOf(*a_, "k1")->Artifact().ok());
}

TEST_F(SharedTierTest, AJobThatNobodyWaitsForAnyMoreLeavesNoLeaseBehind) {
  workers_.Close();
  auto on_a = AskOf(*a_, "k1");
  workers_.AwaitCount("k1", 1);
  auto on_b = AskOf(*b_, "k1");
  a_->Leave(on_a->ticket);
  EXPECT_TRUE(a_->WaitUntilIdle(kPatience));
  workers_.AwaitCount("k1", 2);  // b takes over
  b_->Leave(on_b->ticket);
  EXPECT_TRUE(b_->WaitUntilIdle(kPatience));
  absl::MutexLock lock(&tier_.mu);
  EXPECT_TRUE(tier_.leases.empty());
}

TEST_F(SharedTierTest, AParkedJobCanBeLeftAndTheServerEnd) {
  workers_.Close();
  auto on_a = AskOf(*a_, "k1");
  workers_.AwaitCount("k1", 1);
  auto on_b = AskOf(*b_, "k1");
  b_->Leave(on_b->ticket);
  EXPECT_TRUE(b_->WaitUntilIdle(kPatience));
  auto again = AskOf(*b_, "k1");
  b_.reset();
  EXPECT_TRUE(absl::IsCancelled(again->Artifact().status()));
  workers_.Open();
  EXPECT_TRUE(on_a->Artifact().ok());
}

}  // namespace
}  // namespace kiln::server
