#include "tests/unit/server/collector.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kiln::server {

Collector::Collector() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      listen(listener_, 8) == 0 &&
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port_ = ntohs(address.sin_port);
  }
  thread_ = std::thread([this] { Run(); });
}

Collector::~Collector() {
  stopping_ = true;
  thread_.join();
  close(listener_);
}

std::string Collector::url() const {
  return absl::StrCat("http://127.0.0.1:", port_, "/v1/traces");
}

void Collector::Run() {
  while (!stopping_) {
    pollfd waiting = {listener_, POLLIN, 0};
    if (poll(&waiting, 1, 20) <= 0) continue;
    int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    Serve(connection);
    close(connection);
  }
}

void Collector::Serve(int connection) {
  std::string data;
  while (!stopping_) {
    size_t end = data.find("\r\n\r\n");
    if (end != std::string::npos) {
      size_t at = data.find("Content-Length: ");
      size_t length = 0;
      if (at != std::string::npos) {
        size_t from = at + 16;
        (void)absl::SimpleAtoi(data.substr(from, data.find("\r\n", from) - from), &length);
      }
      if (data.size() >= end + 4 + length) {
        absl::MutexLock lock(&mu_);
        head_ = data.substr(0, end);
        bodies_.push_back(data.substr(end + 4, length));
        data.erase(0, end + 4 + length);
        if (status_ == 0) continue;
        std::string answer =
            absl::StrCat("HTTP/1.1 ", status_.load(), " X\r\nContent-Length: 2\r\n\r\n{}");
        if (write(connection, answer.data(), answer.size()) < 0) return;
        continue;
      }
    }
    pollfd waiting = {connection, POLLIN, 0};
    if (poll(&waiting, 1, 20) <= 0) continue;
    char buffer[65536];
    ssize_t got = read(connection, buffer, sizeof(buffer));
    if (got <= 0) return;
    data.append(buffer, static_cast<size_t>(got));
  }
}

std::vector<std::string> Collector::Bodies(size_t count, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  auto enough = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return bodies_.size() >= count; };
  mu_.AwaitWithTimeout(absl::Condition(&enough), timeout);
  return bodies_;
}

std::string Collector::LastHead() {
  absl::MutexLock lock(&mu_);
  return head_;
}

}  // namespace kiln::server
