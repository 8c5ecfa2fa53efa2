#include "server/calls/compile_call.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/base/arena_message.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"
#include "server/calls/background_call.h"
#include "server/calls/chunker.h"
#include "server/calls/request_limits.h"
#include "server/calls/shared_lookup.h"
#include "server/observe/tracing.h"
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

class CompileCall final : public BackgroundCall {
 public:
  CompileCall(const ServiceContext& service, grpc::ServerContextBase& context,
              grpc::ByteBuffer& request)
      : BackgroundCall(CallKind::kCompile, "Compile", service, context, request),
        deadline_(absl::FromChrono(context.deadline())) {}

  void OnCancel() override {
    std::optional<Broker::Ticket> ticket;
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      ticket = ticket_;
    }
    if (ticket) Leave(*ticket);
    SetEnd(absl::CancelledError("the client has gone or its deadline has passed"));
  }

 private:
  // A client whose time is up does not come back. One that cancels looks like one whose connection
  // broke, which may.
  void Leave(const Broker::Ticket& ticket) {
    service_.broker.Leave(ticket, deadline_ <= absl::Now() ? Broker::Departure::kFinal
                                                           : Broker::Departure::kMayReturn);
  }

  void Begin() override {
    const Caller caller = CopyCaller();
    auto taken = MakeArenaMessage<v1::CompileRequest>();
    const v1::CompileRequest& request = *taken;
    absl::Status status = ParseMessage(serialized_, *taken);
    if (status.ok()) status = CheckRequestLimits(request.device(), request.options());
    if (status.ok()) status = service_.check_graph(request.graph());
    if (!status.ok()) return SetEnd(status);
    Digest key = ArtifactKey(request.graph(), request.device(), request.options(),
                             service_.compiler_builds.For(request.device().target()));
    {
      absl::MutexLock lock(&mu_);
      if (cancelled_) return;
      call_.set_key(key.ShortHex());
      call_.set_target(TargetName(request.device().target()));
    }
    const cache::Key artifact{cache::EntryKind::kArtifact, key};
    if (auto found = TracedGet(caller.trace, service_.local, artifact); found.ok()) {
      return SetHit(key, *found);
    }
    auto call = std::static_pointer_cast<CompileCall>(shared_from_this());
    LookUpShared(service_, caller.trace, artifact,
                 [call, key, caller, taken](const absl::StatusOr<cache::Found>& found) {
                   if (found.ok()) return call->SetHit(key, *found);
                   call->Join(key, caller, taken);
                 });
  }

  void SetHit(const Digest& key, const cache::Found& found) {
    CountHit();
    SetArtifact(key, found.entry, found.tier);
  }

  void Join(const Digest& key, const Caller& caller,
            const std::shared_ptr<const v1::CompileRequest>& request) {
    if (IsCancelled()) return;
    service_.activity.CompileMissed(key);
    std::weak_ptr<CompileCall> weak = std::static_pointer_cast<CompileCall>(shared_from_this());
    CompileCallbacks callbacks;
    callbacks.progress = [weak](const v1::Progress& progress) {
      if (auto call = weak.lock()) call->SetProgress(progress);
    };
    callbacks.done = [weak, key](const absl::StatusOr<CompileAnswer>& answer) {
      auto call = weak.lock();
      if (call == nullptr) return;
      if (!answer.ok()) return call->SetEnd(answer.status());
      call->Link(answer->trace);
      call->SetArtifact(key, answer->artifact, answer->source);
    };
    auto ticket =
        service_.broker.Join(key, request, caller, std::move(callbacks),
                             std::make_shared<Admission::Place>(std::move(request_place_)));
    if (!ticket.ok()) return SetEnd(ticket.status());
    bool cancelled;
    {
      absl::MutexLock lock(&mu_);
      ticket_ = *ticket;
      cancelled = cancelled_;
    }
    if (cancelled) Leave(*ticket);
  }

  bool IsCancelled() {
    absl::MutexLock lock(&mu_);
    return cancelled_;
  }
  Caller CopyCaller() {
    absl::MutexLock lock(&mu_);
    return call_.caller();
  }
  void CountHit() {
    absl::MutexLock lock(&mu_);
    service_.activity.Hit(call_.caller().tenant, call_.elapsed());
  }
  void SetProgress(const v1::Progress& progress) {
    absl::MutexLock lock(&mu_);
    progress_ = progress;  // a slow client sees the latest only
    Pump();
  }
  void SetArtifact(const Digest& key, const cache::EntryPtr& artifact, absl::string_view source) {
    std::string signature = service_.signer.Sign(key, artifact->digest);
    absl::MutexLock lock(&mu_);
    chunker_ = Chunker(artifact, source, std::move(signature));
    call_.set_source(source);
    call_.set_sent_bytes(static_cast<int64_t>(artifact->bytes.size()));
    Pump();
  }
  void Link(const TraceContext& job) {
    absl::MutexLock lock(&mu_);
    call_.Link(job);
  }
  void Advance() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (end_) return FinishWithEnd();
    if (chunker_) {
      const grpc::ByteBuffer event = chunker_->NextEvent();
      return chunker_->AtEnd() ? WriteLast(event) : Write(event);
    }
    if (!progress_) return;
    v1::CompileEvent event;
    *event.mutable_progress() = *std::exchange(progress_, std::nullopt);
    Write(SerializeMessage(event));
  }

  // Not the context: while the shared tier is asked the call may end, and gRPC's side of it is
  // gone.
  const absl::Time deadline_;
  std::optional<Broker::Ticket> ticket_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::Progress> progress_ ABSL_GUARDED_BY(mu_);
  std::optional<Chunker> chunker_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

Method CompileMethod(const ServiceContext& service) {
  return {.max_request_bytes = kMaxMessageBytes,
          .make = [&service](grpc::ServerContextBase& context, grpc::ByteBuffer& request) {
            return BackgroundCall::Make<CompileCall>(service, context, request);
          }};
}

}  // namespace kiln::server
