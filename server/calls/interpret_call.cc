#include "server/calls/interpret_call.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/arena_message.h"
#include "proto/base/status_macros.h"
#include "server/calls/background_call.h"
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxQueuedEvents = 8;  // of at most 1 MiB: the worker waits for a slow client

class InterpretCall final : public BackgroundCall {
 public:
  InterpretCall(const ServiceContext& service, grpc::ServerContextBase& context,
                grpc::ByteBuffer& request)
      : BackgroundCall(CallKind::kInterpret, "Interpret", service, context, request) {}

  void OnCancel() override {
    SetEnd(absl::CancelledError("the client has gone or its deadline has passed"));
  }

 private:
  void Begin() override {
    auto worker_request = MakeArenaMessage<v1::WorkerRequest>();
    v1::InterpretRequest& request = *worker_request->mutable_interpret();
    absl::Status status = ParseMessage(serialized_, request);
    if (status.ok()) status = service_.check_graph(request.graph());
    if (!status.ok()) return SetEnd(status);
    auto call = std::static_pointer_cast<InterpretCall>(shared_from_this());
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

  bool ended() {
    absl::MutexLock lock(&mu_);
    return end_.has_value();
  }
  bool HasRoom() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return end_.has_value() || events_.size() < kMaxQueuedEvents;
  }
  // An error drops what is queued; success lets it go out first.
  void End(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BackgroundCall::End(status);
    if (!end_->ok()) events_.clear();
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

  void Advance() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!events_.empty()) {
      Write(events_.front());
      events_.pop_front();
    } else if (end_) {
      FinishWithEnd();
    }
  }

  std::deque<grpc::ByteBuffer> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

Method InterpretMethod(const ServiceContext& service) {
  return {.max_request_bytes = kMaxMessageBytes,
          .make = [&service](grpc::ServerContextBase& context, grpc::ByteBuffer& request) {
            return BackgroundCall::Make<InterpretCall>(service, context, request);
          }};
}

}  // namespace kiln::server
