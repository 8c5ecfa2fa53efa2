// Who a call comes from and what it may do.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/digest.h"
#include "server/security/access_list.h"
#include "server/security/caller.h"

namespace grpc {
class ServerContextBase;
}

namespace kiln::server {

// Metadata of a call.
inline constexpr char kTokenHeader[] = "authorization";     // "Bearer TOKEN"
inline constexpr char kTenantHeader[] = "kiln-tenant";      // at most 64 of [A-Za-z0-9._-]
inline constexpr char kPriorityHeader[] = "kiln-priority";  // "interactive" or "warmup"
inline constexpr char kTraceHeader[] = "traceparent";

// At most 64 of [A-Za-z0-9._-]; empty is one, too.
bool IsTenantName(absl::string_view name);

// Thread-safe.
class Authenticator {
 public:
  virtual ~Authenticator() = default;

  // UNAUTHENTICATED where the call shows no credentials or wrong ones; INVALID_ARGUMENT for a
  // header that is none.
  virtual absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context) = 0;
};

struct AccessRules {
  // Null where no file lists anybody: then tokens mean nothing here, and whoever the CA vouches for
  // may compile.
  std::shared_ptr<const AccessList> list;
  // Of a call that shows no token and no certificate, or a certificate that no line names.
  Role anonymous_role = Role::kNone;
  // SHA-256 of the token of local_token.h, with which callers may compile.
  std::optional<Digest> local_token;
};

// Whoever comes through a Unix socket is this user or root (server/rpc/acceptor.h), and may do
// everything. Of the others a token goes before a certificate. A wrong token is an error, also
// where none was needed, and so is a tenant that only an identity of the list has. `rules` is asked
// for each call, and must not block; `max_tenant_names` as TenantNames has it.
std::unique_ptr<Authenticator> MakeAuthenticator(std::function<AccessRules()> rules,
                                                 int max_tenant_names);

// PERMISSION_DENIED, naming the method and the role that it takes.
absl::Status Require(const Caller& caller, Role needed, absl::string_view method);

}  // namespace kiln::server
