// A connection that can be cut: forwards TCP on loopback.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace kiln::integration {

// Thread-safe.
class Relay {
 public:
  // To `address`, "127.0.0.1:PORT".
  static absl::StatusOr<std::unique_ptr<Relay>> Start(const std::string& address);
  ~Relay();
  const std::string& address() const { return address_; }
  // Cuts every connection; new ones are forwarded as before.
  void Cut();

 private:
  Relay(int listener, int port, int target_port);
  void Accept();
  void Pump(int from, int to);

  const int listener_;
  const int target_port_;
  const std::string address_;
  absl::Mutex mu_;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> pumps_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace kiln::integration
