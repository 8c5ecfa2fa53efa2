// redis-server processes on loopback, one or a cluster, and a plain client for looking into them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/integration/process.h"
#include "tests/temp_dir.h"

namespace kiln::integration {

// The program's path, looked for in PATH; empty where there is none.
std::string FindProgram(const std::string& name);
// KILN_REDIS_SERVER, for another server that speaks the protocol, else redis-server; "" for none.
std::string RedisServerProgram();

// A port of loopback that nobody listens on at the moment.
int FreePort();

class RedisProcess {
 public:
  // Returns once it answers. `options` as on its command line, "--requirepass", "x".
  static absl::StatusOr<std::unique_ptr<RedisProcess>> Start(std::vector<std::string> options = {});

  int port() const { return port_; }
  std::string address() const;  // "127.0.0.1:PORT"
  Process& process() { return *process_; }

  // A command on a connection of its own; strings as they are, integers in decimal, nil as "(nil)",
  // arrays joined by spaces, errors as "ERR ...", a failed connection as "(no answer)".
  std::string Call(const std::vector<std::string>& command) const;
  // As Call, again and again until that is the answer.
  bool Becomes(const std::vector<std::string>& command, const std::string& answer,
               absl::Duration timeout = absl::Seconds(20)) const;

  // SIGKILL, then a new process on the same port, without the data.
  void Kill();
  absl::Status StartAgain();
  // A process that is stopped takes connections (the kernel does) and answers nothing.
  void Stop() { process_->Signal(19 /* SIGSTOP */); }
  void Continue() { process_->Signal(18 /* SIGCONT */); }

 private:
  TempDir dir_;
  int port_ = 0;
  std::vector<std::string> command_;
  std::string password_;
  std::unique_ptr<Process> process_;
};

// Three masters, and a replica of the first.
class RedisCluster {
 public:
  static absl::StatusOr<std::unique_ptr<RedisCluster>> Start();

  std::vector<std::string> addresses() const;
  RedisProcess& master(int i) { return *nodes_[static_cast<size_t>(i)]; }
  RedisProcess& replica() { return *nodes_[3]; }
  // The number of the master that owns the key's slot, as the cluster says.
  int OwnerOf(const std::string& key);
  // Moves the slot of `key`, with all its keys, between masters. Between the two calls the source
  // redirects for its keys by ASK, after the second by MOVED.
  void BeginMove(const std::string& key, int from, int to);
  void EndMove(const std::string& key, int from, int to);

 private:
  std::string IdOf(int node);
  std::vector<std::unique_ptr<RedisProcess>> nodes_;
};

}  // namespace kiln::integration
