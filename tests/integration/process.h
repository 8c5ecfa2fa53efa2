// A child process with its output at hand.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/temp_dir.h"

namespace kiln::integration {

// Used by one thread. The destructor kills and reaps the child if it still runs.
class Process {
 public:
  // `environment`: "NAME=value", added to this process's own.
  static absl::StatusOr<std::unique_ptr<Process>> Start(
      const std::vector<std::string>& command, const std::vector<std::string>& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // The next line of standard output, without its end; nothing where the output ends or `timeout`
  // passes first.
  std::optional<std::string> ReadLine(absl::Duration timeout);
  void Signal(int signal);
  // The exit code, or 128 + the signal that ended it; nothing where it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout);
  // Standard error so far.
  std::string Errors() const;

 private:
  Process(pid_t pid, int stdout_fd, std::unique_ptr<TempDir> folder);
  const pid_t pid_;
  const int stdout_fd_;
  const std::unique_ptr<TempDir> folder_;  // holds the file that standard error goes to
  std::string unread_;
  std::optional<int> exit_;
};

struct Ended {
  int code = -1;  // as Process::Wait; -1 where it did not start or end in time
  std::string output;
  std::string errors;
};
// Starts `command` and waits a minute for its end.
Ended RunToEnd(const std::vector<std::string>& command,
               const std::vector<std::string>& environment = {});

// Processes whose parent is `parent`, through /proc: those that run, and those that ended and that
// nobody reaped.
std::vector<pid_t> ChildrenOf(pid_t parent);
std::vector<pid_t> ZombiesOf(pid_t parent);

}  // namespace kiln::integration
