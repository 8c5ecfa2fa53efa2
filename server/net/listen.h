// Sockets that listen, and descriptors kept for the day when there are no others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/address.h"

namespace kiln::server {

// A descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int Release();
  void Close();

 private:
  int fd_;
};

struct Listening {
  std::vector<Descriptor> sockets;  // non-blocking; one for each address of the name
  int port = 0;                     // the real one where 0 was asked for
};

// "0.0.0.0" and "::" take both families, where the system has both. ALREADY_EXISTS, with `flag`,
// where no address of the name can be had.
absl::StatusOr<Listening> Listen(const Address& address, absl::string_view flag);

// A Unix socket at `path` that only this user can connect to, non-blocking. A socket that nobody
// listens on any more gives way, as does a link to one; ALREADY_EXISTS, with `flag`, for any other
// file there.
absl::StatusOr<Descriptor> ListenOnSocket(const std::string& path, absl::string_view flag);

// Makes `link` a symbolic link to the socket at `path`, in one step; with an empty path there is no
// link afterwards. Programs find by it who has a data directory; without it they wait for that in
// vain, so a failure is logged and ends nothing.
void LinkSocket(const std::string& link, const std::string& path);

// Who is at the other end of a connection. Those of a Unix socket have no names: each gets one, but
// of all of them gRPC says "unix:".
struct Peer {
  // Without the port, IPv4 in its own form; of IPv6 the first half: the rest is one holder's to
  // choose.
  std::string address;
  std::string name;  // as grpc::ServerContext::peer() has it; "unix:" and a number
  bool is_unix = false;
};
std::optional<Peer> PeerOf(int fd);

// Whether accept(2) failed for want of descriptors or memory, and not for what a peer did.
bool IsExhaustion(int error);

// Raises this process's soft limit of descriptors to the hard one, and returns what is in force.
int64_t RaiseDescriptorLimit();

// A few descriptors that point nowhere. With none left in the process, one given up lets a
// connection be accepted. Used by one thread.
class SpareDescriptors {
 public:
  explicit SpareDescriptors(int count) : count_(count) { Refill(); }
  bool GiveUp();
  // Whether all are there (again).
  bool Refill();

 private:
  const int count_;
  std::vector<Descriptor> spares_;
};

}  // namespace kiln::server
