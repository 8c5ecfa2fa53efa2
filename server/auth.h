// Who a call comes from and what it may do.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/caller.h"

namespace grpc {
class ServerContextBase;
}

namespace kiln::server {

// Metadata of a call.
inline constexpr char kTenantHeader[] = "kiln-tenant";      // at most 64 of [A-Za-z0-9._-]
inline constexpr char kPriorityHeader[] = "kiln-priority";  // "interactive" or "warmup"
inline constexpr char kTraceHeader[] = "traceparent";

// Thread-safe.
class Authenticator {
 public:
  virtual ~Authenticator() = default;

  // UNAUTHENTICATED where the call shows no credentials or wrong ones; INVALID_ARGUMENT for a
  // header that is none.
  virtual absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context) = 0;
};

// Lets everybody do everything.
std::unique_ptr<Authenticator> MakeOpenAuthenticator();

// PERMISSION_DENIED, naming the method and the role that it takes.
absl::Status Require(const Caller& caller, Role needed, absl::string_view method);

}  // namespace kiln::server
