#include "server/security/auth.h"

#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/status_macros.h"
#include "server/security/tenant_names.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxTenantBytes = 64;
constexpr char kDefaultTenant[] = "default";

// Empty where the call has no such header.
absl::string_view Header(const grpc::ServerContextBase& context, const char* name) {
  const auto& metadata = context.client_metadata();
  auto it = metadata.find(name);
  if (it == metadata.end()) return "";
  return {it->second.data(), it->second.size()};
}

// What the call says of itself, whoever sent it.
absl::Status ReadHeaders(const grpc::ServerContextBase& context, Caller& caller) {
  absl::string_view tenant = Header(context, kTenantHeader);
  if (!IsTenantName(tenant)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kTenantHeader, " is no name of at most 64 letters, digits, '.', '_' and '-'"));
  }
  caller.tenant = tenant.empty() ? kDefaultTenant : std::string(tenant);
  absl::string_view priority = Header(context, kPriorityHeader);
  if (!priority.empty() && priority != "interactive" && priority != "warmup") {
    return absl::InvalidArgumentError(
        absl::StrCat(kPriorityHeader, " is neither 'interactive' nor 'warmup'"));
  }
  caller.priority = priority == "warmup" ? Priority::kWarmup : Priority::kInteractive;
  caller.trace = ParseTraceparent(Header(context, kTraceHeader));
  return absl::OkStatus();
}

// "Bearer TOKEN" of the one header that says so; empty where there is none.
absl::StatusOr<absl::string_view> BearerToken(const grpc::ServerContextBase& context) {
  const auto [first, last] = context.client_metadata().equal_range(kTokenHeader);
  if (first == last) return "";
  absl::string_view value(first->second.data(), first->second.size());
  constexpr absl::string_view kScheme = "Bearer ";
  if (std::next(first) != last || !absl::StartsWithIgnoreCase(value, kScheme) ||
      value.size() == kScheme.size()) {
    return absl::UnauthenticatedError("'authorization' is not one 'Bearer TOKEN'");
  }
  return value.substr(kScheme.size());
}

// How long it takes does not tell how much of the token is right.
bool IsToken(absl::string_view token, const Digest& sha256) {
  const Digest digest = Sha256(token);
  return CRYPTO_memcmp(digest.bytes.data(), sha256.bytes.data(), digest.bytes.size()) == 0;
}

// Of the certificate that gRPC verified: alternative names first. Empty where there is none.
std::vector<std::string> CertificateNames(const grpc::ServerContextBase& context) {
  std::vector<std::string> names;
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return names;
  for (const char* property : {GRPC_X509_SAN_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
    for (grpc::string_ref name : peer->FindPropertyValues(property)) {
      if (!name.empty()) names.emplace_back(name.data(), name.size());
    }
  }
  // One without any name still is somebody.
  if (names.empty()) names.push_back("(a certificate without names)");
  return names;
}

// Whether the identity says which tenant it is.
bool TakeIdentity(const Identity& identity, Caller& caller) {
  caller.identity = identity.name;
  caller.role = identity.role;
  if (identity.tenant.empty()) return false;
  caller.tenant = identity.tenant;
  return true;
}

class RulesAuthenticator final : public Authenticator {
 public:
  RulesAuthenticator(std::function<AccessRules()> rules, int max_tenant_names)
      : rules_(std::move(rules)), tenant_names_(max_tenant_names) {}

  absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context) override {
    Caller caller;
    KILN_RETURN_IF_ERROR(ReadHeaders(context, caller));
    const AccessRules rules = rules_();
    if (absl::StartsWith(context.peer(), "unix:")) {
      caller.role = Role::kAdmin;
      KILN_RETURN_IF_ERROR(NameTenant(context, rules, caller));
      return caller;
    }
    caller.role = rules.anonymous_role;
    KILN_ASSIGN_OR_RETURN(absl::string_view token, BearerToken(context));
    if (!token.empty() && rules.local_token && IsToken(token, *rules.local_token)) {
      caller.role = std::max(caller.role, Role::kCompile);
    } else if (!token.empty() && rules.list != nullptr) {
      const Identity* identity = rules.list->FindToken(token);
      if (identity == nullptr) {
        return absl::UnauthenticatedError("the token is none that this server knows");
      }
      if (!TakeIdentity(*identity, caller)) {
        KILN_RETURN_IF_ERROR(NameTenant(context, rules, caller));
      }
      return caller;
    }
    bool has_tenant = false;
    if (std::vector<std::string> names = CertificateNames(context); !names.empty()) {
      has_tenant = TakeCertificate(names, rules, caller);
    }
    if (caller.role == Role::kNone && caller.identity.empty()) {
      return absl::UnauthenticatedError(
          rules.local_token ? "this server is for the user that runs it: others need an access "
                              "file or --anonymous-role there"
                            : "this server takes a token or a client certificate, and the call "
                              "shows none");
    }
    if (!has_tenant) KILN_RETURN_IF_ERROR(NameTenant(context, rules, caller));
    return caller;
  }

 private:
  static bool TakeCertificate(const std::vector<std::string>& names, const AccessRules& rules,
                              Caller& caller) {
    caller.identity = names.front();
    bool has_tenant = false;
    if (rules.list == nullptr) {
      caller.role = std::max(caller.role, Role::kCompile);
    } else if (const Identity* identity = rules.list->FindCertificate(names)) {
      has_tenant = TakeIdentity(*identity, caller);
      if (identity->name == "*") caller.identity = names.front();
    }
    return has_tenant;
  }

  // The caller's own word for its tenant.
  absl::Status NameTenant(const grpc::ServerContextBase& context, const AccessRules& rules,
                          Caller& caller) {
    if (caller.tenant == kDefaultTenant) return absl::OkStatus();
    if (rules.list != nullptr && rules.list->HasTenant(caller.tenant)) {
      return absl::PermissionDeniedError(absl::StrCat(
          "the tenant '", caller.tenant, "' is for those whom the access file gives it"));
    }
    const std::string owner = caller.identity.empty() ? AddressOfPeer(context.peer())
                                                      : absl::StrCat("identity:", caller.identity);
    caller.tenant = tenant_names_.TenantOf(owner, caller.tenant, absl::Now());
    return absl::OkStatus();
  }

  const std::function<AccessRules()> rules_;
  TenantNames tenant_names_;
};

}  // namespace

bool IsTenantName(absl::string_view name) {
  return name.size() <= kMaxTenantBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

std::unique_ptr<Authenticator> MakeAuthenticator(std::function<AccessRules()> rules,
                                                 int max_tenant_names) {
  return std::make_unique<RulesAuthenticator>(std::move(rules), max_tenant_names);
}

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

absl::Status Require(const Caller& caller, Role needed, absl::string_view method) {
  if (caller.role >= needed) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(method, " takes the role '", RoleName(needed), "'; ",
                   caller.identity.empty() ? "this call" : caller.identity, " has '",
                   RoleName(caller.role), "'"));
}

}  // namespace kiln::server
