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
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxQueuedEvents = 8;  // of at most 1 MiB: the worker waits for a slow client

class InterpretCall final : public Reactor, public std::enable_shared_from_this<InterpretCall> {
 public:
  InterpretCall(const ServiceContext& service, grpc::ServerContextBase& context,
                grpc::ByteBuffer& request)
      : service_(service), call_("Interpret", context, service.metrics) {
    serialized_.Swap(&request);
  }

  static Reactor* Make(const ServiceContext& service, grpc::ServerContextBase& context,
                       grpc::ByteBuffer& request) {
    auto call = std::make_shared<InterpretCall>(service, context, request);
    call->self_ = call;
    return call.get();
  }

  void Start() override {
    absl::Status started = Admit(serialized_.Length());
    if (started.ok()) {
      started = service_.background.Run([call = shared_from_this()] {
        call->Begin();
        call->LetEnd();
      });
    }
    if (!started.ok()) {
      SetEnd(started);
      LetEnd();
    }
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) End(absl::CancelledError("the client has gone"));
    Pump();
  }
  void OnCancel() override {
    SetEnd(absl::CancelledError("the client has gone or its deadline has passed"));
  }
  void OnDone() override { std::shared_ptr<InterpretCall> last = std::move(self_); }

 private:
  absl::Status Admit(size_t request_bytes) {
    absl::MutexLock lock(&mu_);
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    const std::string& tenant = call_.caller().tenant;
    KILN_ASSIGN_OR_RETURN(place_, service_.admission.Enter(CallKind::kInterpret, tenant));
    KILN_ASSIGN_OR_RETURN(request_place_,
                          service_.admission.Hold(static_cast<int64_t>(request_bytes), tenant));
    return absl::OkStatus();
  }

  // As CompileCall's: the call does not end before LetEnd.
  void Begin() {
    auto worker_request = std::make_shared<v1::WorkerRequest>();
    v1::InterpretRequest& request = *worker_request->mutable_interpret();
    absl::Status status = ParseMessage(serialized_, request);
    if (status.ok()) status = service_.check_graph(request.graph());
    if (!status.ok()) return SetEnd(status);
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
    absl::MutexLock lock(&mu_);
    beginning_ = false;
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
    absl::MutexLock lock(&mu_);
    End(status);
    Pump();
  }

  // On a worker's thread.
  absl::Status Queue(const v1::InterpretEvent& event) {
    const grpc::ByteBuffer serialized = SerializeMessage(event);
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &InterpretCall::HasRoom));
    if (end_) return absl::CancelledError("the client has gone");
    events_.push_back(serialized);
    Pump();
    return absl::OkStatus();
  }

  // As CompileCall's.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (beginning_ || writing_ || finished_) return;
    if (!events_.empty()) {
      writing_ = true;
      StartWrite(events_.front());
      events_.pop_front();
    } else if (end_) {
      finished_ = true;
      Finish(call_.End(*end_));
    }
  }

  const ServiceContext& service_;
  // Set before the call is shared.
  grpc::ByteBuffer serialized_;
  Admission::Place place_;
  Admission::Place request_place_;
  absl::Mutex mu_;
  std::shared_ptr<InterpretCall> self_;  // gRPC's reference, from Start to OnDone
  Call call_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> events_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool beginning_ ABSL_GUARDED_BY(mu_) = true;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

Method InterpretMethod(const ServiceContext& service) {
  return {.make = [&service](grpc::ServerContextBase& context, grpc::ByteBuffer& request) {
    return InterpretCall::Make(service, context, request);
  }};
}

}  // namespace kiln::server
