#include "server/calls/compile_call.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/base/key.h"
#include "proto/base/status_macros.h"
#include "server/calls/call.h"
#include "server/calls/chunker.h"
#include "server/calls/connection.h"
#include "server/calls/request_limits.h"
#include "server/observe/labels.h"
#include "server/observe/tracing.h"
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

class CompileCall final : public Reactor, public std::enable_shared_from_this<CompileCall> {
 public:
  CompileCall(const ServiceContext& service, grpc::ServerContextBase& context,
              grpc::ByteBuffer& request)
      : service_(service), context_(context), call_("Compile", context, service.metrics) {
    serialized_.Swap(&request);
  }

  static Reactor* Make(const ServiceContext& service, grpc::ServerContextBase& context,
                       grpc::ByteBuffer& request) {
    auto call = std::make_shared<CompileCall>(service, context, request);
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
    if (!ok) end_ = absl::CancelledError("the client has gone");
    Pump();
  }

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

  void OnDone() override { std::shared_ptr<CompileCall> last = std::move(self_); }

 private:
  absl::Status Admit(size_t request_bytes) {
    absl::MutexLock lock(&mu_);
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    caller_ = call_.caller();
    KILN_ASSIGN_OR_RETURN(place_, service_.admission.Enter(CallKind::kCompile, caller_.tenant));
    KILN_ASSIGN_OR_RETURN(request_place_, service_.admission.Hold(
                                              static_cast<int64_t>(request_bytes), caller_.tenant));
    return absl::OkStatus();
  }

  // A client that asked for the end or set a deadline does not come back; one whose connection
  // broke may.
  void Leave(const Broker::Ticket& ticket) {
    if (absl::FromChrono(context_.deadline()) <= absl::Now()) return service_.broker.Leave(ticket);
    service_.broker.Leave(ticket, [peer = context_.peer()] { return !ConnectionIsOpen(peer); });
  }

  // The call does not end before LetEnd.
  void Begin() {
    auto taken = std::make_shared<v1::CompileRequest>();
    const v1::CompileRequest& request = *taken;
    absl::Status status = ParseMessage(serialized_, *taken);
    if (status.ok()) status = CheckRequestLimits(request.device(), request.options());
    if (status.ok()) status = service_.check_graph(request.graph());
    if (!status.ok()) {
      return SetEnd(status);
    }
    Digest key =
        ArtifactKey(request.graph(), request.device(), request.options(), service_.compiler_build);
    {
      absl::MutexLock lock(&mu_);
      if (cancelled_) return;
      call_.set_key(key.ShortHex());
      call_.set_target(TargetLabel(request.device().target()));
    }
    if (auto found = TracedGet(caller_.trace, service_.store, {cache::EntryKind::kArtifact, key});
        found.ok()) {
      CountHit();
      return SetArtifact(key, found->entry, found->tier);
    }
    service_.activity.CompileMissed(key);
    std::weak_ptr<CompileCall> weak = weak_from_this();
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
        service_.broker.Join(key, std::move(taken), caller_, std::move(callbacks),
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

  void CountHit() {
    absl::MutexLock lock(&mu_);
    service_.activity.Hit(caller_.tenant, call_.elapsed());
  }
  void LetEnd() {
    absl::MutexLock lock(&mu_);
    beginning_ = false;
    Pump();
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
  void SetEnd(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (!end_) end_ = status;
    Pump();
  }

  // Starts the next write, or ends the call, unless a write is under way.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (beginning_ || writing_ || finished_) return;
    if (end_) {
      finished_ = true;
      Finish(call_.End(*end_));
    } else if (chunker_) {
      const grpc::ByteBuffer event = chunker_->NextEvent();
      finished_ = chunker_->AtEnd();
      writing_ = !finished_;
      writing_ ? StartWrite(event) : StartWriteAndFinish(event, call_.End(absl::OkStatus()));
    } else if (progress_) {
      v1::CompileEvent event;
      *event.mutable_progress() = *std::exchange(progress_, std::nullopt);
      writing_ = true;
      StartWrite(SerializeMessage(event));
    }
  }

  const ServiceContext& service_;
  grpc::ServerContextBase& context_;
  // Set before the call is shared.
  grpc::ByteBuffer serialized_;
  Caller caller_;
  Admission::Place place_;
  Admission::Place request_place_;
  absl::Mutex mu_;
  std::shared_ptr<CompileCall> self_;  // gRPC's reference, from Start to OnDone
  Call call_ ABSL_GUARDED_BY(mu_);
  std::optional<Broker::Ticket> ticket_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::Progress> progress_ ABSL_GUARDED_BY(mu_);
  std::optional<Chunker> chunker_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool beginning_ ABSL_GUARDED_BY(mu_) = true;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

Method CompileMethod(const ServiceContext& service) {
  return {.make = [&service](grpc::ServerContextBase& context, grpc::ByteBuffer& request) {
    return CompileCall::Make(service, context, request);
  }};
}

}  // namespace kiln::server
