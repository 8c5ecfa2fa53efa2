// What the operator settled about who may call.
#pragma once

#include <optional>
#include <string>

#include "server/security/caller.h"
#include "server/security/tenant_names.h"

namespace kiln::server {

// Files are named here and read by credentials.h; empty: none.
struct SecurityConfig {
  std::string tls_cert;       // PEM: the server's certificate, then those that lead to its root
  std::string tls_key;        // PEM
  std::string tls_client_ca;  // PEM: who may vouch for clients
  std::optional<bool> client_cert_required;    // nothing: where tls_client_ca is given
  std::string access_file;                     // access_list.h
  std::optional<Role> anonymous_role;          // nothing: see AnonymousRole in credentials.h
  std::string signing_key;                     // empty: "signing.key" of the data directory
  int max_tenant_names = kDefaultTenantNames;  // tenant_names.h
  std::string metrics_token_sha256;            // 32 bytes; empty: everybody reads metrics
};

}  // namespace kiln::server
