#include "server/calls/background_call.h"

#include "proto/base/status_macros.h"

namespace kiln::server {

BackgroundCall::BackgroundCall(CallKind kind, absl::string_view method,
                               const ServiceContext& service, grpc::ServerContextBase& context,
                               grpc::ByteBuffer& request)
    : service_(service), call_(method, context, service.metrics), kind_(kind) {
  serialized_.Swap(&request);
}

absl::Status BackgroundCall::Admit() {
  absl::MutexLock lock(&mu_);
  KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
  const std::string& tenant = call_.caller().tenant;
  KILN_ASSIGN_OR_RETURN(place_, service_.admission.Enter(kind_, tenant));
  const auto bytes = static_cast<int64_t>(serialized_.Length());
  KILN_ASSIGN_OR_RETURN(request_place_, service_.admission.Hold(bytes, tenant));
  return absl::OkStatus();
}

void BackgroundCall::Start() {
  absl::Status started = Admit();
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

void BackgroundCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (!ok) End(absl::CancelledError("the client has gone"));
  Pump();
}

void BackgroundCall::SetEnd(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  End(status);
  Pump();
}

void BackgroundCall::LetEnd() {
  absl::MutexLock lock(&mu_);
  beginning_ = false;
  Pump();
}

void BackgroundCall::Write(const grpc::ByteBuffer& message) {
  writing_ = true;
  StartWrite(message);
}

void BackgroundCall::WriteLast(const grpc::ByteBuffer& message) {
  finished_ = true;
  StartWriteAndFinish(message, call_.End(absl::OkStatus()));
}

void BackgroundCall::FinishWithEnd() {
  finished_ = true;
  Finish(call_.End(*end_));
}

}  // namespace kiln::server
