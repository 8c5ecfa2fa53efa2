#include "server/auth.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxTenantBytes = 64;

// Empty where the call has no such header.
absl::string_view Header(const grpc::ServerContextBase& context, const char* name) {
  const auto& metadata = context.client_metadata();
  auto it = metadata.find(name);
  if (it == metadata.end()) return "";
  return {it->second.data(), it->second.size()};
}

bool IsTenantName(absl::string_view name) {
  return name.size() <= kMaxTenantBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

// What the call says of itself, whoever sent it.
absl::Status ReadHeaders(const grpc::ServerContextBase& context, Caller& caller) {
  absl::string_view tenant = Header(context, kTenantHeader);
  if (!IsTenantName(tenant)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kTenantHeader, " is no name of at most 64 letters, digits, '.', '_' and '-'"));
  }
  caller.tenant = tenant.empty() ? "default" : std::string(tenant);
  absl::string_view priority = Header(context, kPriorityHeader);
  if (!priority.empty() && priority != "interactive" && priority != "warmup") {
    return absl::InvalidArgumentError(
        absl::StrCat(kPriorityHeader, " is neither 'interactive' nor 'warmup'"));
  }
  caller.priority = priority == "warmup" ? Priority::kWarmup : Priority::kInteractive;
  caller.trace = ParseTraceparent(Header(context, kTraceHeader));
  return absl::OkStatus();
}

class OpenAuthenticator final : public Authenticator {
 public:
  absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context) override {
    Caller caller;
    caller.role = Role::kAdmin;
    KILN_RETURN_IF_ERROR(ReadHeaders(context, caller));
    return caller;
  }
};

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kNone:
      return "none";
    case Role::kRead:
      return "read";
    case Role::kCompile:
      return "compile";
    case Role::kAdmin:
      return "admin";
  }
  return "none";
}

std::unique_ptr<Authenticator> MakeOpenAuthenticator() {
  return std::make_unique<OpenAuthenticator>();
}

absl::Status Require(const Caller& caller, Role needed, absl::string_view method) {
  if (caller.role >= needed) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(method, " takes the role '", RoleName(needed), "'; ",
                   caller.identity.empty() ? "this call" : caller.identity, " has '",
                   RoleName(caller.role), "'"));
}

}  // namespace kiln::server
