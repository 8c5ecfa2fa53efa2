#include "tests/unit/server/broker_fixture.h"

#include <gmock/gmock.h>

#include <set>
#include <vector>

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

TEST_F(BrokerTest, BuildsAnArtifactOfLinkedKernels) {
  auto waiter = Ask("k1,k2");
  auto artifact = waiter->Artifact();
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(artifact->binary(), "o:k1;o:k2;");
  const v1::ArtifactHeader& header = artifact->header();
  EXPECT_EQ(header.format_version(), 1u);
  EXPECT_EQ(header.key(), Sha256("graph k1,k2").ToHex());
  EXPECT_EQ(header.compiler_build(), "build");
  EXPECT_EQ(header.library_steps(), 1);
  EXPECT_EQ(header.native_steps(), 0);
  ASSERT_EQ(header.kernels_size(), 2);
  EXPECT_EQ(header.kernels(1).symbol(), "s_k2");
  EXPECT_EQ(header.kernels(1).key(), Sha256("k2").ToHex());  // the server's, of the source
  EXPECT_EQ(header.kernels(1).object_digest(), Sha256("o:k2").ToHex());
  EXPECT_FALSE(header.kernels(1).cached());
  EXPECT_EQ(waiter->answer->source, "compiled");
  EXPECT_GT(waiter->progress, 0);
}

// Counts how kernels are looked up.
class CountingStore final : public cache::Store {
 public:
  explicit CountingStore(cache::Store* inner) : inner_(*inner) {}
  absl::StatusOr<cache::Found> Get(const cache::Key& key) override {
    if (key.kind == cache::EntryKind::kKernel) ++kernels_got;
    return inner_.Get(key);
  }
  std::vector<absl::StatusOr<cache::Found>> GetMany(absl::Span<const cache::Key> keys) override {
    sizes.push_back(keys.size());
    return inner_.GetMany(keys);
  }
  absl::Status Put(const cache::Key& key, const cache::EntryPtr& entry) override {
    return inner_.Put(key, entry);
  }
  absl::Status Remove(const cache::Key& key) override { return inner_.Remove(key); }
  void ForEach(const std::function<void(const cache::EntryInfo&)>& visit) override {
    inner_.ForEach(visit);
  }
  std::vector<cache::Usage> Usages() override { return inner_.Usages(); }

  std::vector<size_t> sizes;  // of GetMany; one job at a time
  std::atomic<int> kernels_got = 0;

 private:
  cache::Store& inner_;
};

TEST_F(BrokerTest, LooksAllKernelsOfAJobUpAtOnce) {
  CountingStore counting(store_.get());
  broker_.reset();
  broker_ = std::make_unique<Broker>(
      BrokerOptions{.job_threads = 1},
      CompileJobContext{workers_, kernels_, counting, *store_, metrics_, {"build"}, FakeKernelKey},
      store_.get());
  ASSERT_TRUE(Ask("k1,k2,k3")->Artifact().ok());
  auto second = Ask("k3,k4,k1")->Artifact();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(counting.sizes, ::testing::ElementsAre(3, 3));
  EXPECT_EQ(counting.kernels_got, 0);
  EXPECT_TRUE(second->header().kernels(0).cached());
  EXPECT_FALSE(second->header().kernels(1).cached());
  EXPECT_TRUE(second->header().kernels(2).cached());
}

TEST_F(BrokerTest, AGraphWithoutKernelsNeedsNoLinker) {
  auto artifact = Ask("")->Artifact();
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(artifact->binary(), "");
  EXPECT_EQ(workers_.Count("link"), 0);
}

TEST_F(BrokerTest, WaitersOfOneKeyShareOneJob) {
  workers_.Close();
  std::vector<std::shared_ptr<Waiter>> waiters;
  for (int i = 0; i < 50; ++i) waiters.push_back(Ask("k1,k2"));
  EXPECT_EQ(broker_->Counts().waiters, 50);
  workers_.Open();
  std::map<std::string, int> sources;
  std::set<Digest> digests;
  for (auto& waiter : waiters) {
    ASSERT_TRUE(waiter->Artifact().ok());
    ++sources[std::string(waiter->answer->source)];
    digests.insert(waiter->answer->artifact->digest);
  }
  EXPECT_EQ(sources["compiled"], 1);
  EXPECT_EQ(sources["coalesced"], 49);
  EXPECT_EQ(digests.size(), 1u);
  EXPECT_EQ(workers_.Count("k1"), 1);
  EXPECT_THAT(metrics_.Render({}), HasSubstr("kiln_jobs_coalesced_total 49\n"));
}

TEST_F(BrokerTest, AJobThatEndedJustBeforeIsNotRepeated) {
  ASSERT_TRUE(Ask("k1,k2")->Artifact().ok());
  auto again = Ask("k1,k2");
  ASSERT_TRUE(again->Artifact().ok());
  EXPECT_EQ(again->answer->source, "memory");
  EXPECT_EQ(workers_.Count("k1"), 1);
}

TEST_F(BrokerTest, OnlyKernelsThatNoCacheHasAreCompiled) {
  ASSERT_TRUE(Ask("k1,k2")->Artifact().ok());
  auto artifact = Ask("k1,k2,k3")->Artifact();
  ASSERT_TRUE(artifact.ok());
  EXPECT_EQ(artifact->binary(), "o:k1;o:k2;o:k3;");
  EXPECT_TRUE(artifact->header().kernels(0).cached());
  EXPECT_FALSE(artifact->header().kernels(2).cached());
  EXPECT_EQ(workers_.Count("k1"), 1);
  EXPECT_EQ(workers_.Count("k3"), 1);
}

TEST_F(BrokerTest, TwoJobsThatNeedOneKernelAtOnceCompileItOnce) {
  workers_.Close("shared");
  auto first = Ask("shared,a");
  auto second = Ask("shared,b");
  // Both have asked for all their kernels.
  workers_.AwaitCount("a", 1);
  workers_.AwaitCount("b", 1);
  workers_.Open();
  EXPECT_EQ(first->Artifact().value().binary(), "o:shared;o:a;");
  EXPECT_EQ(second->Artifact().value().binary(), "o:shared;o:b;");
  EXPECT_EQ(workers_.Count("shared"), 1);
  EXPECT_THAT(metrics_.Render({}), ::testing::ContainsRegex("kiln_kernels_compiled_total.* 3\n"))
      << "one of them for both jobs";
}

TEST_F(BrokerTest, TheLastWaitersLeavingStopsTheJob) {
  workers_.Close();
  auto first = Ask("k1");
  auto second = Ask("k1");
  workers_.AwaitCount("k1", 1);  // the plan: the graph is called as its kernel
  broker_->Leave(first->ticket);
  EXPECT_EQ(broker_->Counts().waiters, 1);
  broker_->Leave(second->ticket);
  EXPECT_TRUE(broker_->WaitUntilIdle(kPatience));
  EXPECT_EQ(broker_->Counts().waiters, 0);
  workers_.Open();
  auto third = Ask("k1");
  EXPECT_TRUE(third->Artifact().ok());
  workers_.AwaitStoppedTasks(1);
  EXPECT_EQ(workers_.stopped_tasks(), 1);
  EXPECT_FALSE(first->done.HasBeenNotified());
}

TEST_F(BrokerTest, AWaiterThatLeavesDoesNotDisturbTheOthers) {
  workers_.Close();
  auto leader = Ask("k1,k2");
  auto other = Ask("k1,k2");
  broker_->Leave(leader->ticket);
  workers_.Open();
  EXPECT_TRUE(other->Artifact().ok());
  EXPECT_FALSE(leader->done.HasBeenNotified());
}

TEST_F(BrokerTest, ACrashIsRetriedOnce) {
  workers_.FailNext("k1", Death(v1::ErrorDetail::REASON_WORKER_CRASHED), 1);
  EXPECT_TRUE(Ask("a,k1,b")->Artifact().ok());
  EXPECT_EQ(workers_.Count("k1"), 2);
  workers_.FailNext("p,q", Death(v1::ErrorDetail::REASON_WORKER_CRASHED), 1);
  EXPECT_TRUE(Ask("p,q")->Artifact().ok());
  workers_.FailNext("link", Death(v1::ErrorDetail::REASON_WORKER_CRASHED), 1);
  EXPECT_TRUE(Ask("r,s")->Artifact().ok());
}

TEST_F(BrokerTest, AGraphThatCrashesTwiceFailsTypedAndIsRefused) {
  workers_.FailNext("k1", Death(v1::ErrorDetail::REASON_WORKER_CRASHED), 100);
  absl::Status status = Ask("a,k1")->Artifact().status();
  EXPECT_EQ(GetDetail(status)->reason(), v1::ErrorDetail::REASON_WORKER_CRASHED);
  EXPECT_EQ(workers_.Count("k1"), 2);
  ASSERT_TRUE(broker_->WaitUntilIdle(kPatience));
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask("a,k1")->refused));
  EXPECT_EQ(workers_.Count("k1"), 2);
  EXPECT_TRUE(Ask("a,b")->Artifact().ok());
}

TEST_F(BrokerTest, ATimeoutIsNotRetriedAndTheGraphIsRefused) {
  workers_.FailNext("k1", Death(v1::ErrorDetail::REASON_WORKER_TIMEOUT), 1);
  absl::Status status = Ask("a,k1")->Artifact().status();
  EXPECT_EQ(GetDetail(status)->reason(), v1::ErrorDetail::REASON_WORKER_TIMEOUT);
  EXPECT_EQ(workers_.Count("k1"), 1);
  ASSERT_TRUE(broker_->WaitUntilIdle(kPatience));
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask("a,k1")->refused));
  EXPECT_EQ(broker_->ClearRefusals(), 1);
  EXPECT_TRUE(Ask("a,k1")->Artifact().ok());
}

TEST_F(BrokerTest, ABadGraphsErrorReachesTheWaiterAndKillsNothing) {
  workers_.FailNext("bad", BadGraphError("n7", "aten.add", "it is odd", "an even one"), 100);
  for (int i = 0; i < 3; ++i) {
    absl::Status status = Ask("bad")->Artifact().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(GetDetail(status)->node(), "n7");
  }
}

TEST_F(BrokerTest, AFullQueueRefusesWithAHintAndServesAgainLater) {
  MakeBroker({.job_threads = 1, .max_queued_jobs = 2});
  workers_.Close();
  auto running = Ask("g0");
  workers_.AwaitCount("g0", 1);
  auto queued1 = Ask("g1");
  auto queued2 = Ask("g2");
  auto refused = Ask("g3");
  EXPECT_TRUE(absl::IsResourceExhausted(refused->refused)) << refused->refused;
  EXPECT_EQ(GetDetail(refused->refused)->reason(), v1::ErrorDetail::REASON_QUEUE_FULL);
  EXPECT_GT(GetDetail(refused->refused)->retry_after_ms(), 0);
  auto joins = Ask("g2");
  EXPECT_TRUE(joins->refused.ok());
  broker_->Leave(queued1->ticket);  // a queued job that nobody wants gives its place back
  EXPECT_EQ(broker_->Counts().queued, 1);
  workers_.Open();
  for (auto& waiter : {running, queued2, joins}) EXPECT_TRUE(waiter->Artifact().ok());
}

TEST_F(BrokerTest, ADrainFinishesWhatRunsAndRefusesTheRest) {
  workers_.Close();
  auto running = Ask("k1");
  broker_->StartDrain();
  absl::Status refused = Ask("k2")->refused;
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(GetDetail(refused)->reason(), v1::ErrorDetail::REASON_DRAINING);
  auto joins = Ask("k1");
  EXPECT_FALSE(broker_->WaitUntilIdle(absl::Milliseconds(20)));
  workers_.Open();
  EXPECT_TRUE(broker_->WaitUntilIdle(kPatience));
  EXPECT_TRUE(running->done.HasBeenNotified());
  EXPECT_TRUE(joins->Artifact().ok());
}

TEST_F(BrokerTest, DestructionAnswersEveryWaiter) {
  workers_.Close();
  auto running = Ask("k1");
  auto queued = Ask("k2");
  broker_.reset();
  EXPECT_TRUE(absl::IsCancelled(running->Artifact().status()));
  EXPECT_TRUE(absl::IsCancelled(queued->Artifact().status()));
}

TEST_F(BrokerTest, AKernelCompiledSinceItsJobLookedIsNotCompiledAgain) {
  // Jobs look here, where none of their kernels ever is: each compile comes after the look.
  auto stale = cache::MakeMemoryStore(1 << 24);
  broker_ = std::make_unique<Broker>(
      BrokerOptions{},
      CompileJobContext{workers_, kernels_, *stale, *stale, metrics_, {"build"}, FakeKernelKey},
      stale.get());
  EXPECT_EQ(Ask("k1,k2")->Artifact().value().binary(), "o:k1;o:k2;");
  EXPECT_EQ(Ask("k2,k3")->Artifact().value().binary(), "o:k2;o:k3;");
  EXPECT_EQ(workers_.Count("k2"), 1);
  EXPECT_EQ(workers_.Count("k3"), 1);
  broker_.reset();
}

TEST_F(BrokerTest, AStoreWithNoRoomDoesNotFailTheCompile) {
  auto full = cache::MakeMemoryStore(1);
  KernelCompiler kernels(&workers_, full.get(), full.get());
  broker_ = std::make_unique<Broker>(
      BrokerOptions{},
      CompileJobContext{workers_, kernels, *full, *full, metrics_, {"build"}, FakeKernelKey},
      full.get());
  EXPECT_EQ(Ask("k1,k2")->Artifact().value().binary(), "o:k1;o:k2;");
  broker_.reset();
}

// Makes machine code at once.
class FakeAssembler final : public WorkerBackend {
 public:
  void Submit(WorkerTask task) override {
    EXPECT_FALSE(task.stopped());
    v1::WorkerResponse response;
    response.mutable_assemble()->set_cubin("code of " + task.request->assemble().ptx());
    task.done(response);
  }
};

TEST_F(BrokerTest, AKernelSaysWhenItWasCompiledAndWhenItsCubinWasBegun) {
  auto store = cache::MakeMemoryStore(1 << 20);
  FakeAssembler assembler;
  KernelCompiler kernels(&workers_, store.get(), store.get(), {.workers = &assembler});
  auto request = std::make_shared<v1::WorkerRequest>();
  request->mutable_compile_kernel()->set_source("k1");
  v1::Device& device = *request->mutable_compile_kernel()->mutable_device();
  device.set_target(v1::TARGET_PTX);
  device.add_binary_formats()->set_kind(v1::BINARY_KIND_CUBIN);
  const auto compile = [&] {
    auto done = std::make_shared<absl::Notification>();
    auto outcome = std::make_shared<KernelOutcome>();
    KernelRequest kernel;
    kernel.key = Sha256("k1");
    kernel.request = request;
    kernel.stopped = [] { return false; };
    kernel.done = [=](const KernelOutcome& found) {
      *outcome = found;
      done->Notify();
    };
    kernels.Compile(std::move(kernel));
    EXPECT_TRUE(done->WaitForNotificationWithTimeout(kPatience));
    return *outcome;
  };
  const absl::Time begin = absl::Now();
  const KernelOutcome made = compile();
  ASSERT_TRUE(made.kernel.ok()) << made.kernel.status();
  EXPECT_EQ(made.kernel->response->compile_kernel().cubin(), "code of o:k1");
  EXPECT_LE(begin, made.kernel->compiled - absl::Nanoseconds(made.kernel->compile_ns));
  EXPECT_LE(made.kernel->compiled, made.kernel->assembling);
  EXPECT_LE(made.kernel->assembling, absl::Now());
  const KernelOutcome kept = compile();
  ASSERT_TRUE(kept.kernel.ok()) << kept.kernel.status();
  EXPECT_TRUE(kept.joined);
  EXPECT_EQ(kept.kernel->assembling, absl::InfiniteFuture());
}

}  // namespace
}  // namespace kiln::server
