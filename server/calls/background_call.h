// A call that a background thread begins: parsing a graph takes longer than gRPC's threads may.
#pragma once

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/calls/call.h"
#include "server/calls/service_context.h"
#include "server/rpc/reactor.h"

namespace kiln::server {

// Admits the call on gRPC's thread and has Begin run on another. Deletes itself after gRPC's last
// event and its last other owner.
class BackgroundCall : public Reactor, public std::enable_shared_from_this<BackgroundCall> {
 public:
  void Start() final;
  void OnWriteDone(bool ok) final;
  void OnDone() final { std::shared_ptr<BackgroundCall> last = std::move(self_); }

  // A reactor that is its own owner until OnDone.
  template <typename T>
  static Reactor* Make(const ServiceContext& service, grpc::ServerContextBase& context,
                       grpc::ByteBuffer& request) {
    auto call = std::make_shared<T>(service, context, request);
    call->self_ = call;
    return call.get();
  }

 protected:
  BackgroundCall(CallKind kind, absl::string_view method, const ServiceContext& service,
                 grpc::ServerContextBase& context, grpc::ByteBuffer& request);

  // Once, on a background thread, of an admitted call. The call does not end before it returns.
  virtual void Begin() = 0;
  // Starts a write if there is something to say; ends the call if that was the last. Asked only
  // while nothing is under way.
  virtual void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // The first end counts.
  virtual void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!end_) end_ = status;
  }
  void SetEnd(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!beginning_ && !writing_ && !finished_) Advance();
  }
  // What Advance does: one of these at a time.
  void Write(const grpc::ByteBuffer& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteLast(const grpc::ByteBuffer& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWithEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ServiceContext& service_;
  // Set before the call is shared.
  grpc::ByteBuffer serialized_;
  Admission::Place request_place_;  // the bytes of the request
  absl::Mutex mu_;
  Call call_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);

 private:
  absl::Status Admit() ABSL_LOCKS_EXCLUDED(mu_);
  void LetEnd() ABSL_LOCKS_EXCLUDED(mu_);

  const CallKind kind_;
  Admission::Place place_;                // set before the call is shared
  std::shared_ptr<BackgroundCall> self_;  // gRPC's reference, from Start to OnDone
  bool beginning_ ABSL_GUARDED_BY(mu_) = true;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kiln::server
