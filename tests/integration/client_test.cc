// The client library against real servers that leave, stall and come back.
#include "kiln/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kiln/v1/graph.pb.h"
#include "tests/integration/graphs.h"
#include "tests/integration/relay.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<Client> ClientOf(const std::string& servers, ClientOptions options = {}) {
  options.server = servers;
  options.threads = 1;
  auto client = Client::Create(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

using ClientTest = ServerTest;

TEST_F(ClientTest, AWaitThatALostConnectionEndedIsTakenUpAgain) {
  ASSERT_TRUE(StartServer());
  auto relay = Relay::Start(server().grpc_address());
  ASSERT_TRUE(relay.ok()) << relay.status();
  auto client = ClientOf((*relay)->address());
  const v1::CompileRequest request = SlowRequest(/*count=*/30, /*seed=*/7);
  bool cut = false;
  auto compiled = client->Compile(request.graph(), [&](const CompileProgress& progress) {
    if (!cut && progress.kernels_done > 2) {
      cut = true;
      (*relay)->Cut();
    }
    return true;
  });
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_TRUE(cut);
  EXPECT_GT(compiled->retries, 0);
  std::cout << "cut in the middle of a compile: " << compiled->retries << " retries, then '"
            << compiled->source << "'\n";
}

TEST_F(ClientTest, TheFirstCallAfterARestartFindsTheServer) {
  ASSERT_TRUE(StartServer());
  const std::string address = server().grpc_address();
  auto client = ClientOf(address);
  ASSERT_TRUE(client->GetActivity(0, 0).ok());
  server().Kill();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(client->GetActivity(0, 0).status()));
  }
  ASSERT_TRUE(StartServer({absl::StrCat("--listen=", address)}));
  const absl::Status back = client->GetActivity(0, 0).status();
  EXPECT_TRUE(back.ok()) << back;
}

// How long a compile takes whose first server gets `signal` in the middle of it, of two.
absl::Duration CompileWhileOneOfTwoLeaves(ServerProcess& one, ServerProcess& two, int signal,
                                          int seed) {
  const v1::CompileRequest request = SlowRequest(/*count=*/20, seed);
  auto client = ClientOf(absl::StrCat(one.grpc_address(), ",", two.grpc_address()));
  pid_t gone = 0;
  const absl::Time start = absl::Now();
  auto compiled = client->Compile(request.graph(), [&](const CompileProgress& progress) {
    if (gone == 0 && progress.kernels_done > 0) {
      const bool first = one.Metrics().Sum("kiln_jobs_running") > 0;
      gone = first ? one.process().pid() : two.process().pid();
      kill(gone, signal);
    }
    return true;
  });
  const absl::Duration took = absl::Now() - start;
  EXPECT_NE(gone, 0);
  if (signal == SIGSTOP) kill(gone, SIGCONT);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return took;
}

TEST_F(ClientTest, AServerThatLeavesInTheMiddleIsLeftForTheNext) {
  ASSERT_TRUE(StartServer());
  TempDir folder;
  auto other = ServerProcess::Start(folder.path() + "/data");
  ASSERT_TRUE(other.ok()) << other.status();
  const absl::Duration stopped = CompileWhileOneOfTwoLeaves(server(), **other, SIGSTOP, 8);
  const absl::Duration killed = CompileWhileOneOfTwoLeaves(server(), **other, SIGKILL, 9);
  std::cout << "the other server answered " << stopped << " after one was asked and stopped, "
            << killed << " after one was asked and killed; time limit 120 s\n";
  EXPECT_LT(stopped, absl::Seconds(60));
  EXPECT_LT(killed, absl::Seconds(40));
}

TEST(ClientRollingRestart, OfTwoServersFailsNoCall) {
  TempDir dir;
  std::vector<std::unique_ptr<ServerProcess>> servers;
  std::string addresses;
  for (int i = 0; i < 2; ++i) {
    auto server = ServerProcess::Start(absl::StrCat(dir.path(), "/", i));
    ASSERT_TRUE(server.ok()) << server.status();
    absl::StrAppend(&addresses, i == 0 ? "" : ",", (*server)->grpc_address());
    servers.push_back(*std::move(server));
  }
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  absl::Mutex mu;
  std::vector<std::string> failures;
  std::vector<std::thread> threads;
  auto client = ClientOf(addresses);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      for (int64_t n = 0; !stop; ++n) {
        auto compiled = client->Compile(QuickRequest(1000 * (i + 1) + n).graph());
        ++calls;
        if (!compiled.ok()) {
          absl::MutexLock lock(&mu);
          failures.push_back(std::string(compiled.status().message()));
        }
        absl::SleepFor(absl::Milliseconds(10));
      }
    });
  }
  bool restarted = true;
  for (size_t i = 0; i < servers.size() && restarted; ++i) {
    absl::SleepFor(absl::Milliseconds(500));
    const std::string address = servers[i]->grpc_address();
    EXPECT_EQ(servers[i]->Terminate(), 0);
    auto again = ServerProcess::Start(absl::StrCat(dir.path(), "/", i),
                                      {absl::StrCat("--listen=", address)});
    EXPECT_TRUE(again.ok()) << again.status();
    restarted = again.ok();
    if (restarted) servers[i] = *std::move(again);
  }
  // On a busy machine the calls take their time.
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  do {
    absl::SleepFor(absl::Milliseconds(500));
  } while (calls <= 20 && absl::Now() < deadline);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::cout << "2 restarts under one client: " << calls << " compiles, " << failures.size()
            << " failures\n";
  EXPECT_THAT(failures, IsEmpty());
  EXPECT_GT(calls, 20);
}

TEST_F(ClientTest, TheCommandLineExitsWithFiveOnAMiss) {
  ASSERT_TRUE(StartServer());
  const std::string path = data_dir() + "/quick.kgraph";
  std::ofstream(path) << QuickRequest(321).graph().SerializeAsString();
  auto kiln = [&](const std::string& command, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {KILN_CLI, command, path, "--server", server().grpc_address()};
    words.insert(words.end(), flags.begin(), flags.end());
    return RunToEnd(words);
  };
  for (const char* command : {"compile", "run"}) {
    const Ended ended = kiln(command, {"--fail-on-miss"});
    EXPECT_EQ(ended.code, 5) << command << ": " << ended.errors;
    EXPECT_THAT(ended.errors, HasSubstr("fail_on_miss forbids a compile"));
  }
  EXPECT_EQ(Metrics().Sum("kiln_compile_duration_seconds_count"), 0);
  EXPECT_EQ(kiln("compile", {}).code, 0);
  for (const char* command : {"compile", "run"}) {
    const Ended ended = kiln(command, {"--fail-on-miss"});
    EXPECT_EQ(ended.code, 0) << command << ": " << ended.errors;
  }
}

TEST_F(ClientTest, KeptArtifactsAreCheckedAgainstTheServersKey) {
  ASSERT_TRUE(StartServer());
  TempDir folder;
  const ClientOptions options = {.local_cache = folder.path() + "/cache",
                                 .known_servers = folder.path() + "/known"};
  const v1::Graph graph = QuickRequest(123).graph();
  auto first = ClientOf(server().grpc_address(), options)->Compile(graph);
  ASSERT_TRUE(first.ok()) << first.status();
  // Bytes and digest fit together; the signature over them does not.
  const std::string path =
      absl::StrCat(folder.path(), "/cache/", first->key.substr(0, 2), "/", first->key, ".kiln");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file) << path;
  file.seekp(8 + 32);
  file.put('\x5a').put('\x5a').put('\x5a');
  file.close();
  for (const char* source : {"memory", "local_disk"}) {
    ForgetPrograms();
    auto compiled = ClientOf(server().grpc_address(), options)->Compile(graph);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    EXPECT_STREQ(compiled->source, source);
  }
}

}  // namespace
}  // namespace kiln::integration
