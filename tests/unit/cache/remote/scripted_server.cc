#include "tests/unit/cache/remote/scripted_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace kiln::cache {

ScriptedServer::ScriptedServer(Script script) : script_(std::move(script)) {
  listen_fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), size);
  listen(listen_fd_, 16);
  getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

ScriptedServer::~ScriptedServer() {
  shutdown(listen_fd_, SHUT_RDWR);
  acceptor_.join();
  close(listen_fd_);
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mu_);
    for (int fd : fds_) shutdown(fd, SHUT_RDWR);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void ScriptedServer::Accept() {
  while (true) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    absl::MutexLock lock(&mu_);
    fds_.push_back(fd);
    threads_.emplace_back([this, fd] {
      script_(fd);
      absl::MutexLock inner(&mu_);
      fds_.erase(std::find(fds_.begin(), fds_.end(), fd));
      close(fd);
    });
  }
}

int ScriptedServer::connections() {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(threads_.size());
}

std::string ReadSome(int fd) {
  char buffer[65536];
  const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
  return n <= 0 ? "" : std::string(buffer, static_cast<size_t>(n));
}

void WriteAll(int fd, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

}  // namespace kiln::cache
