// The server that a user's programs share where none is named: kilnd of this installation on a Unix
// socket of the user's, started by whoever finds it missing.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/patience.h"

namespace kiln {

// Immutable. Several threads and processes may start the server at once: one does, the others wait.
class OwnServer {
 public:
  // Looks for kilnd in the folder of the program or library that this code is in, in "bin" beside
  // and above it, then in the PATH. Where it is not found, or there is no folder for its socket or
  // its cache, every function below says so.
  static OwnServer Locate();

  // "unix:PATH"; "unix:" where it could not be located.
  const std::string& address() const { return address_; }
  // Its process; nothing where it does not run.
  absl::StatusOr<std::optional<pid_t>> Running() const;

  // Starts it unless it runs. UNAVAILABLE, with what it said last, where it does not start: then
  // nobody tries again for half a minute. The same where KILN_AUTOSTART=0 forbids a start. Where
  // the patience ends it starts without being waited for.
  absl::Status Ensure(const Patience& patience = nullptr) const;
  // As Ensure, whatever KILN_AUTOSTART says and whenever it failed.
  absl::Status Start() const;
  // False where none runs. Waits until it has ended; DEADLINE_EXCEEDED where it does not.
  absl::StatusOr<bool> Stop() const;

 private:
  absl::Status StartLocked(const Patience& patience) const;
  // Whether the cache is already a running server's that has a socket elsewhere, as that of a login
  // with another XDG_RUNTIME_DIR; then this process' socket is a link to that one from now on.
  absl::StatusOr<bool> ShareCachesServer() const;
  std::string FailureFile() const { return socket_ + ".failed"; }
  std::string LogFile() const { return socket_ + ".log"; }

  absl::Status problem_;  // why it could not be located
  std::string program_;
  std::string socket_;
  std::string address_ = "unix:";
  std::string data_dir_;
};

}  // namespace kiln
