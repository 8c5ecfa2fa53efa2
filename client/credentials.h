// What this client shows a server, and which servers it talks to over TLS.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kiln/client.h"

namespace grpc {
class ChannelCredentials;
class ClientContext;
}  // namespace grpc

namespace kiln {

// "https://HOST:PORT" is TLS, "http://HOST:PORT" is not; without a scheme it is TLS where a CA or a
// certificate is given, but for Unix sockets.
enum class Scheme { kUnsaid, kPlain, kTls };
struct ServerName {
  Scheme scheme = Scheme::kUnsaid;
  std::string address;  // without the scheme
};
ServerName SplitScheme(absl::string_view server);

// Whether nothing but this machine can answer at `address`.
bool IsLocal(absl::string_view address);

// Thread-safe.
class Credentials {
 public:
  // Options that are empty come from the environment: KILN_TLS_CA, KILN_TLS_CERT, KILN_TLS_KEY,
  // KILN_TOKEN, KILN_TOKEN_FILE. INVALID_ARGUMENT, naming the option, for what does not fit
  // together, a file that cannot be read, a token that is none.
  static absl::StatusOr<std::shared_ptr<Credentials>> Load(const ClientOptions& options);
  ~Credentials();

  // INVALID_ARGUMENT where the token would travel in the clear to another machine and nobody said
  // that this is meant ("http://").
  absl::Status CheckServer(absl::string_view server) const;
  bool UsesTls(absl::string_view server) const;
  // The files are read again while connections last, for those made later.
  std::shared_ptr<grpc::ChannelCredentials> ForServer(absl::string_view server) const;
  // The token, into a call's metadata; `otherwise`, which may be empty, where there is none.
  void Apply(grpc::ClientContext& context, const std::string& otherwise = "") const;

  // Equal where connections can be shared. Holds no secret.
  const std::string& connection_key() const { return connection_key_; }

 private:
  Credentials() = default;
  absl::Status ReadToken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::string tls_ca_, tls_cert_, tls_key_, token_file_;
  std::string connection_key_;

  mutable absl::Mutex mu_;
  mutable std::shared_ptr<grpc::ChannelCredentials> tls_ ABSL_GUARDED_BY(mu_);  // made when needed
  mutable std::string token_ ABSL_GUARDED_BY(mu_);
  mutable absl::Time token_read_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln
