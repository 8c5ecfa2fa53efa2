#include "client/own_server.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/own_server.h"
#include "proto/base/status_macros.h"

extern char** environ;

namespace kiln {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(30);
constexpr absl::Duration kStopLimit = absl::Seconds(60);
constexpr absl::Duration kFailureKept = absl::Seconds(30);
constexpr absl::Duration kLook = absl::Milliseconds(10);
constexpr char kReady[] = "kilnd ready";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The file that this code was loaded from.
std::string OwnFile() {
  static const char anchor = 0;
  Dl_info info = {};
  char path[PATH_MAX];
  // A program's own name may be relative to where it was started.
  const bool library = dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr &&
                       absl::StrContains(info.dli_fname, ".so");
  return realpath(library ? info.dli_fname : "/proc/self/exe", path) == nullptr ? "" : path;
}

absl::StatusOr<std::string> FindProgram() {
  std::vector<std::string> folders;
  const std::string file = OwnFile();
  if (const size_t slash = file.rfind('/'); slash != std::string::npos) {
    const std::string folder = file.substr(0, slash);
    for (const char* below : {"", "/bin", "/../bin", "/../../bin"}) {
      folders.push_back(absl::StrCat(folder, below));
    }
  }
  for (absl::string_view folder : absl::StrSplit(Variable("PATH"), ':', absl::SkipEmpty())) {
    folders.emplace_back(folder);
  }
  for (const std::string& folder : folders) {
    const std::string program = absl::StrCat(folder, "/kilnd");
    char path[PATH_MAX];
    if (access(program.c_str(), X_OK) == 0 && realpath(program.c_str(), path) != nullptr) {
      return path;
    }
  }
  return absl::NotFoundError("kilnd is neither beside the client library nor in the PATH");
}

absl::StatusOr<std::string> CacheFolder() {
  if (std::string folder = Variable("KILN_DATA_DIR"); !folder.empty()) return folder;
  if (std::string cache = Variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/kiln";
  if (std::string home = Variable("HOME"); !home.empty()) return home + "/.cache/kiln";
  return absl::FailedPreconditionError(
      "there is no folder for its cache: neither HOME, XDG_CACHE_HOME nor KILN_DATA_DIR is set");
}

// A connection to the server at `socket`, or nothing where nobody listens.
std::optional<int> Connect(const std::string& socket_path) {
  sockaddr_un address = {.sun_family = AF_UNIX};
  if (socket_path.size() >= sizeof(address.sun_path)) return std::nullopt;
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return std::nullopt;
}

absl::Status Unavailable(absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("no server is named, and this user's own cannot be used: ", why,
                   " (KILN_SERVER=HOST:PORT names another one)"));
}

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string LastLine(const std::string& path) {
  const std::string text = ReadFile(path);
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (lines.empty()) return "it ended without a word";
  return std::string(absl::StripPrefix(lines.back(), "kilnd: "));
}

// What the last start ended with, where that was a moment ago.
std::optional<std::string> RecentFailure(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  if (absl::Now() - absl::TimeFromTimespec(found.st_mtim) > kFailureKept) return std::nullopt;
  return ReadFile(path);
}

// This process's environment, without what would lead the server astray.
std::vector<std::string> ServerEnvironment() {
  std::vector<std::string> variables;
  bool has_log_level = false;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    // A service manager waits for a word of the client's, not of its server.
    if (absl::StartsWith(*variable, "NOTIFY_SOCKET=")) continue;
    has_log_level |= absl::StartsWith(*variable, "KILN_LOG=");
    variables.emplace_back(*variable);
  }
  // Its log has no reader, and no end.
  if (!has_log_level) variables.emplace_back("KILN_LOG=warning");
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts `command` with standard output into a pipe, whose other end is returned, and standard
// error into `log`. It has none of this process's descriptors, signals or terminals.
absl::StatusOr<int> Spawn(std::vector<std::string> command, const std::string& log) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawn_file_actions_addchdir_np(&actions, "/");
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> environment = ServerEnvironment();
  pid_t child = -1;
  const int error = posix_spawn(&child, command[0].c_str(), &actions, &attributes,
                                Pointers(command).data(), Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(pipe_ends[1]);
  if (error != 0) {
    close(pipe_ends[0]);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", command[0]));
  }
  // It leaves a child of its own and ends; a program that reaps every child may be faster.
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return pipe_ends[0];
}

// Whether the server said that it is ready before it ended.
absl::StatusOr<bool> ReadReady(int fd, const Patience& patience) {
  const absl::Time deadline = absl::Now() + kStartLimit;
  std::string text;
  while (!absl::StrContains(text, '\n')) {
    pollfd wait = {fd, POLLIN, 0};
    const auto left_ms = absl::ToInt64Milliseconds(std::min(deadline - absl::Now(), kPatience));
    if (left_ms <= 0) return false;
    if (poll(&wait, 1, static_cast<int>(left_ms)) <= 0) {
      if (patience != nullptr) KILN_RETURN_IF_ERROR(patience());
      continue;
    }
    char buffer[1024];
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.append(buffer, static_cast<size_t>(n));
  }
  return absl::StartsWith(text, kReady);
}

// Held until the descriptor is closed. UNAVAILABLE where another process holds it for too long.
absl::StatusOr<int> Lock(const std::string& path, absl::Time deadline, const Patience& patience) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Unavailable(absl::StrCat("cannot lock ", path, ": ", strerror(errno)));
  absl::Time next_look = absl::Now() + kPatience;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (absl::Now() > deadline) {
      close(fd);
      return Unavailable("another process starts it, and does not get on");
    }
    absl::SleepFor(kLook);
    if (patience == nullptr || absl::Now() < next_look) continue;
    next_look = absl::Now() + kPatience;
    if (absl::Status ended = patience(); !ended.ok()) {
      close(fd);
      return ended;
    }
  }
  return fd;
}

// Of this user's server at the socket; nothing where nobody listens there.
absl::StatusOr<std::optional<pid_t>> ListenerAt(const std::string& socket) {
  const std::optional<int> fd = Connect(socket);
  if (!fd) return std::nullopt;
  const absl::Cleanup close_it = [&fd] { close(*fd); };
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (!IsOwnUser(*fd) || getsockopt(*fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Unavailable(absl::StrCat("another user's program listens at ", socket));
  }
  return peer.pid;
}

absl::StatusOr<bool> MayStart() {
  const std::string text = Variable("KILN_AUTOSTART");
  if (text.empty() || text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  return absl::InvalidArgumentError(
      absl::StrCat("KILN_AUTOSTART is '", text, "'; expected 0 or 1"));
}

}  // namespace

OwnServer OwnServer::Locate() {
  OwnServer server;
  server.problem_ = [&server]() -> absl::Status {
    KILN_ASSIGN_OR_RETURN(server.program_, FindProgram());
    KILN_ASSIGN_OR_RETURN(const std::string build, BuildIdOf(server.program_));
    KILN_ASSIGN_OR_RETURN(const std::string cache, CacheFolder());
    server.data_dir_ = OwnDataDir(cache, build);
    KILN_ASSIGN_OR_RETURN(const std::string folder, RuntimeFolder());
    server.socket_ = OwnSocket(folder, build);
    server.address_ = absl::StrCat("unix:", server.socket_);
    return absl::OkStatus();
  }();
  if (!server.problem_.ok()) server.problem_ = Unavailable(server.problem_.message());
  return server;
}

absl::StatusOr<std::optional<pid_t>> OwnServer::Running() const {
  KILN_RETURN_IF_ERROR(problem_);
  return ListenerAt(socket_);
}

absl::Status OwnServer::Ensure(const Patience& patience) const {
  KILN_ASSIGN_OR_RETURN(const std::optional<pid_t> running, Running());
  if (running) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(const bool may_start, MayStart());
  if (!may_start) {
    return Unavailable("it does not run, and KILN_AUTOSTART=0 forbids to start it ('kiln start')");
  }
  if (auto failure = RecentFailure(FailureFile())) return Unavailable(*failure);
  return StartLocked(patience);
}

absl::Status OwnServer::Start() const {
  KILN_RETURN_IF_ERROR(problem_);
  unlink(FailureFile().c_str());
  return StartLocked(nullptr);
}

absl::Status OwnServer::StartLocked(const Patience& patience) const {
  // Others may have the same socket and another cache, or another socket and the same cache.
  const absl::Time deadline = absl::Now() + 2 * kStartLimit;
  KILN_ASSIGN_OR_RETURN(const int lock, Lock(socket_ + ".lock", deadline, patience));
  const absl::Cleanup unlock = [lock] { close(lock); };
  std::error_code error;
  std::filesystem::create_directories(data_dir_, error);
  if (error) {
    return Unavailable(absl::StrCat("cannot make the folder ", data_dir_, " for its cache: ",
                                    error.message(), " (KILN_DATA_DIR names another place)"));
  }
  KILN_ASSIGN_OR_RETURN(const int cache_lock, Lock(data_dir_ + "/start.lock", deadline, patience));
  const absl::Cleanup unlock_cache = [cache_lock] { close(cache_lock); };
  KILN_ASSIGN_OR_RETURN(const std::optional<pid_t> running, Running());
  if (running) return absl::OkStatus();
  KILN_ASSIGN_OR_RETURN(const bool shared, ShareCachesServer());
  if (shared) return absl::OkStatus();
  if (auto failure = RecentFailure(FailureFile())) return Unavailable(*failure);

  std::vector<std::string> command = {
      program_,        "--background",          absl::StrCat("--socket=", socket_),
      "--listen=none", "--metrics-listen=none", absl::StrCat("--data-dir=", data_dir_)};
  // A flag would go before what the user says in the environment.
  if (Variable("KILND_IDLE_TIMEOUT").empty()) command.emplace_back("--idle-timeout=10m");
  if (Variable("KILND_CACHE_MAX_SIZE").empty()) command.emplace_back("--cache-max-size=5GiB");
  // It mostly waits, beside everything else that its user runs.
  if (Variable("KILND_WORKER_STANDBY").empty()) command.emplace_back("--worker-standby=2");
  const std::string log = LogFile();
  absl::StatusOr<int> output = Spawn(std::move(command), log);
  std::string failure(output.status().message());
  if (output.ok()) {
    const absl::StatusOr<bool> ready = ReadReady(*output, patience);
    close(*output);
    KILN_RETURN_IF_ERROR(ready.status());
    if (*ready) return absl::OkStatus();
    failure = LastLine(log);
  }
  absl::StrAppend(&failure, "; its log is ", log);
  // A failure to write it costs the next process a start of its own.
  std::ofstream(FailureFile()) << "it does not start: " << failure;
  return Unavailable(absl::StrCat("it does not start: ", failure));
}

absl::StatusOr<bool> OwnServer::ShareCachesServer() const {
  std::error_code error;
  const std::string other = std::filesystem::read_symlink(SocketLink(data_dir_), error);
  if (error || other == socket_) return false;
  KILN_ASSIGN_OR_RETURN(const std::optional<pid_t> running, ListenerAt(other));
  if (!running) return false;
  std::filesystem::remove(socket_, error);  // nobody listens there
  std::filesystem::create_symlink(other, socket_, error);
  if (error) {
    return Unavailable(absl::StrCat("it runs at ", other, ", to which ", socket_,
                                    " cannot be a link: ", error.message()));
  }
  return true;
}

absl::StatusOr<bool> OwnServer::Stop() const {
  KILN_ASSIGN_OR_RETURN(const std::optional<pid_t> running, Running());
  if (!running) return false;
  if (kill(*running, SIGTERM) != 0) return absl::ErrnoToStatus(errno, "cannot stop the server");
  const absl::Time deadline = absl::Now() + kStopLimit;
  while (kill(*running, 0) == 0) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError("the server finishes what it compiles before it ends");
    }
    absl::SleepFor(kLook);
  }
  return true;
}

}  // namespace kiln
