#include "server/calls/interpret_call.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/status_macros.h"
#include "server/calls/call.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxQueuedEvents = 8;  // of at most 1 MiB: the worker waits for a slow client

class InterpretCall final : public grpc::ServerWriteReactor<v1::InterpretEvent>,
                            public std::enable_shared_from_this<InterpretCall> {
 public:
  InterpretCall(const ServiceContext& service, grpc::CallbackServerContext* context)
      : service_(service), call_("Interpret", context, service.metrics) {}

  static grpc::ServerWriteReactor<v1::InterpretEvent>* Start(const ServiceContext& service,
                                                             grpc::CallbackServerContext* context,
                                                             const v1::InterpretRequest& request) {
    auto call = std::make_shared<InterpretCall>(service, context);
    call->self_ = call;
    absl::Status started = call->Admit(request);
    if (started.ok()) {
      started = service.background.Run([call, &request] {
        call->Begin(request);
        call->LetEnd();
      });
    }
    if (!started.ok()) {
      call->SetEnd(started);
      call->LetEnd();
    }
    return call.get();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) End(absl::CancelledError("the client has gone"));
    }
    Pump();
  }
  void OnCancel() override {
    {
      absl::MutexLock lock(&mu_);
      End(absl::CancelledError("the client has gone or its deadline has passed"));
    }
    Pump();
  }
  void OnDone() override { std::shared_ptr<InterpretCall> last = std::move(self_); }

 private:
  absl::Status Admit(const v1::InterpretRequest& request) {
    absl::MutexLock lock(&mu_);
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    const std::string& tenant = call_.caller().tenant;
    KILN_ASSIGN_OR_RETURN(place_, service_.admission.Enter(CallKind::kInterpret, tenant));
    KILN_ASSIGN_OR_RETURN(
        request_place_,
        service_.admission.Hold(static_cast<int64_t>(request.ByteSizeLong()), tenant));
    return absl::OkStatus();
  }

  // As CompileCall's: the call does not end, and `request` with it, before LetEnd.
  void Begin(const v1::InterpretRequest& request) {
    if (absl::Status status = service_.check_graph(request.graph()); !status.ok()) {
      return SetEnd(status);
    }
    auto worker_request = std::make_shared<v1::WorkerRequest>();
    worker_request->mutable_interpret()->Swap(const_cast<v1::InterpretRequest*>(&request));
    auto call = shared_from_this();
    WorkerTask task;
    task.request = std::move(worker_request);
    task.stopped = [call] { return call->ended(); };
    task.on_event = [call](const v1::WorkerResponse& response) {
      return call->Queue(response.interpret());
    };
    task.done = [call](absl::StatusOr<v1::WorkerResponse> response) {
      call->SetEnd(response.status());
    };
    service_.workers.Submit(std::move(task));
  }

  void LetEnd() {
    {
      absl::MutexLock lock(&mu_);
      beginning_ = false;
    }
    Pump();
  }
  bool ended() {
    absl::MutexLock lock(&mu_);
    return end_.has_value();
  }
  bool HasRoom() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return end_.has_value() || events_.size() < kMaxQueuedEvents;
  }
  // An error drops what is queued; success lets it go out first.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (end_) return;
    end_ = status;
    if (!status.ok()) events_.clear();
  }
  void SetEnd(const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      End(status);
    }
    Pump();
  }

  // On a worker's thread.
  absl::Status Queue(const v1::InterpretEvent& event) {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &InterpretCall::HasRoom));
      if (end_) return absl::CancelledError("the client has gone");
      events_.push_back(event);
    }
    Pump();
    return absl::OkStatus();
  }

  // As CompileCall's.
  void Pump() {
    std::optional<grpc::Status> status;
    {
      absl::MutexLock lock(&mu_);
      if (beginning_ || writing_ || finished_) return;
      if (!events_.empty()) {
        event_ = std::move(events_.front());
        events_.pop_front();
        writing_ = true;
      } else if (end_) {
        finished_ = true;
        status = call_.End(*end_);
      } else {
        return;
      }
    }
    if (status) {
      Finish(*std::move(status));
    } else {
      StartWrite(&event_);
    }
  }

  const ServiceContext& service_;
  // Set before the call is shared.
  Admission::Place place_;
  Admission::Place request_place_;
  absl::Mutex mu_;
  std::shared_ptr<InterpretCall> self_;  // gRPC's reference, from Start to OnDone
  Call call_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::InterpretEvent> events_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool beginning_ ABSL_GUARDED_BY(mu_) = true;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  v1::InterpretEvent event_;  // of the write under way
};

}  // namespace

grpc::ServerWriteReactor<v1::InterpretEvent>* StartInterpret(const ServiceContext& service,
                                                             grpc::CallbackServerContext* context,
                                                             const v1::InterpretRequest* request) {
  return InterpretCall::Start(service, context, *request);
}

}  // namespace kiln::server
