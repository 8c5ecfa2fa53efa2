// A TCP server on a free port of loopback that does as a test says.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache/remote/endpoint.h"

namespace kiln::cache {

class ScriptedServer {
 public:
  // Runs once for each connection, on a thread of its own, with a blocking descriptor, which is
  // closed at its return. A peer's end lets reads return 0.
  using Script = std::function<void(int fd)>;
  explicit ScriptedServer(Script script);
  // Ends every connection.
  ~ScriptedServer();

  Endpoint endpoint() const { return {"127.0.0.1", port_}; }
  int connections();

 private:
  void Accept();

  const Script script_;
  int listen_fd_ = -1;
  int port_ = 0;
  absl::Mutex mu_;
  std::vector<int> fds_ ABSL_GUARDED_BY(mu_);  // of running scripts
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

// Reads whatever comes next; empty where the peer has gone.
std::string ReadSome(int fd);
void WriteAll(int fd, const std::string& bytes);

}  // namespace kiln::cache
