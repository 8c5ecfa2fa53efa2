#include "server/calls/call.h"

#include <atomic>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "server/security/method_roles.h"

namespace kiln::server {
namespace {

constexpr char kService[] = "kiln.v1.CompileService";
constexpr char kDetailTrailer[] = "kiln-error-bin";
// gRPC refuses metadata over 8 KiB in all.
constexpr size_t kMaxMessageBytes = 2000;
constexpr size_t kMaxDetailFieldBytes = 500;

std::atomic<int64_t> g_calls{0};

std::string Shorten(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  // Not in the middle of a UTF-8 character.
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xC0) == 0x80) --max_bytes;
  return absl::StrCat(text.substr(0, max_bytes), "...");
}

void AddDetail(const absl::Status& status, grpc::ServerContextBase& context) {
  auto detail = GetDetail(status);
  if (!detail) return;
  detail->set_node(Shorten(detail->node(), kMaxDetailFieldBytes));
  detail->set_op(Shorten(detail->op(), kMaxDetailFieldBytes));
  detail->set_expected(Shorten(detail->expected(), kMaxDetailFieldBytes));
  context.AddTrailingMetadata(kDetailTrailer, detail->SerializeAsString());
}

// Why the server turned a call away, as a metric's label; empty where it did not.
absl::string_view Rejection(const absl::Status& status) {
  const auto detail = GetDetail(status);
  const auto reason = detail ? detail->reason() : v1::ErrorDetail::REASON_UNSPECIFIED;
  if (reason == v1::ErrorDetail::REASON_QUEUE_FULL) return "queue_full";
  if (reason == v1::ErrorDetail::REASON_DRAINING) return "draining";
  if (reason == v1::ErrorDetail::REASON_BAD_GRAPH) return "bad_graph";
  if (reason == v1::ErrorDetail::REASON_UNSUPPORTED) return "unsupported";
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
      return "unauthenticated";
    case absl::StatusCode::kPermissionDenied:
      return "permission_denied";
    case absl::StatusCode::kInvalidArgument:
      return "invalid_argument";
    case absl::StatusCode::kUnimplemented:
      return "unsupported";
    case absl::StatusCode::kFailedPrecondition:
      // What the broker says of a graph that killed workers before.
      return reason == v1::ErrorDetail::REASON_WORKER_CRASHED ? "graph_refused" : "";
    case absl::StatusCode::kResourceExhausted:
      // A compile that was over its limits was not turned away.
      return reason == v1::ErrorDetail::REASON_UNSPECIFIED ? "limit" : "";
    default:
      return "";
  }
}

// A cache had it.
bool IsTier(absl::string_view source) {
  return !source.empty() && source != "compiled" && source != "coalesced";
}

absl::string_view OrDash(absl::string_view text) {
  return text.empty() ? "-" : text;
}

double RoundedMs(absl::Duration duration) {
  return std::round(absl::ToDoubleMilliseconds(duration) * 100) / 100;
}

}  // namespace

Call::Call(absl::string_view method, grpc::ServerContextBase& context, Metrics& metrics)
    : method_(method), context_(context), metrics_(metrics), number_(++g_calls) {}

absl::Status Call::Admit(Authenticator& authenticator) {
  KILN_ASSIGN_OR_RETURN(caller_, authenticator.Identify(context_));
  span_ = Span::Begin(caller_.trace, absl::StrCat(kService, "/", method_), SpanKind::kServer);
  span_.SetStart(start_);
  caller_.trace = span_.context();
  std::optional<Role> needed = RoleOf(method_);
  if (!needed) {
    return absl::InternalError(
        absl::StrCat(method_, " is in no row of server/security/method_roles.cc"));
  }
  return Require(caller_, *needed, method_);
}

void Call::EndSpan() {
  const absl::Status& status = *outcome_;
  if (!span_.recording()) return;
  span_.Set("rpc.system", "grpc");
  span_.Set("rpc.service", kService);
  span_.Set("rpc.method", std::string(method_));
  span_.Set("rpc.grpc.status_code", static_cast<int64_t>(status.code()));
  span_.Set("kiln.call", number_);
  span_.Set("kiln.tenant", caller_.tenant);
  if (!key_.empty()) span_.Set("kiln.key", key_);
  if (!target_.empty()) span_.Set("kiln.target", std::string(target_));
  if (!source_.empty()) span_.Set("kiln.source", std::string(source_));
  if (sent_bytes_ > 0) span_.Set("kiln.bytes", sent_bytes_);
  // A miss is an answer.
  if (!absl::IsNotFound(status)) span_.SetStatus(status);
  span_.End();
}

void Call::Count() {
  const absl::Status& status = *outcome_;
  metrics_.RpcDone(method_, status.code(), duration_);
  if (status.ok()) {
    if (IsTier(source_)) metrics_.HitServed(source_, caller_.tenant, duration_);
    if (sent_bytes_ > 0) metrics_.RpcSent(method_, sent_bytes_);
  } else if (absl::string_view reason = Rejection(status); !reason.empty()) {
    metrics_.CallRejected(reason);
  }
}

grpc::Status Call::End(const absl::Status& status) {
  outcome_ = status;
  duration_ = elapsed();
  Count();
  EndSpan();
  if (status.ok()) return grpc::Status::OK;
  AddDetail(status, context_);
  return {static_cast<grpc::StatusCode>(status.code()),
          Shorten(status.message(), kMaxMessageBytes)};
}

Call::~Call() {
  if (!outcome_ || !LogEnabled(LogLevel::kInfo)) return;
  LogSoon(
      LogLevel::kInfo, "call",
      {{"id", number_},
       {"method", method_},
       {"tenant", OrDash(caller_.tenant)},
       {"identity", OrDash(caller_.identity)},
       {"key", OrDash(key_)},
       {"target", OrDash(target_)},
       {"source", OrDash(source_)},
       {"bytes", sent_bytes_},
       {"ms", RoundedMs(duration_)},
       {"trace", caller_.trace.valid() ? caller_.trace.TraceIdHex() : "-"},
       {"outcome", outcome_->ok() ? "OK"
                                  : Shorten(absl::StrCat(absl::StatusCodeToString(outcome_->code()),
                                                         ": ", outcome_->message()),
                                            kMaxMessageBytes)}});
}

}  // namespace kiln::server
