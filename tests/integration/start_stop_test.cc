// How kilnd starts, refuses to start, and ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Runs kilnd until it ends by itself.
Ended RunKilnd(const std::vector<std::string>& flags,
               const std::vector<std::string>& environment = {}) {
  std::vector<std::string> command = {KilndPath()};
  command.insert(command.end(), flags.begin(), flags.end());
  return RunToEnd(command, environment);
}

using StartStopTest = ServerTest;

TEST_F(StartStopTest, SaysInOneLineWhatItServes) {
  ASSERT_TRUE(StartServer());
  EXPECT_THAT(server().ready_line(),
              MatchesRegex(absl::StrCat(
                  "kilnd ready: grpc 127\\.0\\.0\\.1:[0-9]+, http 127\\.0\\.0\\.1:[0-9]+, "
                  "workers 2, cache ",
                  data_dir(), " \\(0 artifacts, 0 kernels\\)")));
  EXPECT_EQ(StopServer(), 0);
}

TEST_F(StartStopTest, PrintsItsVersion) {
  Ended ended = RunKilnd({"--version"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.output, HasSubstr("kilnd "));
  EXPECT_THAT(ended.output, HasSubstr("compiler build "));
  EXPECT_THAT(ended.output, HasSubstr("cpp"));
}

TEST_F(StartStopTest, APortInUseIsASentenceThatNamesIt) {
  ASSERT_TRUE(StartServer());
  TempDir other;
  Ended rpc = RunKilnd({"--listen", server().grpc_address(), "--metrics-listen", "127.0.0.1:0",
                        "--data-dir", other.path()});
  EXPECT_NE(rpc.code, 0);
  EXPECT_LT(rpc.code, 128) << "ended by a signal";
  EXPECT_THAT(rpc.errors, HasSubstr(server().grpc_address()));
  Ended http = RunKilnd({"--listen", "127.0.0.1:0", "--metrics-listen", server().http_address(),
                         "--data-dir", other.path()});
  EXPECT_NE(http.code, 0);
  EXPECT_LT(http.code, 128) << "ended by a signal";
  EXPECT_THAT(http.errors, HasSubstr(server().http_address()));
  EXPECT_TRUE(Compile(stub(), QuickRequest(100)).ok()) << "the first server goes on";
}

TEST_F(StartStopTest, ADataDirectoryInUseIsASentenceThatNamesItAndCode75) {
  ASSERT_TRUE(StartServer());
  Ended ended = RunKilnd(
      {"--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--data-dir", data_dir()});
  EXPECT_EQ(ended.code, 75);
  EXPECT_THAT(ended.errors, HasSubstr(data_dir()));
  EXPECT_THAT(ended.errors, HasSubstr(absl::StrCat("process ", server().process().pid())));
  EXPECT_TRUE(Compile(stub(), QuickRequest(100)).ok()) << "the first server goes on";
}

TEST_F(StartStopTest, ADataDirectoryThatCannotBeMadeIsASentenceThatNamesIt) {
  TempDir folder;
  std::string file = folder.path() + "/file";
  std::ofstream(file) << "x";
  Ended ended =
      RunKilnd({"--data-dir", file, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"});
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.errors, HasSubstr(file));
}

TEST_F(StartStopTest, BadConfigurationIsASentenceThatNamesItAndCode78) {
  TempDir folder;
  std::string file = folder.path() + "/kilnd.conf";
  std::ofstream(file) << "# a comment\nworkers = 1\nworker = 3\n";
  Ended from_file = RunKilnd({"--config", file});
  EXPECT_EQ(from_file.code, 78);
  EXPECT_THAT(from_file.errors, HasSubstr(file));
  EXPECT_THAT(from_file.errors, HasSubstr("'worker'"));

  Ended from_flag = RunKilnd({"--no-such-key=1"});
  EXPECT_EQ(from_flag.code, 78);
  EXPECT_THAT(from_flag.errors, HasSubstr("no-such-key"));

  Ended bad_value = RunKilnd({"--workers=many"});
  EXPECT_EQ(bad_value.code, 78);
  EXPECT_THAT(bad_value.errors, HasSubstr("many"));

  Ended from_environment = RunKilnd({}, {"KILND_WORKERS=none"});
  EXPECT_EQ(from_environment.code, 78);
  EXPECT_THAT(from_environment.errors, HasSubstr("KILND_WORKERS"));

  Ended no_file = RunKilnd({"--config", folder.path() + "/absent.conf"});
  EXPECT_EQ(no_file.code, 78);
  EXPECT_THAT(no_file.errors, HasSubstr("absent.conf"));
}

TEST_F(StartStopTest, SigtermLetsARunningCompileEndAndExitsWithZero) {
  ASSERT_TRUE(StartServer());
  bool draining = false;
  Answer answer = Compile(stub(), SlowRequest(/*count=*/16, /*seed=*/1),
                          [&](const v1::Progress& progress, grpc::ClientContext&) {
                            if (draining || progress.stage() != "compile") return;
                            ASSERT_LT(progress.kernels_done(), progress.kernels_total());
                            draining = true;
                            server().process().Signal(SIGTERM);
                            // From now on nobody is sent here, and no new compile is let in.
                            EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
                              auto ready = HttpGet(server().http_address(), "/readyz");
                              return ready.ok() && ready->code == 503;
                            }));
                            auto other_stub = server().NewStub();
                            EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
                              return GetServerInfo(*other_stub).draining();
                            }));
                            Answer refused = Compile(*other_stub, QuickRequest(100));
                            EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE)
                                << Text(refused.status);
                          });
  EXPECT_TRUE(draining);
  ASSERT_TRUE(answer.ok()) << Text(answer.status);
  EXPECT_EQ(answer.artifact.header().kernels_size(), 16);
  auto code = server().process().Wait(absl::Seconds(30));
  ASSERT_TRUE(code.has_value()) << "kilnd did not end";
  EXPECT_EQ(*code, 0);
}

TEST_F(StartStopTest, ASharedFolderIsFreeOnceItsServerIsKilled) {
  ASSERT_TRUE(StartServer());
  server().Kill();
  ASSERT_TRUE(StartServer());
  EXPECT_TRUE(Compile(stub(), QuickRequest(100)).ok());
}

}  // namespace
}  // namespace kiln::integration
