#include "server/rpc/acceptor.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/base/log.h"
#include "proto/base/own_server.h"

namespace kiln::server {
namespace {

constexpr absl::string_view kLimit = "limit";
constexpr absl::string_view kAddressLimit = "address_limit";
constexpr int kAcceptsARound = 64;
constexpr int kIdleMs = 1000;
constexpr int kExhaustedMs = 100;  // between looks for a descriptor
constexpr int kNeeded = 8;         // descriptors that must be free to go on
// A look at each connection takes a microsecond: not for every one that comes.
constexpr absl::Duration kForgetEvery = absl::Milliseconds(20);
constexpr absl::Duration kLogEvery = absl::Seconds(10);

// 0 for what is no open descriptor.
ino_t InodeOf(int fd) {
  struct stat found = {};
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

// Without the wait of a polite end: the peer sees at once that it is to go.
void CloseAtOnce(Descriptor connection) {
  const linger none = {.l_onoff = 1, .l_linger = 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

Descriptor AcceptOne(int listener) {
  return Descriptor(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Make(std::vector<Descriptor> sockets,
                                                         const AcceptorLimits& limits) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(sockets), limits));
  acceptor->wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!acceptor->wake_.ok()) return absl::ResourceExhaustedError("no descriptor is left");
  return acceptor;
}

void Acceptor::Start(Handover handover) {
  handover_ = std::move(handover);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  if (wake_.ok()) (void)!write(wake_.get(), &one, sizeof(one));  // a full counter wakes as well
  if (thread_.joinable()) thread_.join();
  sockets_.clear();
}

AcceptorCounts Acceptor::Counts() {
  absl::MutexLock lock(&mu_);
  Forget();
  AcceptorCounts counts = counts_;
  counts.connections = static_cast<int>(connections_.size());
  counts.addresses = static_cast<int>(of_address_.size());
  return counts;
}

std::optional<int64_t> Acceptor::ReceivedBytes(absl::string_view peer) {
  absl::MutexLock lock(&mu_);
  auto it = connections_.find(peer);
  if (it == connections_.end() || InodeOf(it->second.fd) != it->second.socket) return std::nullopt;
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(it->second.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

void Acceptor::Run() {
  std::vector<pollfd> ready;
  ready.push_back({wake_.get(), POLLIN, 0});
  for (const Descriptor& socket : sockets_) ready.push_back({socket.get(), POLLIN, 0});
  absl::Time looked = absl::InfinitePast();
  while (true) {
    bool exhausted;
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
      exhausted = counts_.out_of_descriptors;
    }
    poll(ready.data(), ready.size(), exhausted ? kExhaustedMs : kIdleMs);
    if (exhausted || absl::Now() - looked > absl::Milliseconds(kIdleMs)) {
      LookForDescriptors();
      LogRefusals();
      looked = absl::Now();
    }
    for (size_t i = 1; i < ready.size(); ++i) {
      if (ready[i].revents != 0) AcceptAll(ready[i].fd);
    }
  }
}

void Acceptor::AcceptAll(int listener) {
  for (int i = 0; i < kAcceptsARound; ++i) {
    Descriptor connection = AcceptOne(listener);
    if (connection.ok()) {
      Take(listener, std::move(connection));
    } else if (IsExhaustion(errno)) {
      return RefuseForDescriptors(listener);
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void Acceptor::Take(int listener, Descriptor connection) {
  const std::optional<Peer> peer = PeerOf(connection.get());
  if (!peer) return;  // it has gone again
  if (peer->is_unix && !IsOwnUser(connection.get())) {
    Log(LogLevel::kWarning, "another user's connection to the socket was refused");
    return;
  }
  if (auto refused = Register(connection.get(), *peer)) {
    absl::MutexLock lock(&mu_);
    ++(*refused == kLimit ? counts_.refused_limit : counts_.refused_address_limit);
    return CloseAtOnce(std::move(connection));
  }
  handover_(listener, connection.Release());
}

std::optional<absl::string_view> Acceptor::Register(int fd, const Peer& peer) {
  absl::MutexLock lock(&mu_);
  auto full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> std::optional<absl::string_view> {
    if (static_cast<int>(connections_.size()) >= limits_.connections) return kLimit;
    auto it = of_address_.find(peer.address);
    if (it != of_address_.end() && it->second >= limits_.of_address) return kAddressLimit;
    return std::nullopt;
  };
  if (full()) Forget();
  if (auto why = full()) return why;
  Connection& connection = connections_[peer.name];
  if (connection.fd < 0) ++of_address_[peer.address];  // else its peer took the same port again
  connection = {fd, InodeOf(fd), peer.address};
  return std::nullopt;
}

void Acceptor::Forget() {
  const absl::Time now = absl::Now();
  if (now - forgot_ < kForgetEvery) return;
  forgot_ = now;
  absl::erase_if(connections_, [this](const auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Connection& connection = entry.second;
    if (InodeOf(connection.fd) == connection.socket) return false;
    auto it = of_address_.find(connection.address);
    if (--it->second == 0) of_address_.erase(it);
    return true;
  });
}

// Those that wait learn that they wait in vain; left alone, they would keep the port unreachable.
void Acceptor::RefuseForDescriptors(int listener) {
  int refused = 0;
  while (refused < kAcceptsARound && spares_.GiveUp()) {
    Descriptor connection = AcceptOne(listener);
    const bool got = connection.ok();
    if (got) CloseAtOnce(std::move(connection));
    spares_.Refill();
    if (!got) break;
    ++refused;
  }
  LookForDescriptors();
  absl::MutexLock lock(&mu_);
  counts_.refused_descriptors += refused;
}

void Acceptor::LookForDescriptors() {
  bool enough;
  {
    SpareDescriptors probe(kNeeded);
    enough = spares_.Refill() && probe.Refill();
  }
  bool before;
  {
    absl::MutexLock lock(&mu_);
    before = std::exchange(counts_.out_of_descriptors, !enough);
    if (!before && !enough) ++counts_.exhaustions;
  }
  if (before == !enough) return;
  if (enough) {
    Log(LogLevel::kInfo, "descriptors are free again");
  } else {
    Log(LogLevel::kError, "no file descriptor is left: connections are refused until some are free",
        {{"connections", static_cast<int64_t>(Counts().connections)}});
  }
}

void Acceptor::LogRefusals() {
  const AcceptorCounts counts = Counts();
  const int64_t refused =
      counts.refused_limit + counts.refused_address_limit + counts.refused_descriptors;
  if (refused == logged_refusals_ || absl::Now() - logged_ < kLogEvery) return;
  Log(LogLevel::kWarning, "connections were refused",
      {{"count", refused - logged_refusals_},
       {"connections", static_cast<int64_t>(counts.connections)},
       {"addresses", static_cast<int64_t>(counts.addresses)}});
  logged_refusals_ = refused;
  logged_ = absl::Now();
}

}  // namespace kiln::server
