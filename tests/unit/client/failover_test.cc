// The client where servers are away, silent, busy, or gone in the middle of an answer.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/channels.h"
#include "client/credentials.h"
#include "kiln/client.h"
#include "kiln/v1/graph.pb.h"
#include "tests/temp_dir.h"
#include "tests/unit/client/artifacts.h"
#include "tests/unit/client/fake_server.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

// A port that takes connections and never says a word.
class SilentPort {
 public:
  SilentPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(own);
    auto* raw = reinterpret_cast<sockaddr*>(&own);
    EXPECT_EQ(bind(socket_, raw, size), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    EXPECT_EQ(getsockname(socket_, raw, &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(own.sin_port));
  }
  ~SilentPort() { close(socket_); }
  const std::string& address() const { return address_; }

 private:
  const int socket_;
  std::string address_;
};

class FailoverTest : public ::testing::Test {
 protected:
  void SetUp() override { ForgetPrograms(); }

  static v1::Graph Graph(int number) {
    v1::Graph graph = GraphFor(AddAndDouble(8).program());
    graph.set_name(absl::StrCat("graph ", number));
    for (int i = 0; i < number; ++i) graph.add_nodes()->set_op("aten.unused.default");
    return graph;
  }

  std::unique_ptr<Client> MakeClient(const std::string& servers, ClientOptions options = {}) {
    options.server = servers;
    options.threads = 1;
    auto client = Client::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  const TempDir folder_;
};

TEST_F(FailoverTest, ClientsOfOneServerShareOneConnection) {
  auto credentials = Credentials::Load({});
  ASSERT_TRUE(credentials.ok());
  auto one = SharedChannel("127.0.0.1:7461", **credentials);
  EXPECT_EQ(one, SharedChannel("http://127.0.0.1:7461", **credentials));
  EXPECT_NE(one, SharedChannel("127.0.0.1:7462", **credentials));
  EXPECT_NE(one, SharedChannel("https://127.0.0.1:7461", **credentials));
}

TEST_F(FailoverTest, BadServersAndHeadersAreNamed) {
  for (const char* servers : {"a:1,", "a:1,,b:1", "a:1,b", "a:1, a:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Client::Create({.server = servers}).status())) << servers;
  }
  EXPECT_THAT(Client::Create({.tenant = "a b"}).status().message(), HasSubstr("tenant is 'a b'"));
  EXPECT_THAT(Client::Create({.tenant = std::string(65, 'a')}).status().message(),
              HasSubstr("at most 64"));
  EXPECT_THAT(Client::Create({.priority = "high"}).status().message(),
              HasSubstr("'interactive' or 'warmup'"));
  EXPECT_THAT(Client::Create({.local_cache = "/tmp:many"}).status().message(),
              HasSubstr("DIR:SIZE"));
}

TEST_F(FailoverTest, ACallerLeavesACompileWhereverItWaits) {
  SilentPort silent;
  FakeServer server;
  server.busy = 1;
  server.retry_after_ms = 60000;
  // For the first answer of a server, and for one that asks for patience itself.
  for (const std::string& address : {silent.address(), server.address()}) {
    int asked = 0;
    const absl::Time start = absl::Now();
    const auto left = MakeClient(address)->Compile(Graph(0), [&](const CompileProgress& progress) {
      EXPECT_EQ(progress.stage, "");
      return ++asked < 2;
    });
    EXPECT_TRUE(absl::IsCancelled(left.status())) << left.status();
    EXPECT_EQ(asked, 2);
    EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  }
  EXPECT_EQ(server.compiles, 1);
}

TEST_F(FailoverTest, GraphsGoToTheServersThatAreThere) {
  FakeServer one, two;
  two.Stop();
  auto client = MakeClient(absl::StrCat(one.address(), ", ", two.address()));
  for (int i = 0; i < 12; ++i) {
    auto compiled = client->Compile(Graph(i));
    ASSERT_TRUE(compiled.ok()) << compiled.status();
  }
  EXPECT_EQ(one.compiles, 12);
  one.Stop();
  two.Start();
  for (int i = 12; i < 24; ++i) {
    auto compiled = client->Compile(Graph(i));
    ASSERT_TRUE(compiled.ok()) << compiled.status();
  }
  EXPECT_EQ(two.compiles, 12);
}

TEST_F(FailoverTest, EachGraphHasAServerOfItsOwn) {
  FakeServer one, two;
  for (int i = 0; i < 24; ++i) {
    auto first = MakeClient(absl::StrCat(one.address(), ",", two.address()));
    ASSERT_TRUE(first->Compile(Graph(i)).ok());
    ForgetPrograms();
    auto second = MakeClient(absl::StrCat(two.address(), ",", one.address()));
    auto again = second->Compile(Graph(i));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_STREQ(again->source, "disk") << "another server compiled graph " << i << " again";
  }
  EXPECT_GT(one.compiles, 2);
  EXPECT_GT(two.compiles, 2);
  EXPECT_EQ(one.compiles + two.compiles, 24);
}

TEST_F(FailoverTest, ASilentServerCostsItsConnectionsLimitOnce) {
  SilentPort silent;
  FakeServer server;
  auto client = MakeClient(absl::StrCat(silent.address(), ",", server.address()));
  const absl::Time start = absl::Now();
  for (int i = 0; i < 12; ++i) {
    auto compiled = client->Compile(Graph(i));
    ASSERT_TRUE(compiled.ok()) << compiled.status();
  }
  const absl::Duration took = absl::Now() - start;
  std::cout << "12 graphs beside a silent server: " << took << "\n";
  EXPECT_LT(took, absl::Seconds(5));
}

TEST_F(FailoverTest, TheTimeLimitCoversEveryAttempt) {
  SilentPort silent;
  auto client = MakeClient(silent.address(), {.timeout = absl::Seconds(1)});
  absl::Time start = absl::Now();
  absl::Status status = client->Compile(Graph(0)).status();
  const absl::Duration first = absl::Now() - start;
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(silent.address()));
  EXPECT_LT(first, absl::Seconds(1.5));  // two attempts would take 2 s
  start = absl::Now();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(client->Compile(Graph(i)).ok());
  const absl::Duration others = absl::Now() - start;
  std::cout << "a silent server, time limit 1 s: " << first << ", 20 more graphs " << others
            << "\n";
  EXPECT_LT(others, absl::Seconds(5)) << "a server that is away costs its time once";
}

TEST_F(FailoverTest, AServerThatIsAwayIsAskedAgainLater) {
  FakeServer server;
  auto client = MakeClient(server.address());
  server.Stop();
  const absl::Status away = client->Compile(Graph(0)).status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_EQ(client->Compile(Graph(1)).status(), away);
  server.Start();
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  absl::Status status;
  do {
    absl::SleepFor(absl::Milliseconds(20));
    status = client->Compile(Graph(0)).status();
  } while (!status.ok() && absl::Now() < deadline);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(FailoverTest, AnAnswerThatBreaksOffIsAskedForAgain) {
  FakeServer server;
  server.break_off = 2;
  auto compiled = MakeClient(server.address())->Compile(Graph(1));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->retries, 2);
  EXPECT_EQ(server.compiles, 3);
}

TEST_F(FailoverTest, ARestartIsWaitedFor) {
  FakeServer server;
  auto client = MakeClient(server.address());
  ASSERT_TRUE(client->Compile(Graph(0)).ok());
  server.Stop();
  std::thread restart([&server] {
    absl::SleepFor(absl::Milliseconds(150));
    server.Start();
  });
  auto compiled = client->Compile(Graph(1));
  restart.join();
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_GT(compiled->retries, 0);
}

TEST_F(FailoverTest, ABusyServersHintIsHonoured) {
  FakeServer server;
  server.busy = 15;
  auto client = MakeClient(server.address());
  absl::Time start = absl::Now();
  auto compiled = client->Compile(Graph(0));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(15 * 20));
  EXPECT_EQ(server.compiles, 16);
  server.busy = 1000;
  server.retry_after_ms = 500;  // past the deadline, so that no attempt is under way at its end
  start = absl::Now();
  EXPECT_TRUE(absl::IsResourceExhausted(
      client->Compile(Graph(1), nullptr, absl::Milliseconds(200)).status()));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(700));
}

TEST_F(FailoverTest, RefusalsAreNotRepeated) {
  FakeServer server;
  server.refuse = true;
  EXPECT_TRUE(absl::IsInvalidArgument(MakeClient(server.address())->Compile(Graph(0)).status()));
  EXPECT_EQ(server.compiles, 1);
}

TEST_F(FailoverTest, FailOnMissNeverCompiles) {
  FakeServer server;
  auto strict = MakeClient(server.address(), {.fail_on_miss = true});
  absl::Status status = strict->Compile(Graph(0)).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(IsCacheMiss(status));
  EXPECT_THAT(status.message(), HasSubstr("'graph 0'"));
  EXPECT_THAT(status.message(), HasSubstr(server.address()));
  EXPECT_TRUE(IsCacheMiss(strict->CompileArtifact(Graph(0)).status()));
  EXPECT_EQ(server.compiles, 0);
  ASSERT_TRUE(MakeClient(server.address())->Compile(Graph(0)).ok());
  ForgetPrograms();
  auto compiled = strict->Compile(Graph(0));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_STREQ(compiled->source, "disk");
}

TEST_F(FailoverTest, ALocalCacheServesARestartWithoutAServer) {
  FakeServer server;
  const ClientOptions options = {.local_cache = folder_.path()};
  ASSERT_TRUE(MakeClient(server.address(), options)->Compile(Graph(0)).ok());
  ForgetPrograms();
  auto second = MakeClient(server.address(), options)->Compile(Graph(0));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_STREQ(second->source, "local_disk");
  EXPECT_EQ(server.fetches, 1);
  ForgetPrograms();
  server.Stop();
  auto away = MakeClient(server.address(), options);
  auto third = away->Compile(Graph(0));
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_STREQ(third->source, "local_disk");
  std::vector<float> a(8, 1);
  int64_t n = 8;
  auto outputs = third->program->Run({Vector(a.data(), n), Vector(a.data(), n)});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(static_cast<float*>((*outputs)[0].data)[7], 4);
  EXPECT_TRUE(absl::IsUnavailable(away->Compile(Graph(1)).status()));
}

TEST_F(FailoverTest, ALocalCacheFollowsTheServersCompiler) {
  FakeServer server;
  const ClientOptions options = {.local_cache = folder_.path()};
  ASSERT_TRUE(MakeClient(server.address(), options)->Compile(Graph(0)).ok());
  ForgetPrograms();
  server.build = "build-2";
  auto compiled = MakeClient(server.address(), options)->Compile(Graph(0));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_STREQ(compiled->source, "compiled") << "what another compiler made is not asked for";
}

TEST_F(FailoverTest, DamageInTheLocalCacheIsAMissAndMended) {
  FakeServer server;
  const ClientOptions options = {.local_cache = folder_.path()};
  auto first = MakeClient(server.address(), options)->Compile(Graph(0));
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string path =
      absl::StrCat(folder_.path(), "/", first->key.substr(0, 2), "/", first->key, ".kiln");
  ASSERT_TRUE(std::filesystem::exists(path));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  for (const char* source : {"disk", "local_disk"}) {
    ForgetPrograms();
    auto compiled = MakeClient(server.address(), options)->Compile(Graph(0));
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    EXPECT_STREQ(compiled->source, source);
  }
}

TEST_F(FailoverTest, TenantAndPriorityAreSent) {
  FakeServer server;
  ASSERT_TRUE(MakeClient(server.address(), {.tenant = "team-a", .priority = "warmup"})
                  ->Compile(Graph(0))
                  .ok());
  EXPECT_EQ(server.headers["kiln-tenant"], "team-a");
  EXPECT_EQ(server.headers["kiln-priority"], "warmup");
  setenv("KILN_TENANT", "team-b", 1);
  server.headers.clear();
  ASSERT_TRUE(MakeClient(server.address())->Compile(Graph(1)).ok());
  unsetenv("KILN_TENANT");
  EXPECT_EQ(server.headers["kiln-tenant"], "team-b");
  EXPECT_EQ(server.headers.count("kiln-priority"), 0u);
}

}  // namespace
}  // namespace kiln::testing
