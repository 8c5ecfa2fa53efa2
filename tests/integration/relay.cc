#include "tests/integration/relay.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kiln::integration {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Relay>> Relay::Start(const std::string& address) {
  int target_port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &target_port)) {
    return absl::InvalidArgumentError(address);
  }
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = Loopback(0);
  socklen_t size = sizeof(own);
  auto* raw = reinterpret_cast<sockaddr*>(&own);
  if (listener < 0 || bind(listener, raw, size) != 0 || listen(listener, 64) != 0 ||
      getsockname(listener, raw, &size) != 0) {
    return absl::ErrnoToStatus(errno, "a relay's socket");
  }
  return std::unique_ptr<Relay>(new Relay(listener, ntohs(own.sin_port), target_port));
}

Relay::Relay(int listener, int port, int target_port)
    : listener_(listener),
      target_port_(target_port),
      address_(absl::StrCat("127.0.0.1:", port)),
      acceptor_([this] { Accept(); }) {}

Relay::~Relay() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  Cut();
  std::vector<std::thread> pumps;
  {
    absl::MutexLock lock(&mu_);
    pumps.swap(pumps_);
  }
  for (std::thread& pump : pumps) pump.join();
  for (int socket : sockets_) close(socket);
}

void Relay::Cut() {
  absl::MutexLock lock(&mu_);
  for (int socket : sockets_) shutdown(socket, SHUT_RDWR);
}

void Relay::Accept() {
  while (true) {
    int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in target = Loopback(target_port_);
    if (connect(server, reinterpret_cast<sockaddr*>(&target), sizeof(target)) != 0) {
      shutdown(client, SHUT_RDWR);
    }
    absl::MutexLock lock(&mu_);
    sockets_.push_back(client);
    sockets_.push_back(server);
    pumps_.emplace_back([this, client, server] { Pump(client, server); });
    pumps_.emplace_back([this, client, server] { Pump(server, client); });
  }
}

void Relay::Pump(int from, int to) {
  char buffer[16384];
  while (true) {
    ssize_t size = read(from, buffer, sizeof(buffer));
    if (size <= 0) break;
    for (ssize_t sent = 0; sent < size;) {
      ssize_t part = send(to, buffer + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (part <= 0) break;
      sent += part;
    }
  }
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace kiln::integration
