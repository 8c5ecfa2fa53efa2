// Workers that are told what to do, and a fixture with a broker over them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "cache/memory_store.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/key.h"
#include "server/calls/executor.h"
#include "server/jobs/broker.h"

namespace kiln::server {

inline constexpr absl::Duration kPatience = absl::Seconds(30);

inline absl::Status Death(v1::ErrorDetail::Reason reason) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  return WithDetail(absl::InternalError("a worker died"), detail);
}

// A kernel's key is its source's hash: equal sources are one kernel.
inline absl::StatusOr<Digest> FakeKernelKey(const v1::CompileKernelRequest& request) {
  return Sha256(request.source());
}

// Answers as a worker would. A graph's name lists its kernels: "k1,k2". Failures and delays are the
// test's choice.
class FakeWorkers final : public WorkerBackend {
 public:
  void Submit(WorkerTask task) override {
    absl::Status queued = executor_.Run([this, task = std::move(task)] { Run(task); });
    ASSERT_TRUE(queued.ok());
  }

  // The next `times` tasks whose name (a graph's, or a kernel's source) is `name` fail so.
  void FailNext(const std::string& name, absl::Status status, int times) {
    absl::MutexLock lock(&mu_);
    failures_[name] = {std::move(status), times};
  }
  // Tasks wait for Open from now on: all, or those of one name.
  void Close(const std::string& only = "") {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    closed_name_ = only;
  }
  void Open() {
    absl::MutexLock lock(&mu_);
    closed_ = false;
  }
  int Count(const std::string& name) {
    absl::MutexLock lock(&mu_);
    return counts_[name];
  }
  void AwaitCount(const std::string& name, int count) {
    absl::MutexLock lock(&mu_);
    auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return counts_[name] >= count; };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&reached), kPatience)) << name;
  }
  void AwaitStoppedTasks(int count) {
    absl::MutexLock lock(&mu_);
    auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopped_tasks_ >= count; };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&reached), kPatience));
  }
  int stopped_tasks() {
    absl::MutexLock lock(&mu_);
    return stopped_tasks_;
  }

 private:
  static std::string NameOf(const v1::WorkerRequest& request) {
    if (request.has_plan()) return request.plan().graph().name();
    if (request.has_compile_kernel()) return request.compile_kernel().source();
    return "link";
  }

  absl::Status Begin(const WorkerTask& task) {
    std::string name = NameOf(*task.request);
    absl::MutexLock lock(&mu_);
    ++counts_[name];
    while (closed_ && (closed_name_.empty() || closed_name_ == name) && !task.stopped())
      mu_.AwaitWithTimeout(
          absl::Condition(+[](bool* c) { return !*c; }, &closed_), absl::Milliseconds(5));
    if (task.stopped()) {
      ++stopped_tasks_;
      return absl::CancelledError("stopped");
    }
    auto it = failures_.find(name);
    if (it == failures_.end() || it->second.times == 0) return absl::OkStatus();
    --it->second.times;
    return it->second.status;
  }

  void Run(const WorkerTask& task) {
    if (absl::Status status = Begin(task); !status.ok()) return task.done(status);
    const v1::WorkerRequest& request = *task.request;
    v1::WorkerResponse response;
    if (request.has_plan()) {
      EXPECT_EQ(request.plan().device().processors(), 0) << "it is in no key";
      EXPECT_EQ(request.plan().options().optimization_level(), kDefaultOptimizationLevel);
      for (absl::string_view name :
           absl::StrSplit(request.plan().graph().name(), ',', absl::SkipEmpty())) {
        v1::KernelSource& kernel = *response.mutable_plan()->add_kernels();
        kernel.set_symbol(absl::StrCat("s_", name));
        kernel.set_source(std::string(name));
      }
      response.mutable_plan()->mutable_program()->add_steps()->mutable_library()->set_op("aten.x");
    } else if (request.has_compile_kernel()) {
      response.mutable_compile_kernel()->set_object("o:" + request.compile_kernel().source());
    } else {
      for (const std::string& object : request.link().objects()) {
        *response.mutable_link()->mutable_binary() += object + ";";
      }
    }
    task.done(std::move(response));
  }

  struct Failure {
    absl::Status status;
    int times = 0;
  };
  absl::Mutex mu_;
  std::map<std::string, Failure> failures_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::string closed_name_ ABSL_GUARDED_BY(mu_);
  int stopped_tasks_ ABSL_GUARDED_BY(mu_) = 0;
  Executor executor_{4, 1000};  // last: its threads end first
};

// One call that waits.
struct Waiter {
  absl::Notification done;
  absl::StatusOr<CompileAnswer> answer = absl::UnknownError("no answer");
  Broker::Ticket ticket;
  absl::Status refused;
  std::atomic<int> progress = 0;

  absl::StatusOr<v1::Artifact> Artifact() {
    if (!done.WaitForNotificationWithTimeout(kPatience)) return absl::UnknownError("too late");
    if (!answer.ok()) return answer.status();
    v1::Artifact artifact;
    if (!artifact.ParseFromString(answer->artifact->bytes)) return absl::DataLossError("bytes");
    return artifact;
  }
};

class BrokerTest : public ::testing::Test {
 protected:
  BrokerTest() { MakeBroker({.job_threads = 3}); }
  ~BrokerTest() override { workers_.Open(); }

  void MakeBroker(BrokerOptions options) {
    broker_.reset();
    broker_ = std::make_unique<Broker>(
        options,
        CompileJobContext{workers_, kernels_, *store_, *store_, metrics_, {"build"}, FakeKernelKey},
        store_.get());
  }

  std::shared_ptr<Waiter> Ask(const std::string& graph, const Caller& caller = {}) {
    return AskOf(*broker_, graph, caller);
  }

  static std::shared_ptr<Waiter> AskOf(Broker& broker, const std::string& graph,
                                       const Caller& caller = {}) {
    auto request = std::make_shared<v1::CompileRequest>();
    request->mutable_graph()->set_name(graph);
    request->mutable_device()->set_target(v1::TARGET_CPP);
    request->mutable_device()->set_processors(8);
    auto waiter = std::make_shared<Waiter>();
    CompileCallbacks callbacks;
    callbacks.progress = [waiter](const v1::Progress&) { ++waiter->progress; };
    callbacks.done = [waiter](const absl::StatusOr<CompileAnswer>& answer) {
      waiter->answer = answer;
      waiter->done.Notify();
    };
    auto ticket = broker.Join(Sha256("graph " + graph), request, caller, std::move(callbacks));
    waiter->refused = ticket.status();
    if (ticket.ok()) waiter->ticket = *ticket;
    return waiter;
  }

  std::unique_ptr<cache::Store> store_ = cache::MakeMemoryStore(1 << 24);
  Metrics metrics_{"v", "b"};
  FakeWorkers workers_;
  KernelCompiler kernels_{&workers_, store_.get(), store_.get()};
  std::unique_ptr<Broker> broker_;
};

}  // namespace kiln::server
