#include "server/web/http_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/time/clock.h"

namespace kiln::server {
namespace {

constexpr int kTickMs = 200;
constexpr size_t kMaxBufferBytes = kMaxHttpHeadBytes + kMaxHttpBodyBytes;
constexpr int kAcceptsARound = 64;

}  // namespace

struct HttpLoop::Connection {
  enum class State { kReading, kHandling, kWriting };

  uint64_t id = 0;
  Descriptor socket;
  std::string address;
  State state = State::kReading;
  std::string in;
  std::string out;
  size_t written = 0;
  bool keep_alive = false;
  bool served = false;  // has had a reply
  absl::Time since;     // begin of the connection, of the wait after a reply, or of the writing
  absl::Time first_byte = absl::InfiniteFuture();  // of the request that is awaited

  absl::Time Deadline(const HttpLimits& limits) const {
    switch (state) {
      case State::kHandling:
        return absl::InfiniteFuture();
      case State::kWriting:
        return since + limits.reply;
      case State::kReading:
        break;
    }
    return served ? std::min(since + limits.idle, first_byte + limits.request)
                  : since + limits.request;
  }
};

HttpLoop::HttpLoop(Listening listening, const HttpLimits& limits, Dispatch dispatch)
    : limits_(limits),
      dispatch_(std::move(dispatch)),
      listening_(std::move(listening)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      next_(listening_.sockets.size() + 1) {
  // Events carry 0 for the bell, then the listening sockets' places, then connections' numbers.
  auto watch = [this](int fd, uint64_t number) {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = number}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  };
  watch(wake_.get(), 0);
  for (size_t i = 0; i < listening_.sockets.size(); ++i) {
    watch(listening_.sockets[i].get(), i + 1);
  }
}

HttpLoop::~HttpLoop() {
  Stop();
}

void HttpLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void HttpLoop::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // a full counter wakes as well
  if (thread_.joinable()) thread_.join();
}

void HttpLoop::Reply(uint64_t connection, std::string bytes, bool keep_alive) {
  {
    absl::MutexLock lock(&mu_);
    answers_.push_back({connection, std::move(bytes), keep_alive});
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // a full counter wakes as well
}

void HttpLoop::Run() {
  std::array<epoll_event, 64> events;
  absl::Time looked = absl::Now();
  while (true) {
    const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), kTickMs);
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
    }
    for (int i = 0; i < ready; ++i) {
      const uint64_t number = events[static_cast<size_t>(i)].data.u64;
      if (number == 0) {
        uint64_t rings = 0;
        (void)!read(wake_.get(), &rings, sizeof(rings));  // what it rang for is looked at anyhow
      } else if (number <= listening_.sockets.size()) {
        Accept(listening_.sockets[number - 1].get());
      } else if (auto it = connections_.find(number); it != connections_.end()) {
        OnReady(*it->second);
      }
    }
    TakeAnswers();
    const absl::Time now = absl::Now();
    if (now - looked < absl::Milliseconds(kTickMs)) continue;
    looked = now;
    CloseLate(now);
    spares_.Refill();
  }
}

void HttpLoop::Accept(int listener) {
  for (int i = 0; i < kAcceptsARound; ++i) {
    Descriptor socket(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.ok()) {
      Add(std::move(socket));
    } else if (IsExhaustion(errno)) {
      // Probes must get in all the same.
      if (!spares_.GiveUp() && !CloseOldest("")) return;
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void HttpLoop::Add(Descriptor socket) {
  const std::optional<Peer> peer = PeerOf(socket.get());
  if (!peer) return;
  int of_address = 0;
  for (const auto& [number, other] : connections_) of_address += other->address == peer->address;
  if (!MakeRoom(peer->address, of_address)) return;
  const uint64_t id = next_++;
  auto connection = std::make_unique<Connection>();
  connection->id = id;
  connection->socket = std::move(socket);
  connection->address = peer->address;
  connection->since = absl::Now();
  epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = id}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event);
  Connection& added = *connection;
  connections_[id] = std::move(connection);
  Read(added);  // most have asked by now; whoever has is no longer the first to go
}

bool HttpLoop::MakeRoom(absl::string_view address, int of_address) {
  if (of_address >= limits_.connections_of_address && !CloseOldest(address)) return false;
  const bool full = connections_.size() >= static_cast<size_t>(limits_.connections);
  return !full || CloseOldest("");
}

bool HttpLoop::CloseOldest(absl::string_view address) {
  const Connection* oldest = nullptr;
  for (const auto& [number, connection] : connections_) {
    if (connection->state == Connection::State::kHandling) continue;
    if (!address.empty() && connection->address != address) continue;
    if (oldest == nullptr || connection->since < oldest->since) oldest = connection.get();
  }
  if (oldest == nullptr) return false;
  Close(oldest->id);
  return true;
}

void HttpLoop::OnReady(Connection& connection) {
  switch (connection.state) {
    case Connection::State::kReading:
      return Read(connection);
    case Connection::State::kWriting:
      return Write(connection);
    case Connection::State::kHandling:
      return;
  }
}

void HttpLoop::Read(Connection& connection) {
  char buffer[8192];
  while (connection.in.size() < kMaxBufferBytes) {
    const ssize_t n = recv(connection.socket.get(), buffer, sizeof(buffer), 0);
    if (n > 0) {
      if (connection.in.empty()) connection.first_byte = absl::Now();
      connection.in.append(buffer, static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      break;
    } else {
      return Close(connection.id);
    }
  }
  TakeRequest(connection);
}

void HttpLoop::TakeRequest(Connection& connection) {
  ParsedRequest request = ParseRequest(connection.in);
  switch (request.state) {
    case ParsedRequest::State::kIncomplete:
      return Arm(connection, EPOLLIN);
    case ParsedRequest::State::kRefused: {
      const HttpReply reply{.code = request.refusal, .body = "this request is not understood\n"};
      return StartReply(connection, SerializeReply(reply, true, false), false);
    }
    case ParsedRequest::State::kWhole:
      break;
  }
  connection.in.erase(0, request.bytes);
  connection.state = Connection::State::kHandling;
  dispatch_(connection.id, std::move(request));
}

void HttpLoop::StartReply(Connection& connection, std::string bytes, bool keep_alive) {
  connection.state = Connection::State::kWriting;
  connection.out = std::move(bytes);
  connection.written = 0;
  connection.keep_alive = keep_alive;
  connection.since = absl::Now();
  Write(connection);
}

void HttpLoop::Write(Connection& connection) {
  while (connection.written < connection.out.size()) {
    const ssize_t n = send(connection.socket.get(), connection.out.data() + connection.written,
                           connection.out.size() - connection.written, MSG_NOSIGNAL);
    if (n > 0) {
      connection.written += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      return Arm(connection, EPOLLOUT);
    } else {
      return Close(connection.id);
    }
  }
  EndReply(connection);
}

void HttpLoop::EndReply(Connection& connection) {
  if (!connection.keep_alive) {
    // What was not read would make the kernel take the reply back.
    char rest[8192];
    shutdown(connection.socket.get(), SHUT_WR);
    for (int i = 0; i < 16 && recv(connection.socket.get(), rest, sizeof(rest), 0) > 0; ++i) {
    }
    return Close(connection.id);
  }
  connection.out = {};
  connection.served = true;
  connection.state = Connection::State::kReading;
  connection.since = absl::Now();
  connection.first_byte = connection.in.empty() ? absl::InfiniteFuture() : connection.since;
  TakeRequest(connection);
}

void HttpLoop::TakeAnswers() {
  std::vector<Answer> answers;
  {
    absl::MutexLock lock(&mu_);
    answers.swap(answers_);
  }
  for (Answer& answer : answers) {
    auto it = connections_.find(answer.connection);
    if (it == connections_.end()) continue;
    StartReply(*it->second, std::move(answer.bytes), answer.keep_alive);
  }
}

void HttpLoop::CloseLate(absl::Time now) {
  std::vector<uint64_t> late;
  for (const auto& [number, connection] : connections_) {
    if (connection->Deadline(limits_) <= now) late.push_back(number);
  }
  for (uint64_t number : late) Close(number);
}

void HttpLoop::Arm(Connection& connection, uint32_t events) {
  epoll_event event = {.events = events | EPOLLONESHOT, .data = {.u64 = connection.id}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

void HttpLoop::Close(uint64_t connection) {
  connections_.erase(connection);
  spares_.Refill();
}

}  // namespace kiln::server
