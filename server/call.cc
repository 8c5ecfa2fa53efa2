#include "server/call.h"

#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "server/method_roles.h"

namespace kiln::server {
namespace {

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

void AddDetail(const absl::Status& status, grpc::CallbackServerContext& context) {
  auto detail = GetDetail(status);
  if (!detail) return;
  detail->set_node(Shorten(detail->node(), kMaxDetailFieldBytes));
  detail->set_op(Shorten(detail->op(), kMaxDetailFieldBytes));
  detail->set_expected(Shorten(detail->expected(), kMaxDetailFieldBytes));
  context.AddTrailingMetadata(kDetailTrailer, detail->SerializeAsString());
}

}  // namespace

Call::Call(absl::string_view method, grpc::CallbackServerContext* context, Metrics& metrics)
    : method_(method), context_(context), metrics_(metrics), number_(++g_calls) {}

absl::Status Call::Admit(Authenticator& authenticator) {
  KILN_ASSIGN_OR_RETURN(caller_, authenticator.Identify(*context_));
  std::optional<Role> needed = RoleOf(method_);
  if (!needed) {
    return absl::InternalError(absl::StrCat(method_, " is in no row of server/method_roles.cc"));
  }
  return Require(caller_, *needed, method_);
}

grpc::Status Call::End(const absl::Status& status) {
  absl::Duration duration = absl::Now() - start_;
  metrics_.RpcDone(method_, status.code(), duration);
  Log(LogLevel::kInfo, "call",
      {{"id", absl::StrCat(number_)},
       {"method", std::string(method_)},
       {"tenant", caller_.tenant.empty() ? "-" : caller_.tenant},
       {"key", key_.empty() ? "-" : key_},
       {"target", target_.empty() ? "-" : std::string(target_)},
       {"source", source_.empty() ? "-" : std::string(source_)},
       {"ms", absl::StrFormat("%.2f", absl::ToDoubleMilliseconds(duration))},
       {"outcome", status.ok() ? "OK"
                               : Shorten(absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                                                      status.message()),
                                         kMaxMessageBytes)}});
  if (status.ok()) return grpc::Status::OK;
  AddDetail(status, *context_);
  return {static_cast<grpc::StatusCode>(status.code()),
          Shorten(status.message(), kMaxMessageBytes)};
}

}  // namespace kiln::server
