// Everything that says who the server is and who may call it: read once at the start and again
// whenever a file changes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/signing.h"
#include "server/security/auth.h"
#include "server/security/security_config.h"

namespace grpc {
class ServerCredentials;
}

namespace kiln::server {

// Of --signing-key, which must exist, or of the data directory, where one is made on first start.
absl::StatusOr<std::unique_ptr<SigningKey>> OpenSigningKey(const SecurityConfig& security,
                                                           const std::string& data_dir);

// What is asked for, else none.
Role AnonymousRole(const SecurityConfig& security);

// Whether callers over TCP show the token of local_token.h: only this machine can connect
// (`loopback_only`), and nothing else tells callers apart (no certificate, no access file, no role
// for everybody).
bool UsesLocalToken(const SecurityConfig& security, bool loopback_only);

// Thread-safe. Looks at its files every second; a file that went bad is logged, once, and what was
// read before stays.
class Credentials {
 public:
  // INVALID_ARGUMENT, naming the setting and the file, for files that cannot be read or do not fit,
  // and for settings by which nobody could ever call.
  static absl::StatusOr<std::unique_ptr<Credentials>> Load(const SecurityConfig& security,
                                                           bool loopback_only);
  ~Credentials();

  // Must outlive the server that is made with it.
  std::shared_ptr<grpc::ServerCredentials> server_credentials() const;
  Authenticator& authenticator() const;

  // Of the certificate in use; nothing without TLS.
  std::optional<absl::Time> certificate_expiry() const;

  // From now on the token with this hash lets its callers compile.
  void SetLocalToken(const Digest& sha256);

  // Looks at the files now; returns what is wrong with them.
  absl::Status Reload();

 private:
  struct Impl;
  explicit Credentials(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln::server
