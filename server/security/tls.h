// The server's certificate, and the CA of its clients, over gRPC.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace grpc {
class ServerCredentials;
}

namespace kiln::server {

// PEM texts.
struct TlsMaterial {
  std::string certificates;  // the server's own first
  std::string private_key;
  std::string client_ca;  // empty: clients are not asked for a certificate

  friend bool operator==(const TlsMaterial&, const TlsMaterial&) = default;
};

// Reads nothing but `material`. INVALID_ARGUMENT for what is no PEM, a key that is not the
// certificate's, a key with a pass phrase. Returns when the server's certificate expires.
absl::StatusOr<absl::Time> CheckTlsMaterial(const TlsMaterial& material);

// Hands new material to one server. Thread-safe.
class TlsSource {
 public:
  // REQUIRES: CheckTlsMaterial accepts it.
  void Replace(TlsMaterial material);
  // Null where nothing is newer than what was taken before.
  std::unique_ptr<TlsMaterial> TakeNew();

 private:
  absl::Mutex mu_;
  std::unique_ptr<TlsMaterial> new_ ABSL_GUARDED_BY(mu_);
};

enum class ClientCertificates { kIgnored, kOptional, kRequired };

// Asks `source` at each handshake; connections that exist go on with what they have. A certificate
// that a client shows must be one of the CA's, optional or not. `source` must outlive the server.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(TlsSource* source,
                                                            ClientCertificates clients);

}  // namespace kiln::server
