// What strangers can do to the ports before anybody knows who they are: connections that say
// nothing, requests that never end.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/integration/graphs.h"
#include "tests/integration/raw_http2.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;

constexpr char kCompile[] = "/kiln.v1.CompileService/Compile";
constexpr int64_t kMiB = int64_t{1} << 20;

// TCP connections that say nothing, or one byte now and then.
class Strangers {
 public:
  Strangers(const std::string& address, int count) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts.second, &port));
    sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    inet_pton(AF_INET, parts.first.c_str(), &to.sin_addr);
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      // A full queue would make a blocking call wait for the server.
      timeval limit = {.tv_usec = 200000};
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
      (void)connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));  // or is refused
      fds_.push_back(fd);
    }
  }
  ~Strangers() {
    for (int fd : fds_) close(fd);
  }
  void Send(absl::string_view bytes) {
    for (int fd : fds_) (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  std::vector<int> fds_;
};

// kilnd with at most `descriptors` open files.
std::string LimitedKilnd(const std::string& folder, int descriptors) {
  const std::string path = folder + "/limited";
  std::ofstream(path) << "#!/bin/sh\nulimit -n " << descriptors << "\nexec " << KilndPath()
                      << " \"$@\"\n";
  chmod(path.c_str(), 0700);
  return path;
}

int64_t ResidentBytes(pid_t pid) {
  std::ifstream statm(absl::StrCat("/proc/", pid, "/statm"));
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int HttpCode(const ServerProcess& server, absl::string_view path) {
  auto answer = HttpGet(server.http_address(), path);
  return answer.ok() ? answer->code : -1;
}

bool AnswersANewClient(const ServerProcess& server) {
  auto stub = server.NewStub();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::ServerInfo info;
  return stub->GetServerInfo(&context, {}, &info).ok();
}

class DescriptorTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags) {
    auto server =
        ServerProcess::Start(dir_.path() + "/data", flags, LimitedKilnd(dir_.path(), 256));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  TempDir dir_;
  std::unique_ptr<ServerProcess> server_;
};

TEST_F(DescriptorTest, IdleConnectionsOfOneAddressLeaveRoom) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  auto before = server_->NewStub();
  EXPECT_FALSE(GetServerInfo(*before).version().empty());
  {
    Strangers strangers(server_->grpc_address(), 500);
    EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
      return server_->Metrics().Sum("kiln_connections_refused_total",
                                    {{"reason", "address_limit"}}) > 300;
    }));
    const double most = server_->Metrics().Sum("kiln_connections_max");
    EXPECT_GE(most, 16);
    EXPECT_LE(server_->Metrics().Sum("kiln_connections"), most / 2);
    EXPECT_EQ(HttpCode(*server_, "/readyz"), 200);
    EXPECT_FALSE(GetServerInfo(*before).version().empty());
  }
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return AnswersANewClient(*server_); }));
}

TEST_F(DescriptorTest, WithoutDescriptorsItSaysSoAndGoesOnOnceThereAreSome) {
  ASSERT_NO_FATAL_FAILURE(
      Start({"--max-connections=10000", "--max-connections-per-address=10000"}));
  auto before = server_->NewStub();
  EXPECT_FALSE(GetServerInfo(*before).version().empty());
  {
    Strangers strangers(server_->grpc_address(), 500);
    EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return HttpCode(*server_, "/readyz") == 503; }));
    EXPECT_EQ(HttpCode(*server_, "/healthz"), 200);
    const MetricText metrics = server_->Metrics();
    EXPECT_EQ(metrics.Sum("kiln_descriptors_exhausted"), 1);
    EXPECT_GE(metrics.Sum("kiln_descriptor_exhaustions_total"), 1);
    EXPECT_GT(metrics.Sum("kiln_connections_refused_total", {{"reason", "descriptors"}}), 0);
    EXPECT_THAT(server_->process().Errors(), HasSubstr("no file descriptor is left"));
    EXPECT_FALSE(GetServerInfo(*before).version().empty());
  }
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return AnswersANewClient(*server_); }));
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return HttpCode(*server_, "/readyz") == 200; }));
  EXPECT_THAT(server_->process().Errors(), HasSubstr("descriptors are free again"));
  EXPECT_EQ(server_->Metrics().Sum("kiln_descriptors_exhausted"), 0);
}

using ConnectionTest = ServerTest;

TEST_F(ConnectionTest, IdleAndOldConnectionsAreClosed) {
  ASSERT_TRUE(StartServer({"--max-connection-idle=1s", "--max-connection-age=2s"}));
  RawHttp2 idle(server().grpc_address());
  ASSERT_TRUE(idle.open());
  idle.Listen(absl::Seconds(10));
  EXPECT_FALSE(idle.open());
  // Calls go on over connections that replace each other.
  const absl::Time end = absl::Now() + absl::Seconds(5);
  while (absl::Now() < end) {
    EXPECT_FALSE(GetServerInfo(stub()).version().empty());
  }
}

// Requests that are begun and not ended, over several connections, while others call.
class UnendingTest : public ServerTest {
 protected:
  static constexpr int kStreams = 60;

  // Until `End`: each stream sends `bytes` of a message of `announced_bytes`.
  void Attack(int connections, int64_t bytes, uint32_t announced_bytes) {
    for (int i = 0; i < connections; ++i) {
      attackers_.emplace_back([this, bytes, announced_bytes] {
        RawHttp2 connection(server().grpc_address());
        for (int k = 0; k < kStreams; ++k) connection.Begin(kCompile, announced_bytes);
        sent_ += connection.SendToAll(bytes, absl::Seconds(6));
        while (!over_ && connection.open()) connection.Listen(absl::Milliseconds(20));
        refused_ += static_cast<int>(connection.ended().size());
      });
    }
    sampler_ = std::thread([this] {
      while (!over_) {
        peak_ = std::max<int64_t>(peak_, ResidentBytes(server().process().pid()));
        absl::SleepFor(absl::Milliseconds(2));
      }
    });
  }
  void End() {
    over_ = true;
    for (std::thread& attacker : attackers_) attacker.join();
    sampler_.join();
  }

  std::atomic<bool> over_ = false;
  std::atomic<int64_t> sent_ = 0;
  std::atomic<int> refused_ = 0;
  std::atomic<int64_t> peak_ = 0;
  std::vector<std::thread> attackers_;
  std::thread sampler_;
};

TEST_F(UnendingTest, MemoryIsBoundedAndComesBackAndOthersAreServed) {
  ASSERT_TRUE(StartServer({"--max-request-bytes=128MiB", "--request-timeout=8s"}));
  ASSERT_TRUE(Compile(stub(), QuickRequest(64)).ok());
  const int64_t idle = ResidentBytes(server().process().pid());
  // What gRPC is told that a message will be is more than it may be.
  const struct {
    int64_t bytes;
    uint32_t announced;
  } attacks[] = {{63 * kMiB, 64 * kMiB}, {400 * kMiB, 1u << 31}};
  for (const auto& attack : attacks) {
    over_ = false;
    peak_ = 0;
    attackers_.clear();
    Attack(4, attack.bytes, attack.announced);
    const absl::Time end = absl::Now() + absl::Seconds(5);
    absl::Duration slowest;
    int calls = 0;
    for (; absl::Now() < end; ++calls) {
      const absl::Time start = absl::Now();
      Answer answer = Compile(stub(), QuickRequest(100 + calls), nullptr, absl::Seconds(5));
      EXPECT_TRUE(answer.ok()) << Text(answer.status);
      slowest = std::max(slowest, absl::Now() - start);
    }
    End();
    const MetricText metrics = Metrics();
    std::cout << "idle " << idle / kMiB << " MiB, peak " << peak_ / kMiB << " MiB, sent "
              << sent_ / kMiB << " MiB, refused " << refused_ << "; compiles " << calls
              << ", slowest " << slowest << "\n";
    EXPECT_GT(calls, 0);
    EXPECT_GT(refused_, 0);
    EXPECT_THAT(server().process().Errors(), HasSubstr("did not come whole were refused"));
    EXPECT_GT(metrics.Sum("kiln_incomplete_requests_refused_total", {{"reason", "bytes"}}), 0);
    EXPECT_LT(peak_ - idle, 384 * kMiB);
    EXPECT_TRUE(
        Eventually(absl::Seconds(20),
                   [&] { return ResidentBytes(server().process().pid()) < idle + 64 * kMiB; }))
        << ResidentBytes(server().process().pid()) / kMiB << " MiB";
  }
}

// Takes a gigabyte: kiln_door_test --gtest_also_run_disabled_tests --gtest_filter='*TheDefaults'
TEST_F(UnendingTest, DISABLED_TenConnectionsAgainstTheDefaults) {
  ASSERT_TRUE(StartServer());
  ASSERT_TRUE(Compile(stub(), QuickRequest(64)).ok());
  const int64_t idle = ResidentBytes(server().process().pid());
  Attack(10, 63 * kMiB, 64 * kMiB);
  int calls = 0;
  absl::Duration slowest;
  const absl::Time end = absl::Now() + absl::Seconds(20);
  for (; absl::Now() < end; ++calls) {
    const absl::Time start = absl::Now();
    Answer answer = Compile(stub(), QuickRequest(100 + calls), nullptr, absl::Seconds(10));
    EXPECT_TRUE(answer.ok()) << Text(answer.status);
    slowest = std::max(slowest, absl::Now() - start);
  }
  End();
  std::cout << "idle " << idle / kMiB << " MiB, peak " << peak_ / kMiB << " MiB, sent "
            << sent_ / kMiB << " MiB, refused " << refused_ << "; compiles " << calls
            << ", slowest " << slowest << "\n";
  EXPECT_LT(peak_ - idle, (2 * 512 + 256) * kMiB);
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
    return ResidentBytes(server().process().pid()) < idle + 64 * kMiB;
  }));
  std::cout << "afterwards " << ResidentBytes(server().process().pid()) / kMiB << " MiB\n";
}

TEST_F(UnendingTest, ARequestThatStaysIncompleteIsRefusedInTime) {
  ASSERT_TRUE(StartServer({"--request-timeout=1s"}));
  RawHttp2 connection(server().grpc_address());
  const uint32_t stream = connection.Begin(kCompile, 1000);
  connection.Listen(absl::Milliseconds(500));
  EXPECT_EQ(connection.under_way(), 1u);
  connection.Listen(absl::Seconds(2));
  EXPECT_EQ(connection.under_way(), 0u);
  ASSERT_TRUE(connection.ended().count(stream));
  EXPECT_EQ(connection.ended().at(stream), "8");  // RESOURCE_EXHAUSTED
  EXPECT_TRUE(connection.open());
  EXPECT_EQ(Metrics().Sum("kiln_incomplete_requests_refused_total", {{"reason", "time"}}), 1);
}

using HttpPortTest = ServerTest;

// The slowest of ten looks at each of the probes.
absl::Duration SlowestProbe(const ServerProcess& server) {
  absl::Duration slowest;
  for (int i = 0; i < 10; ++i) {
    for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
      const absl::Time start = absl::Now();
      EXPECT_EQ(HttpCode(server, path), 200) << path;
      slowest = std::max(slowest, absl::Now() - start);
    }
  }
  return slowest;
}

TEST_F(HttpPortTest, ConnectionsThatHoldAByteDoNotSlowProbes) {
  ASSERT_TRUE(StartServer());
  Strangers strangers(server().http_address(), 100);
  strangers.Send("G");
  EXPECT_LT(SlowestProbe(server()), absl::Seconds(2));
}

TEST_F(HttpPortTest, ConnectionsThatDripDoNotSlowProbes) {
  ASSERT_TRUE(StartServer());
  Strangers strangers(server().http_address(), 240);
  std::atomic<bool> over = false;
  std::thread dripping([&] {
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ";
    for (size_t i = 0; !over; ++i) {
      strangers.Send(request.substr(std::min(i, request.size() - 1), 1));
      absl::SleepFor(absl::Milliseconds(100));
    }
  });
  const absl::Time end = absl::Now() + absl::Seconds(3);
  absl::Duration slowest;
  while (absl::Now() < end) slowest = std::max(slowest, SlowestProbe(server()));
  over = true;
  dripping.join();
  EXPECT_LT(slowest, absl::Seconds(2));
}

TEST_F(HttpPortTest, PagesAreAnsweredUnderTheServersOwnNamesOnly) {
  ASSERT_TRUE(StartServer({"--metrics-hosts=kiln.example, other.example"}));
  const std::string address = server().http_address();
  auto code = [&](absl::string_view path, absl::string_view host) {
    auto answer = HttpGet(address, path, host);
    return answer.ok() ? answer->code : -1;
  };
  for (const char* path : {"/", "/ui/app.js", "/api/v1/activity"}) {
    for (const char* host :
         {"", "127.0.0.1", "[::1]:7462", "localhost:7462", "Kiln.Example.:80", "other.example"}) {
      EXPECT_EQ(code(path, host), 200) << path << " of " << host;
    }
    for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                             "kiln.example.evil:7462", "[evil]"}) {
      EXPECT_EQ(code(path, host), 421) << path << " of " << host;
    }
  }
  const std::string key(64, '0');
  EXPECT_EQ(code(absl::StrCat("/api/v1/compiles/", key), "evil.example"), 421);
  EXPECT_EQ(code(absl::StrCat("/api/v1/compiles/", key), "kiln.example"), 404);
  // Prometheus and a kubelet call it as they like.
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    EXPECT_EQ(code(path, "kilnd.monitoring.svc:7462"), 200) << path;
  }
}

}  // namespace
}  // namespace kiln::integration
