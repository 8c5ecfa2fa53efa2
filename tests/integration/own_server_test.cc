// The server that a user's programs start for themselves: real processes of kiln and kilnd.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/own_server.h"
#include "tests/integration/process.h"
#include "tests/integration/server_process.h"
#include "tests/temp_dir.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kUnreachable = 3;
constexpr absl::Duration kPatience = absl::Seconds(30);

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Processes that were started with `argument`.
int CountProcesses(const std::string& argument) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string line = ReadFile(entry.path() / "cmdline");
    count += absl::StrContains(line, absl::string_view(argument)) ? 1 : 0;
  }
  return count;
}

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

class OwnServerTest : public ::testing::Test {
 protected:
  ~OwnServerTest() override { Kiln({"stop"}); }

  std::vector<std::string> Environment(const std::vector<std::string>& first = {}) const {
    std::vector<std::string> all = first;
    for (const char* fixed : {"KILN_SERVER=", "KILN_AUTOSTART=", "KILND_WORKERS=1",
                              "KILND_WORKER_STANDBY=0", "KILN_DATA_DIR="}) {
      all.emplace_back(fixed);
    }
    all.push_back(absl::StrCat("XDG_RUNTIME_DIR=", dir_.path()));
    all.push_back(absl::StrCat("XDG_CACHE_HOME=", dir_.path(), "/cache"));
    return all;
  }
  Ended Kiln(const std::vector<std::string>& arguments, const std::vector<std::string>& first = {},
             const std::string& program = KILN_CLI) const {
    std::vector<std::string> command = {program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return RunToEnd(command, Environment(first));
  }
  // Listens on a port of this machine, with roles as they are without a flag.
  absl::StatusOr<std::unique_ptr<Process>> StartOnPort(std::string& address) const {
    auto process = Process::Start({KilndPath(), "--listen=127.0.0.1:0", "--metrics-listen=none",
                                   "--socket=none", "--data-dir=" + dir_.path() + "/data"},
                                  Environment());
    if (process.ok()) {
      const std::string line = (*process)->ReadLine(kPatience).value_or("");
      const size_t begin = std::min(line.find("127."), line.size());
      address = line.substr(begin, line.find(',', begin) - begin);
    }
    return process;
  }
  std::string Socket() const {
    return OwnSocket(dir_.path() + "/kiln", BuildIdOf(KilndPath()).value_or("?"));
  }

  TempDir dir_;
};

TEST_F(OwnServerTest, ManyProcessesThatFindNoServerStartOne) {
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < 64; ++i) {
    auto process = Process::Start({KILN_CLI, "status"}, Environment());
    ASSERT_TRUE(process.ok()) << process.status();
    processes.push_back(*std::move(process));
  }
  for (auto& process : processes) {
    EXPECT_EQ(process->Wait(kPatience), 0) << process->Errors();
  }
  EXPECT_EQ(CountProcesses("--socket=" + Socket()), 1);
  struct stat socket = {};
  ASSERT_EQ(stat(Socket().c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0600u);

  EXPECT_THAT(Kiln({"stop"}).output, HasSubstr("has ended"));
  EXPECT_FALSE(std::filesystem::exists(Socket()));
  EXPECT_THAT(Kiln({"stop"}).output, HasSubstr("does not run"));
}

TEST_F(OwnServerTest, AServerThatFailsAtItsStartIsReportedAndNotTriedAgainAtOnce) {
  const std::vector<std::string> bad = {"KILND_WORKER_MEMORY=nonsense"};
  Ended first = Kiln({"status"}, bad);
  EXPECT_EQ(first.code, kUnreachable);
  EXPECT_THAT(first.errors, HasSubstr("KILND_WORKER_MEMORY: 'nonsense' is no size in bytes"));

  std::filesystem::remove(Socket() + ".log");
  Ended second = Kiln({"status"}, bad);
  EXPECT_EQ(second.code, kUnreachable);
  EXPECT_EQ(second.errors, first.errors);
  EXPECT_FALSE(std::filesystem::exists(Socket() + ".log")) << "it was started again";

  EXPECT_EQ(Kiln({"start"}).code, 0) << "who asks for it gets another try";
  EXPECT_EQ(Kiln({"status"}).code, 0);
}

TEST_F(OwnServerTest, AServerWithoutCallsEndsAndTheNextCallStartsAnother) {
  const std::vector<std::string> hasty = {"KILND_IDLE_TIMEOUT=200ms"};
  ASSERT_EQ(Kiln({"status"}, hasty).code, 0);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(Socket()); }));
  // The one that ends may still hold the cache.
  for (int i = 0; i < 3; ++i) {
    Ended again = Kiln({"status"}, hasty);
    EXPECT_EQ(again.code, 0) << again.errors;
    absl::SleepFor(absl::Milliseconds(150 + 50 * i));
  }
  EXPECT_TRUE(Eventually([&] { return CountProcesses("--socket=" + Socket()) == 0; }));
}

TEST_F(OwnServerTest, AnotherVersionsServerStaysBesideIt) {
  const std::string bin = dir_.path() + "/bin";
  std::filesystem::create_directory(bin);
  std::filesystem::copy(KILN_CLI, bin + "/kiln");
  std::string program = ReadFile(KilndPath());
  const std::string id = absl::HexStringToBytes(*BuildIdOf(KilndPath()));
  const size_t at = program.find(id);
  ASSERT_NE(at, std::string::npos);
  program[at] = static_cast<char>(program[at] ^ 1);
  std::ofstream(bin + "/kilnd", std::ios::binary) << program;
  std::filesystem::permissions(bin + "/kilnd", std::filesystem::perms::owner_all);

  const std::string one = Kiln({"start"}).output;
  const std::string other = Kiln({"start"}, {}, bin + "/kiln").output;
  EXPECT_THAT(one, HasSubstr(Socket()));
  EXPECT_THAT(other, HasSubstr("kilnd runs at unix:"));
  EXPECT_THAT(other, Not(HasSubstr(Socket())));
  EXPECT_EQ(Kiln({"start"}).output, one) << "the same process as before";
  EXPECT_THAT(Kiln({"stop"}, {}, bin + "/kiln").output, HasSubstr("has ended"));
  EXPECT_EQ(Kiln({"start"}).output, one);
}

TEST_F(OwnServerTest, LoginsWithOtherRuntimeFoldersShareTheServerOfTheirCache) {
  TempDir elsewhere;
  const std::vector<std::string> login = {"XDG_RUNTIME_DIR=" + elsewhere.path()};
  const std::string socket =
      OwnSocket(elsewhere.path() + "/kiln", BuildIdOf(KilndPath()).value_or("?"));
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < 16; ++i) {
    auto process =
        Process::Start({KILN_CLI, "status"}, Environment(i % 2 == 0 ? login : decltype(login)()));
    ASSERT_TRUE(process.ok()) << process.status();
    processes.push_back(*std::move(process));
  }
  for (auto& process : processes) {
    EXPECT_EQ(process->Wait(kPatience), 0) << process->Errors();
  }
  EXPECT_EQ(CountProcesses("--socket=" + socket) + CountProcesses("--socket=" + Socket()), 1);

  // Whichever login has the link, its server can be stopped, and both start another.
  EXPECT_THAT(Kiln({"stop"}).output, HasSubstr("has ended"));
  EXPECT_EQ(Kiln({"status"}, login).code, 0);
  EXPECT_EQ(Kiln({"status"}, {"KILN_AUTOSTART=1"}).code, 0);
  EXPECT_EQ(CountProcesses("--socket=" + socket) + CountProcesses("--socket=" + Socket()), 1);
  EXPECT_THAT(Kiln({"stop"}, login).output, HasSubstr("has ended"));
  EXPECT_EQ(Kiln({"status"}).code, 0);
  EXPECT_EQ(CountProcesses("--socket=" + Socket()), 1);
}

TEST_F(OwnServerTest, AServerDeletesWhatABuildOfLongAgoLeft) {
  const std::string former = dir_.path() + "/cache/kiln/own-0123456789abcdef";
  const std::string other = dir_.path() + "/cache/kiln/own-things";
  for (const std::string& folder : {former, other}) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/lock") << "1\n";
    const timespec long_ago[] = {{1000000000, 0}, {1000000000, 0}};
    utimensat(AT_FDCWD, (folder + "/lock").c_str(), long_ago, 0);
    utimensat(AT_FDCWD, folder.c_str(), long_ago, 0);
  }
  EXPECT_EQ(Kiln({"status"}).code, 0);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(former); }));
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_EQ(Kiln({"status"}).code, 0);
}

TEST_F(OwnServerTest, WhatForbidsAStartIsASentence) {
  Ended forbidden = Kiln({"status"}, {"KILN_AUTOSTART=0"});
  EXPECT_EQ(forbidden.code, kUnreachable);
  EXPECT_THAT(forbidden.errors, HasSubstr("KILN_AUTOSTART=0 forbids to start it"));
  EXPECT_FALSE(std::filesystem::exists(Socket()));

  Ended homeless = Kiln({"status"}, {"XDG_CACHE_HOME=", "HOME="});
  EXPECT_EQ(homeless.code, kUnreachable);
  EXPECT_THAT(homeless.errors, HasSubstr("neither HOME, XDG_CACHE_HOME nor KILN_DATA_DIR is set"));

  Ended nowhere = Kiln({"status"}, {"XDG_RUNTIME_DIR=/proc/nowhere"});
  EXPECT_EQ(nowhere.code, kUnreachable);
  EXPECT_THAT(nowhere.errors, HasSubstr("cannot make the folder /proc/nowhere/kiln"));

  Ended uncached = Kiln({"status"}, {"XDG_CACHE_HOME=/proc/nowhere"});
  EXPECT_EQ(uncached.code, kUnreachable);
  EXPECT_THAT(uncached.errors, HasSubstr("(KILN_DATA_DIR names another place)"));

  std::filesystem::create_directory(dir_.path() + "/kiln");
  std::filesystem::permissions(dir_.path() + "/kiln", std::filesystem::perms::all);
  Ended open = Kiln({"status"});
  EXPECT_EQ(open.code, kUnreachable);
  EXPECT_THAT(open.errors, HasSubstr("is not this user's alone"));
  std::filesystem::permissions(dir_.path() + "/kiln", std::filesystem::perms::owner_all);
}

TEST_F(OwnServerTest, OnlyItsUserAndRootGetThroughASocket) {
  if (geteuid() != 0) GTEST_SKIP() << "takes root, to be another user";
  const std::string socket = dir_.path() + "/socket";
  auto server = ServerProcess::Start(dir_.path() + "/data", {"--socket=" + socket});
  ASSERT_TRUE(server.ok()) << server.status();
  // The mode of the file is the first door, and who connects the second.
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  std::filesystem::permissions(socket, std::filesystem::perms::all);
  const std::vector<std::string> clear = {"cache", "clear", "--server", "unix:" + socket};
  EXPECT_EQ(Kiln(clear).code, 0) << "whoever comes through it may do everything";

  std::vector<std::string> command = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534",
                                      "--clear-groups", KILN_CLI};
  command.insert(command.end(), clear.begin(), clear.end());
  Ended other = RunToEnd(command, Environment());
  EXPECT_EQ(other.code, kUnreachable) << other.output << other.errors;
  EXPECT_THAT((*server)->process().Errors(), HasSubstr("another user's connection"));
}

TEST_F(OwnServerTest, APortOfThisMachineIsForTheServersUserAlone) {
  std::string address;
  auto process = StartOnPort(address);
  ASSERT_TRUE(process.ok()) << process.status();

  EXPECT_EQ(Kiln({"status", "--server", address}).code, 0) << "the token is found by itself";
  Ended clear = Kiln({"cache", "clear", "--server", address});
  EXPECT_NE(clear.code, 0);
  EXPECT_THAT(clear.errors, HasSubstr("takes the role 'admin'"));

  TempDir elsewhere;
  Ended stranger = Kiln({"status", "--server", address}, {"XDG_RUNTIME_DIR=" + elsewhere.path()});
  EXPECT_NE(stranger.code, 0);
  EXPECT_THAT(stranger.errors, HasSubstr("this server is for the user that runs it"));

  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  const std::string token = LocalTokenFile(dir_.path() + "/kiln", port);
  struct stat found = {};
  ASSERT_EQ(stat(token.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  (*process)->Signal(SIGTERM);
  EXPECT_EQ((*process)->Wait(kPatience), 0);
  EXPECT_FALSE(std::filesystem::exists(token));
}

TEST_F(OwnServerTest, WhoTakesThePortOfAKilledServerIsNotBelieved) {
  std::string address;
  auto process = StartOnPort(address);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(Kiln({"status", "--server", address}).code, 0);
  (*process)->Signal(SIGKILL);
  (*process)->Wait(kPatience);

  auto other =
      Process::Start({KilndPath(), "--listen=" + address, "--metrics-listen=none", "--socket=none",
                      "--anonymous-role=compile", "--data-dir=" + dir_.path() + "/other"},
                     Environment());
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_TRUE((*other)->ReadLine(kPatience).has_value()) << (*other)->Errors();
  const Ended refused = Kiln({"doctor", "--server", address});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.output + refused.errors, HasSubstr("which is not the known one"));
  const std::string left =
      LocalTokenFile(dir_.path() + "/kiln", std::stoi(address.substr(address.rfind(':') + 1)));
  EXPECT_THAT(refused.output + refused.errors, HasSubstr(left));
  ASSERT_TRUE(std::filesystem::remove(left));
  const Ended taken = Kiln({"doctor", "--server", address});
  EXPECT_EQ(taken.code, 0) << taken.output << taken.errors;
}

TEST_F(OwnServerTest, AServerByHandIsTheOneThatClientsFind) {
  auto process = Process::Start({KilndPath(), "--listen=127.0.0.1:0", "--metrics-listen=none",
                                 "--data-dir=" + dir_.path() + "/data"},
                                Environment());
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE((*process)->ReadLine(kPatience).has_value()) << (*process)->Errors();
  EXPECT_THAT(Kiln({"start"}).output, HasSubstr(absl::StrCat("process ", (*process)->pid())));
  EXPECT_EQ(Kiln({"status"}, {"KILN_AUTOSTART=0"}).code, 0);
}

}  // namespace
}  // namespace kiln::integration
