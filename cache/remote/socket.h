// A stream to a server, plain or TLS, whose every operation has a deadline.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/remote/deadline.h"
#include "cache/remote/endpoint.h"
#include "cache/remote/resolver.h"

namespace kiln::cache {

// What makes a stream a TLS one. Thread-safe.
class TlsClient {
 public:
  ~TlsClient();
  // Trusts the certificates of `ca_file` (PEM), or the system's where it is empty.
  // INVALID_ARGUMENT where the file holds none.
  static absl::StatusOr<std::unique_ptr<TlsClient>> Create(const std::string& ca_file);

  struct Context;
  Context& context() const { return *context_; }

 private:
  explicit TlsClient(std::unique_ptr<Context> context);
  const std::unique_ptr<Context> context_;
};

// Used by one thread at a time. After any error it is of no more use. A process that uses TLS
// ignores SIGPIPE.
class Socket {
 public:
  // Tries the addresses one after another. `tls` is null for a plain stream; otherwise the server
  // must show a certificate for `endpoint`'s host.
  static absl::StatusOr<std::unique_ptr<Socket>> Connect(
      const Endpoint& endpoint, const std::vector<SocketAddress>& addresses, const TlsClient* tls,
      SteadyTime deadline);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // DEADLINE_EXCEEDED, or UNAVAILABLE where the stream broke.
  absl::Status WriteAll(absl::string_view bytes, SteadyTime deadline);
  // At least one byte; UNAVAILABLE where the server closed the stream.
  absl::StatusOr<size_t> ReadSome(char* buffer, size_t size, SteadyTime deadline);
  // Open, with nothing to read: fit for another request.
  bool IsIdle();

 private:
  struct Tls;
  explicit Socket(int fd);
  absl::Status StartTls(const Endpoint& endpoint, const TlsClient& tls, SteadyTime deadline);
  absl::Status Wait(short events, SteadyTime deadline) const;
  // Waits as the TLS operation that returned `result` asks for.
  absl::Status WaitForTls(int result, SteadyTime deadline) const;

  const int fd_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace kiln::cache
