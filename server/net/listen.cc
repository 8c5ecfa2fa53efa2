#include "server/net/listen.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

struct Bindable {
  sockaddr_storage address = {};
  socklen_t size = 0;
  bool both_families = false;
};

Bindable MakeBindable(const sockaddr* address, socklen_t size) {
  Bindable out;
  std::memcpy(&out.address, address, size);
  out.size = size;
  return out;
}

Bindable Everything(int family) {
  if (family == AF_INET6) {
    const sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    Bindable out = MakeBindable(reinterpret_cast<const sockaddr*>(&any), sizeof(any));
    out.both_families = true;
    return out;
  }
  const sockaddr_in any = {.sin_family = AF_INET, .sin_addr = {.s_addr = INADDR_ANY}};
  return MakeBindable(reinterpret_cast<const sockaddr*>(&any), sizeof(any));
}

void SetPort(Bindable& to, int port) {
  const uint16_t wire = htons(static_cast<uint16_t>(port));
  if (to.address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&to.address)->sin6_port = wire;
  } else {
    reinterpret_cast<sockaddr_in*>(&to.address)->sin_port = wire;
  }
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

Descriptor Bind(const Bindable& to) {
  Descriptor fd(socket(to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int v6_only = to.both_families ? 0 : 1;
  if (!fd.ok() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
      (to.address.ss_family == AF_INET6 &&
       setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only)) != 0) ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return Descriptor();
  }
  return fd;
}

std::vector<Bindable> Resolve(const std::string& host) {
  std::vector<Bindable> out;
  const addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return out;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET || at->ai_family == AF_INET6) {
      out.push_back(MakeBindable(at->ai_addr, at->ai_addrlen));
    }
  }
  return out;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

int Descriptor::Release() {
  return std::exchange(fd_, -1);
}

void Descriptor::Close() {
  if (const int fd = Release(); fd >= 0) close(fd);
}

absl::StatusOr<Listening> Listen(const Address& address, absl::string_view flag) {
  Listening out;
  out.port = address.port;
  auto add = [&out](Bindable to) {
    SetPort(to, out.port);
    Descriptor fd = Bind(to);
    if (!fd.ok()) return false;
    if (out.port == 0) out.port = PortOf(fd.get());
    out.sockets.push_back(std::move(fd));
    return true;
  };
  if (address.host == "0.0.0.0" || address.host == "::") {
    if (!add(Everything(AF_INET6))) add(Everything(AF_INET));
  } else {
    for (const Bindable& to : Resolve(address.host)) add(to);
  }
  if (!out.sockets.empty()) return out;
  return absl::AlreadyExistsError(
      absl::StrCat("cannot listen on ", address.ToString(), " (", flag,
                   "): the port is in use or the address is not this machine's"));
}

absl::StatusOr<Descriptor> ListenOnSocket(const std::string& path, absl::string_view flag) {
  const std::string what = absl::StrCat("cannot listen on the socket ", path, " (", flag, "): ");
  sockaddr_un address = {.sun_family = AF_UNIX};
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::AlreadyExistsError(
        absl::StrCat(what, "its path has more than ", sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  auto bound = [&](const Descriptor& fd) {
    return fd.ok() && bind(fd.get(), name, sizeof(address)) == 0;
  };
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!bound(fd)) {
    struct stat found = {};
    if (errno != EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(what, std::strerror(errno)));
    }
    // A link is a client's, to the socket of a server that it found elsewhere.
    const bool is_ours =
        lstat(path.c_str(), &found) == 0 && (S_ISSOCK(found.st_mode) || S_ISLNK(found.st_mode));
    if (!is_ours) {
      return absl::AlreadyExistsError(absl::StrCat(what, "there is a file that is no socket"));
    }
    const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!probe.ok() || connect(probe.get(), name, sizeof(address)) == 0 ||
        (errno != ECONNREFUSED && errno != ENOENT)) {
      return absl::AlreadyExistsError(absl::StrCat(what, "another server listens there"));
    }
    unlink(path.c_str());
    if (!bound(fd)) return absl::AlreadyExistsError(absl::StrCat(what, std::strerror(errno)));
  }
  // Nobody connects before listen, and the acceptor looks at who does (IsOwnUser).
  if (chmod(path.c_str(), 0600) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return absl::AlreadyExistsError(absl::StrCat(what, std::strerror(errno)));
  }
  return fd;
}

void LinkSocket(const std::string& link, const std::string& path) {
  const std::string made = absl::StrCat(link, ".new");
  unlink(made.c_str());
  const bool ok = path.empty()
                      ? unlink(link.c_str()) == 0 || errno == ENOENT
                      : symlink(std::filesystem::absolute(path).c_str(), made.c_str()) == 0 &&
                            std::rename(made.c_str(), link.c_str()) == 0;
  if (!ok) {
    Log(LogLevel::kWarning, "other logins of this user will not find the socket",
        {{"link", link}, {"why", std::strerror(errno)}});
  }
}

std::optional<Peer> PeerOf(int fd) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return std::nullopt;
  if (peer.ss_family == AF_UNIX) {
    struct stat socket = {};
    if (fstat(fd, &socket) != 0) return std::nullopt;
    return Peer{"unix", absl::StrCat("unix:", socket.st_ino), true};
  }
  char text[INET6_ADDRSTRLEN] = {};
  if (peer.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&peer);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return Peer{text, absl::StrCat("ipv4:", text, ":", ntohs(v4->sin_port))};
  }
  if (peer.ss_family != AF_INET6) return std::nullopt;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&peer);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof(text));
    return Peer{text, absl::StrCat("ipv4:", text, ":", ntohs(v6->sin6_port))};
  }
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  std::string name = absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(v6->sin6_port));
  in6_addr network = v6->sin6_addr;
  std::fill(std::begin(network.s6_addr) + 8, std::end(network.s6_addr), uint8_t{0});
  inet_ntop(AF_INET6, &network, text, sizeof(text));
  return Peer{text, std::move(name)};
}

bool IsExhaustion(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

int64_t RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised = {limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  constexpr rlim_t kEnough = 1 << 30;
  return static_cast<int64_t>(limit.rlim_cur < kEnough ? limit.rlim_cur : kEnough);
}

bool SpareDescriptors::GiveUp() {
  if (spares_.empty()) return false;
  spares_.pop_back();
  return true;
}

bool SpareDescriptors::Refill() {
  while (spares_.size() < static_cast<size_t>(count_)) {
    Descriptor spare(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!spare.ok()) return false;
    spares_.push_back(std::move(spare));
  }
  return true;
}

}  // namespace kiln::server
