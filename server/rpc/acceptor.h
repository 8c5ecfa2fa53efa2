// Accepts the connections of the gRPC port and hands them to gRPC. gRPC's own listener has no limit
// on connections, and never accepts again once descriptors have run out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/net/listen.h"

namespace kiln::server {

struct AcceptorLimits {
  int connections = 1024;
  int of_address = 512;  // of one peer address
};

struct AcceptorCounts {
  int connections = 0;
  int addresses = 0;
  bool out_of_descriptors = false;  // now, in the whole process
  int64_t refused_limit = 0;
  int64_t refused_address_limit = 0;
  int64_t refused_descriptors = 0;
  int64_t exhaustions = 0;  // how often descriptors ran out
};

// Thread-safe.
class Acceptor {
 public:
  // Takes the connection and its descriptor.
  using Handover = std::function<void(int listener, int connection)>;

  // Accepts from Start on. Of Unix sockets whoever is not this user or root is closed at once.
  // RESOURCE_EXHAUSTED without descriptors.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Make(std::vector<Descriptor> sockets,
                                                        const AcceptorLimits& limits);
  ~Acceptor() { Stop(); }

  // `handover` is called on the acceptor's thread. Once.
  void Start(Handover handover);
  // Closes the listening sockets; after it nothing is handed over.
  void Stop();

  AcceptorCounts Counts();
  // What the kernel has received for a connection that is open; `peer` as Peer::name.
  std::optional<int64_t> ReceivedBytes(absl::string_view peer);

 private:
  // Whoever got the descriptor closes it without a word: it is the same connection as long as its
  // number names the same socket.
  struct Connection {
    int fd = -1;
    ino_t socket = 0;
    std::string address;
  };

  Acceptor(std::vector<Descriptor> sockets, const AcceptorLimits& limits)
      : limits_(limits), sockets_(std::move(sockets)) {}
  void Run();
  void AcceptAll(int listener);
  void Take(int listener, Descriptor connection);
  // Nothing where it may stay; else why not.
  std::optional<absl::string_view> Register(int fd, const Peer& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void RefuseForDescriptors(int listener);
  void LookForDescriptors();
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogRefusals() ABSL_LOCKS_EXCLUDED(mu_);

  const AcceptorLimits limits_;
  std::vector<Descriptor> sockets_;
  Descriptor wake_;
  Handover handover_;
  SpareDescriptors spares_{2};  // of the thread
  std::thread thread_;

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, Connection> connections_ ABSL_GUARDED_BY(mu_);  // by peer
  absl::flat_hash_map<std::string, int> of_address_ ABSL_GUARDED_BY(mu_);
  absl::Time forgot_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  AcceptorCounts counts_ ABSL_GUARDED_BY(mu_);
  absl::Time logged_ = absl::InfinitePast();
  int64_t logged_refusals_ = 0;
};

}  // namespace kiln::server
