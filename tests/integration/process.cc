#include "tests/integration/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

extern char** environ;

namespace kiln::integration {
namespace {

constexpr absl::Duration kEndLimit = absl::Minutes(1);

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string ErrorsPath(const TempDir& folder) {
  return folder.path() + "/stderr";
}

// Zombies, or all others.
std::vector<pid_t> FindChildren(pid_t parent, bool zombies) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    int64_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    // "PID (NAME) STATE PPID ...", where NAME may hold anything.
    size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) continue;  // it ended meanwhile
    std::istringstream fields(text.substr(name_end + 1));
    char state = 0;
    pid_t ppid = 0;
    fields >> state >> ppid;
    if (ppid == parent && (state == 'Z') == zombies) children.push_back(static_cast<pid_t>(pid));
  }
  return children;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(
    const std::vector<std::string>& command, const std::vector<std::string>& environment) {
  auto folder = std::make_unique<TempDir>();
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::InternalError(strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
  std::string errors_path = ErrorsPath(*folder);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  std::vector<std::string> arguments = command;
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  pid_t pid = -1;
  int error = posix_spawn(&pid, command[0].c_str(), &actions, nullptr, Pointers(arguments).data(),
                          Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(fds[1]);
  if (error != 0) {
    close(fds[0]);
    return absl::InternalError(absl::StrCat("cannot start ", command[0], ": ", strerror(error)));
  }
  return std::unique_ptr<Process>(new Process(pid, fds[0], std::move(folder)));
}

Process::Process(pid_t pid, int stdout_fd, std::unique_ptr<TempDir> folder)
    : pid_(pid), stdout_fd_(stdout_fd), folder_(std::move(folder)) {}

Process::~Process() {
  if (!exit_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(stdout_fd_);
}

std::optional<std::string> Process::ReadLine(absl::Duration timeout) {
  absl::Time deadline = absl::Now() + timeout;
  while (true) {
    if (size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    pollfd wait = {stdout_fd_, POLLIN, 0};
    auto left_ms = static_cast<int>(absl::ToInt64Milliseconds(deadline - absl::Now()));
    if (left_ms <= 0 || poll(&wait, 1, left_ms) <= 0) return std::nullopt;
    char buffer[4096];
    ssize_t n = read(stdout_fd_, buffer, sizeof(buffer));
    if (n <= 0) return std::nullopt;
    unread_.append(buffer, static_cast<size_t>(n));
  }
}

void Process::Signal(int signal) {
  if (!exit_) kill(pid_, signal);
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  absl::Time deadline = absl::Now() + timeout;
  while (!exit_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      break;
    }
    if (absl::Now() > deadline) break;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return exit_;
}

std::string Process::Errors() const {
  std::stringstream text;
  text << std::ifstream(ErrorsPath(*folder_)).rdbuf();
  return text.str();
}

Ended RunToEnd(const std::vector<std::string>& command,
               const std::vector<std::string>& environment) {
  auto process = Process::Start(command, environment);
  if (!process.ok()) return {.errors = process.status().ToString()};
  Ended ended;
  while (auto line = (*process)->ReadLine(kEndLimit)) absl::StrAppend(&ended.output, *line, "\n");
  ended.code = (*process)->Wait(kEndLimit).value_or(-1);
  ended.errors = (*process)->Errors();
  return ended;
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  return FindChildren(parent, /*zombies=*/false);
}

std::vector<pid_t> ZombiesOf(pid_t parent) {
  return FindChildren(parent, /*zombies=*/true);
}

}  // namespace kiln::integration
