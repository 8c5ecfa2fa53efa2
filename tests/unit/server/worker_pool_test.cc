#include "server/workers/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/error_detail.h"

namespace kiln::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

class WorkerPoolTest : public ::testing::Test {
 protected:
  WorkerPoolOptions Options(int workers) {
    WorkerPoolOptions options;
    options.workers = workers;
    options.limits = {int64_t{4} << 30, kPatience};
    options.command = {KILN_FAKE_WORKER};
    options.on_exit = [this](ExitReason reason) {
      absl::MutexLock lock(&mu_);
      exits_.push_back(reason);
    };
    return options;
  }

  void MakePool(const WorkerPoolOptions& options) {
    pool_ = std::make_unique<WorkerPool>(options);
    ASSERT_TRUE(pool_->WaitUntilReady(kPatience));
  }
  void MakePool(int workers, absl::Duration timeout = kPatience,
                int64_t memory_bytes = int64_t{4} << 30) {
    WorkerPoolOptions options = Options(workers);
    options.limits = {memory_bytes, timeout};
    MakePool(options);
  }
  // One worker, and `standby` processes that wait, for kernels of `arch` at first.
  void MakePoolWithStandby(int standby, const std::string& arch) {
    WorkerPoolOptions options = Options(1);
    options.standby = standby;
    if (!arch.empty()) options.first_kind.mutable_device()->set_arch(arch);
    MakePool(options);
    if (!arch.empty()) EXPECT_TRUE(HasChildren(1 + standby));
  }

  static WorkerTask MakeTask(const std::string& source, const std::string& arch = "") {
    auto request = std::make_shared<v1::WorkerRequest>();
    request->mutable_compile_kernel()->set_source(source);
    if (!arch.empty()) request->mutable_compile_kernel()->mutable_device()->set_arch(arch);
    WorkerTask task;
    task.request = std::move(request);
    task.stopped = [] { return false; };
    return task;
  }

  absl::StatusOr<std::string> Run(WorkerTask task) {
    absl::Notification done;
    absl::StatusOr<std::string> result = absl::InternalError("no answer");
    task.done = [&](absl::StatusOr<v1::WorkerResponse> response) {
      if (response.ok()) {
        result = response->compile_kernel().object();
      } else {
        result = response.status();
      }
      done.Notify();
    };
    pool_->Submit(std::move(task));
    if (!done.WaitForNotificationWithTimeout(kPatience)) return absl::UnknownError("too late");
    return result;
  }
  absl::StatusOr<std::string> Run(const std::string& source) { return Run(MakeTask(source)); }

  std::vector<ExitReason> exits() {
    absl::MutexLock lock(&mu_);
    return exits_;
  }

  // Processes of this one, those included that ended and that nobody waited for.
  static std::set<pid_t> Children() {
    std::set<pid_t> children;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "children");
      for (pid_t pid = 0; file >> pid;) children.insert(pid);
    }
    return children;
  }

  // The one of them that leads a process group.
  static pid_t Worker() {
    for (pid_t pid : Children()) {
      if (getpgid(pid) == pid) return pid;
    }
    return 0;
  }

  // Whether there are so many, soon.
  static bool HasChildren(size_t count) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (Children().size() != count && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    return Children().size() == count;
  }

  // The slot serves again within a second of its worker's death; a busy machine may take longer.
  void ExpectBackSoon() {
    absl::Time start = absl::Now();
    EXPECT_EQ(Run("echo back").value_or("nothing"), "back");
    EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  }

  absl::Mutex mu_;
  std::vector<ExitReason> exits_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<WorkerPool> pool_;
};

v1::ErrorDetail::Reason ReasonOf(const absl::Status& status) {
  auto detail = GetDetail(status);
  return detail ? detail->reason() : v1::ErrorDetail::REASON_UNSPECIFIED;
}

TEST_F(WorkerPoolTest, AnswersTasks) {
  MakePool(2);
  EXPECT_EQ(Run("echo hello").value(), "hello");
  std::string large(20 << 20, 'x');
  EXPECT_EQ(Run("echo " + large).value(), large);
}

TEST_F(WorkerPoolTest, PassesAWorkersOwnErrorOnWithItsDetail) {
  MakePool(1);
  absl::Status status = Run("fail").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(GetDetail(status)->node(), "n1");
  EXPECT_FALSE(IsWorkerDeath(status));
  EXPECT_TRUE(exits().empty());
}

TEST_F(WorkerPoolTest, ACrashIsATypedErrorAndTheSlotComesBack) {
  MakePool(1);
  absl::Status status = Run("crash").status();
  EXPECT_TRUE(IsWorkerCrash(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("signal 11"));
  ExpectBackSoon();
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kCrash));
}

TEST_F(WorkerPoolTest, AWorkerThatExitsByItselfCrashed) {
  MakePool(1);
  EXPECT_TRUE(IsWorkerCrash(Run("exit").status()));
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kCrash));
}

TEST_F(WorkerPoolTest, AHangingWorkerIsKilledAtItsLimit) {
  MakePool(1, absl::Milliseconds(300));
  absl::Time start = absl::Now();
  absl::Status status = Run("hang").status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(ReasonOf(status), v1::ErrorDetail::REASON_WORKER_TIMEOUT);
  EXPECT_FALSE(IsWorkerCrash(status));
  ExpectBackSoon();
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kTimeout));
}

TEST_F(WorkerPoolTest, AWorkerOverItsProcessorTimeCountsAsATimeout) {
  MakePool(1);
  EXPECT_EQ(ReasonOf(Run("spin").status()), v1::ErrorDetail::REASON_WORKER_TIMEOUT);
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kTimeout));
}

TEST_F(WorkerPoolTest, AWorkerThatAllocatesWithoutEndIsKilled) {
  MakePool(1, kPatience, int64_t{128} << 20);
  EXPECT_EQ(ReasonOf(Run("allocate").status()), v1::ErrorDetail::REASON_WORKER_MEMORY);
  ExpectBackSoon();
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kMemory));
}

TEST_F(WorkerPoolTest, AStoppedTaskEndsSoonAndCountsAsNormal) {
  MakePool(1);
  std::atomic<bool> stop = false;
  WorkerTask task = MakeTask("hang");
  task.stopped = [&] { return stop.exchange(true); };  // true from the second look on
  absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsCancelled(Run(std::move(task)).status()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  ExpectBackSoon();
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kNormal));
}

TEST_F(WorkerPoolTest, ATaskThatEndsCostsItsWorkerNothing) {
  MakePool(1);
  const std::set<pid_t> before = Children();
  ASSERT_EQ(before.size(), 1u);
  for (const char* order : {"echo once", "fail", "crash", "exit"}) {
    Run(order).status().IgnoreError();  // that it ends is enough
    EXPECT_EQ(Children(), before) << "after " << order;
  }
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kCrash, ExitReason::kCrash));
}

TEST_F(WorkerPoolTest, WhatATaskLeavesBehindIsGoneForTheNext) {
  MakePool(1);
  EXPECT_EQ(Run("remember poison").value(), "poison");
  EXPECT_EQ(Run("recall").value(), "nothing");
  // A second answer, in the hope that it is taken for another request's.
  EXPECT_EQ(Run("answer-twice lie").value(), "lie");
  EXPECT_EQ(Run("echo own").value(), "own");
  EXPECT_TRUE(exits().empty());
}

TEST_F(WorkerPoolTest, AnAnswerToAnotherQuestionIsNone) {
  MakePool(1);
  absl::Status status = Run("answer-a-plan").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none to its request"));
  ExpectBackSoon();
}

TEST_F(WorkerPoolTest, ATaskThatClosesItsSocketAndStaysIsKilled) {
  MakePool(1);
  absl::Time start = absl::Now();
  EXPECT_TRUE(IsWorkerCrash(Run("hang-up").status()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  ExpectBackSoon();
  EXPECT_EQ(Children().size(), 1u);
}

TEST_F(WorkerPoolTest, AWorkerGetsReadyForADeviceBeforeItForks) {
  MakePool(1);
  EXPECT_EQ(Run(MakeTask("prepared-for", "znver4")).value(), "znver4");
  EXPECT_TRUE(exits().empty());
  // It dies of that: the task's fault.
  EXPECT_TRUE(IsWorkerCrash(Run(MakeTask("echo", "crash")).status()));
  ExpectBackSoon();
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kCrash));
}

TEST_F(WorkerPoolTest, AWorkersDeathLeavesNoTaskOfItBehind) {
  MakePool(1);
  const std::set<pid_t> before = Children();
  absl::Notification done;
  WorkerTask task = MakeTask("hang");
  std::atomic<bool> stop = false;
  task.stopped = [&] { return stop.load(); };
  task.done = [&](const auto&) { done.Notify(); };
  pool_->Submit(std::move(task));
  while (Children().size() < 2) absl::SleepFor(absl::Milliseconds(2));
  for (pid_t worker : before) kill(worker, SIGKILL);
  stop = true;
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(Run("echo back").value(), "back");
  EXPECT_EQ(Children().size(), 1u);
  EXPECT_NE(Children(), before);
  pool_.reset();
  EXPECT_EQ(Children().size(), 0u);
}

TEST_F(WorkerPoolTest, ProcessesWaitForKernelsOfTheLastKind) {
  MakePoolWithStandby(3, "znver4");
  EXPECT_EQ(Run(MakeTask("warmed-up-for", "znver4")).value(), "znver4");
  EXPECT_EQ(Run(MakeTask("warmed-up-for", "znver5")).value(), "");  // one of its own
  // It is the last kind now: in time all that wait are for it.
  int in_a_row = 0;
  for (const absl::Time give_up = absl::Now() + kPatience; absl::Now() < give_up;) {
    absl::SleepFor(absl::Milliseconds(100));
    for (in_a_row = 0; in_a_row < 3; ++in_a_row) {
      if (Run(MakeTask("warmed-up-for", "znver5")).value() != "znver5") break;
    }
    if (in_a_row == 3) break;
  }
  EXPECT_EQ(in_a_row, 3);
  EXPECT_TRUE(exits().empty());
  pool_.reset();
  EXPECT_EQ(Children().size(), 0u);
}

TEST_F(WorkerPoolTest, ATaskOfNoKindTakesAnyProcessThatWaits) {
  MakePoolWithStandby(2, "znver4");
  const std::set<pid_t> before = Children();
  auto request = std::make_shared<v1::WorkerRequest>();
  request->mutable_interpret();
  WorkerTask task;
  task.request = request;
  task.stopped = [] { return false; };
  std::set<pid_t> meanwhile;
  task.on_event = [&](const v1::WorkerResponse&) {
    meanwhile = Children();
    return absl::OkStatus();
  };
  ASSERT_TRUE(Run(std::move(task)).ok());
  EXPECT_EQ(meanwhile, before);
}

TEST_F(WorkerPoolTest, AProcessThatWaitedServesOneTask) {
  MakePoolWithStandby(2, "znver4");
  EXPECT_EQ(Run(MakeTask("remember me", "znver4")).value(), "me");
  EXPECT_EQ(Run(MakeTask("recall", "znver4")).value(), "nothing");
}

TEST_F(WorkerPoolTest, AProcessKilledWhileItWaitsIsNoTasksFault) {
  MakePoolWithStandby(2, "znver4");
  for (pid_t pid : Children()) {
    if (pid == Worker()) continue;
    kill(pid, SIGKILL);
    siginfo_t info = {};
    waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  }
  EXPECT_EQ(Run(MakeTask("echo hello", "znver4")).value_or("nothing"), "hello");
  EXPECT_TRUE(exits().empty());
}

TEST_F(WorkerPoolTest, AWorkersDeathEndsWhatWaits) {
  MakePoolWithStandby(2, "znver4");
  const std::set<pid_t> before = Children();
  kill(Worker(), SIGKILL);
  EXPECT_EQ(Run(MakeTask("echo back", "znver4")).value_or("nothing"), "back");
  EXPECT_TRUE(HasChildren(3));
  for (pid_t pid : Children()) EXPECT_EQ(before.count(pid), 0u);
  pool_.reset();
  EXPECT_EQ(Children().size(), 0u);
}

TEST_F(WorkerPoolTest, AKindThatEndsItsWorkerIsNotWaitedFor) {
  MakePoolWithStandby(2, "");
  EXPECT_TRUE(IsWorkerCrash(Run(MakeTask("echo", "crash")).status()));
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(Run(MakeTask("echo hello", "znver4")).value(), "hello");
  EXPECT_THAT(exits(), ElementsAre(ExitReason::kCrash));
  EXPECT_TRUE(HasChildren(3));
}

TEST_F(WorkerPoolTest, OneJobsHeaviestTaskGoesFirstAndOlderJobsBefore) {
  MakePool(1);
  absl::Mutex mu;
  std::vector<std::string> order;
  absl::Notification blocked, all;
  WorkerTask blocker = MakeTask("echo blocker");
  blocker.stopped = [&] {
    blocked.WaitForNotificationWithTimeout(kPatience);  // until every other task is queued
    return false;
  };
  blocker.done = [](const auto&) {};
  pool_->Submit(std::move(blocker));
  struct {
    int64_t job, weight;
  } tasks[] = {{2, 900}, {1, 10}, {1, 30}, {1, 20}};
  for (auto [job, weight] : tasks) {
    WorkerTask task = MakeTask(absl::StrCat("echo ", job, "/", weight));
    task.job = job;
    task.weight = weight;
    task.done = [&](absl::StatusOr<v1::WorkerResponse> response) {
      absl::MutexLock lock(&mu);
      order.push_back(response.ok() ? response->compile_kernel().object() : "error");
      if (order.size() == 4) all.Notify();
    };
    pool_->Submit(std::move(task));
  }
  blocked.Notify();
  ASSERT_TRUE(all.WaitForNotificationWithTimeout(kPatience));
  absl::MutexLock lock(&mu);
  EXPECT_THAT(order, ElementsAre("1/30", "1/20", "1/10", "2/900"));
}

TEST_F(WorkerPoolTest, EventsComeInOrderBeforeTheEnd) {
  MakePool(1);
  auto request = std::make_shared<v1::WorkerRequest>();
  request->mutable_interpret();
  WorkerTask task;
  task.request = request;
  task.stopped = [] { return false; };
  std::vector<int> events;
  task.on_event = [&](const v1::WorkerResponse& response) {
    events.push_back(response.interpret().index());
    return absl::OkStatus();
  };
  ASSERT_TRUE(Run(std::move(task)).ok());
  EXPECT_THAT(events, ElementsAre(0, 1, 2));
}

TEST_F(WorkerPoolTest, DestructionAnswersQueuedAndRunningTasks) {
  MakePool(1);
  std::atomic<int> cancelled = 0;
  for (int i = 0; i < 3; ++i) {
    WorkerTask task = MakeTask("hang");
    task.done = [&](absl::StatusOr<v1::WorkerResponse> response) {
      if (absl::IsCancelled(response.status())) ++cancelled;
    };
    pool_->Submit(std::move(task));
  }
  pool_.reset();
  EXPECT_EQ(cancelled, 3);
}

TEST_F(WorkerPoolTest, WorkersThatAreNotConfinedAreCountedOrRefused) {
  WorkerPoolOptions options;
  options.workers = 1;
  options.command = {KILN_FAKE_WORKER, "half-isolated"};
  {
    WorkerPool pool(options);
    EXPECT_TRUE(pool.WaitUntilReady(kPatience));
    EXPECT_EQ(pool.Counts().isolation_gaps, 2);  // of the worker and of its task
  }
  options.require_isolation = true;
  WorkerPool pool(options);
  EXPECT_FALSE(pool.WaitUntilReady(absl::InfiniteDuration()));
  EXPECT_EQ(pool.Counts().isolation_gaps, 2);
  EXPECT_EQ(pool.Counts().idle, 0);
}

TEST_F(WorkerPoolTest, AProgramThatDoesNotStartLeavesThePoolNotReady) {
  WorkerPoolOptions options;
  options.workers = 1;
  options.command = {"/nonexistent/worker"};
  WorkerPool pool(options);
  EXPECT_FALSE(pool.WaitUntilReady(absl::Milliseconds(200)));
  EXPECT_EQ(pool.Counts().starting, 1);
}

}  // namespace
}  // namespace kiln::server
