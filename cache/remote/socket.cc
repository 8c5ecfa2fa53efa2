#include "cache/remote/socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

absl::Status Broken(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

std::string SslErrors() {
  std::string text;
  while (const unsigned long code = ERR_get_error()) {  // NOLINT: OpenSSL's type
    const char* reason = ERR_reason_error_string(code);
    absl::StrAppend(&text, text.empty() ? "" : "; ", reason == nullptr ? "unknown" : reason);
  }
  return text.empty() ? "the stream ended" : text;
}

absl::Status PollFor(int fd, short events, SteadyTime deadline) {
  while (true) {
    pollfd wait = {fd, events, 0};
    const int ready = poll(&wait, 1, PollTimeoutMs(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError("no answer within the time limit");
    if (errno != EINTR) return Broken("poll", errno);
  }
}

// A connected, non-blocking stream; the descriptor is the caller's.
absl::StatusOr<int> ConnectTo(const SocketAddress& address, SteadyTime deadline) {
  const int fd =
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return Broken("no socket", errno);
  absl::Status status;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size_bytes) != 0) {
    status = errno == EINPROGRESS ? PollFor(fd, POLLOUT, deadline) : Broken("connect", errno);
    int error = 0;
    socklen_t size = sizeof(error);
    if (status.ok() && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0) {
      status = Broken("connect", error);
    }
  }
  if (!status.ok()) {
    close(fd);
    return status;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  return fd;
}

bool IsNumeric(const std::string& host) {
  unsigned char raw[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), raw) == 1 || inet_pton(AF_INET6, host.c_str(), raw) == 1;
}

}  // namespace

struct TlsClient::Context {
  std::unique_ptr<SSL_CTX, FreeSsl> ssl;
};

struct Socket::Tls {
  std::unique_ptr<SSL, FreeSsl> ssl;
};

TlsClient::TlsClient(std::unique_ptr<Context> context) : context_(std::move(context)) {}
TlsClient::~TlsClient() = default;

absl::StatusOr<std::unique_ptr<TlsClient>> TlsClient::Create(const std::string& ca_file) {
  auto context = std::make_unique<Context>();
  context->ssl.reset(SSL_CTX_new(TLS_client_method()));
  if (context->ssl == nullptr) return absl::InternalError(absl::StrCat("OpenSSL: ", SslErrors()));
  SSL_CTX_set_min_proto_version(context->ssl.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context->ssl.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context->ssl.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const int trusted =
      ca_file.empty() ? SSL_CTX_set_default_verify_paths(context->ssl.get())
                      : SSL_CTX_load_verify_locations(context->ssl.get(), ca_file.c_str(), nullptr);
  if (trusted != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("no certificates to trust in ", ca_file, ": ", SslErrors()));
  }
  return std::unique_ptr<TlsClient>(new TlsClient(std::move(context)));
}

Socket::Socket(int fd) : fd_(fd) {}

Socket::~Socket() {
  close(fd_);
}

absl::StatusOr<std::unique_ptr<Socket>> Socket::Connect(const Endpoint& endpoint,
                                                        const std::vector<SocketAddress>& addresses,
                                                        const TlsClient* tls, SteadyTime deadline) {
  absl::Status last = absl::UnavailableError("no address");
  for (size_t i = 0; i < addresses.size(); ++i) {
    // An address that swallows packets leaves the others their share of the time.
    const auto share = static_cast<int64_t>(addresses.size() - i);
    const SteadyTime limit = std::min(deadline, DeadlineIn(TimeLeft(deadline) / share));
    absl::StatusOr<int> fd = ConnectTo(addresses[i], limit);
    if (!fd.ok()) {
      last = fd.status();
      continue;
    }
    std::unique_ptr<Socket> socket(new Socket(*fd));
    if (tls == nullptr) return socket;
    last = socket->StartTls(endpoint, *tls, limit);
    if (last.ok()) return socket;
  }
  return absl::Status(
      last.code(), absl::StrCat("cannot connect to ", endpoint.ToString(), ": ", last.message()));
}

absl::Status Socket::StartTls(const Endpoint& endpoint, const TlsClient& tls, SteadyTime deadline) {
  tls_ = std::make_unique<Tls>();
  tls_->ssl.reset(SSL_new(tls.context().ssl.get()));
  SSL* ssl = tls_->ssl.get();
  if (ssl == nullptr || SSL_set_fd(ssl, fd_) != 1) {
    return absl::UnavailableError(absl::StrCat("TLS: ", SslErrors()));
  }
  const bool named =
      IsNumeric(endpoint.host)
          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), endpoint.host.c_str()) == 1
          : SSL_set1_host(ssl, endpoint.host.c_str()) == 1 &&
                SSL_set_tlsext_host_name(ssl, endpoint.host.c_str()) == 1;
  if (!named) return absl::UnavailableError("TLS: no name to expect in the certificate");
  while (true) {
    ERR_clear_error();
    const int result = SSL_connect(ssl);
    if (result == 1) return absl::OkStatus();
    KILN_RETURN_IF_ERROR(WaitForTls(result, deadline));
  }
}

absl::Status Socket::Wait(short events, SteadyTime deadline) const {
  return PollFor(fd_, events, deadline);
}

absl::Status Socket::WaitForTls(int result, SteadyTime deadline) const {
  switch (SSL_get_error(tls_->ssl.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Wait(POLLIN, deadline);
    case SSL_ERROR_WANT_WRITE:
      return Wait(POLLOUT, deadline);
    default:
      return absl::UnavailableError(absl::StrCat("TLS: ", SslErrors()));
  }
}

absl::Status Socket::WriteAll(absl::string_view bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    if (tls_ != nullptr) {
      ERR_clear_error();
      const int size = static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX));
      const int sent = SSL_write(tls_->ssl.get(), bytes.data(), size);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else {
        KILN_RETURN_IF_ERROR(WaitForTls(sent, deadline));
      }
      continue;
    }
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      KILN_RETURN_IF_ERROR(Wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Broken("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Socket::ReadSome(char* buffer, size_t size, SteadyTime deadline) {
  while (true) {
    // A server that sends drop by drop never lets a read fail; the deadline ends it all the same.
    if (TimeLeft(deadline) <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("no whole answer within the time limit");
    }
    if (tls_ != nullptr) {
      ERR_clear_error();
      const int got =
          SSL_read(tls_->ssl.get(), buffer, static_cast<int>(std::min<size_t>(size, INT_MAX)));
      if (got > 0) return static_cast<size_t>(got);
      KILN_RETURN_IF_ERROR(WaitForTls(got, deadline));
      continue;
    }
    const ssize_t got = recv(fd_, buffer, size, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return absl::UnavailableError("the server closed the connection");
    if (errno == EAGAIN) {
      KILN_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    } else if (errno != EINTR) {
      return Broken("recv", errno);
    }
  }
}

bool Socket::IsIdle() {
  char byte = 0;
  if (tls_ != nullptr) {
    // Takes session tickets in, which arrive when they like.
    ERR_clear_error();
    const int got = SSL_peek(tls_->ssl.get(), &byte, 1);
    return got <= 0 && SSL_get_error(tls_->ssl.get(), got) == SSL_ERROR_WANT_READ;
  }
  return recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

}  // namespace kiln::cache
