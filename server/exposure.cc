#include "server/exposure.h"

#include "absl/strings/str_cat.h"
#include "server/security/credentials.h"

namespace kiln::server {

std::vector<std::string> ExposureWarnings(const Config& config) {
  std::vector<std::string> warnings;
  const SecurityConfig& security = config.security;
  if (!config.listen.IsLoopback()) {
    if (security.tls_cert.empty()) {
      warnings.push_back(
          "no TLS (--tls-cert, --tls-key): graphs, artifacts and tokens travel in the clear");
    }
    if (Role role = AnonymousRole(security); role != Role::kNone) {
      warnings.push_back(absl::StrCat("no authentication: whoever can connect has the role '",
                                      RoleName(role), "' (--anonymous-role)"));
    }
  }
  if (!config.metrics_listen.IsLoopback() && security.metrics_token_sha256.empty()) {
    warnings.push_back(
        "metrics and pages are for everybody who can connect (--metrics-token-sha256)");
  }
  return warnings;
}

}  // namespace kiln::server
