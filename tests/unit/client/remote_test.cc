// The client against a server of the test's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/channels.h"
#include "client/local_cache.h"
#include "client/remote.h"
#include "kiln/client.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/device.pb.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/key.h"
#include "tests/temp_dir.h"
#include "tests/unit/client/artifacts.h"
#include "tests/unit/client/fake_server.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

class RemoteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ForgetPrograms();
    graph_ = GraphFor(AddAndDouble(8).program());
  }

  std::unique_ptr<Client> MakeClient(std::string debug_dir = "") {
    ClientOptions options;
    options.server = server_.address();
    options.timeout = absl::Seconds(20);
    options.threads = 1;
    options.debug_dir = std::move(debug_dir);
    return *Client::Create(options);
  }

  FakeServer server_;
  v1::Graph graph_;
};

TEST_F(RemoteTest, FetchesFirstCompilesOnAMissAndRemembers) {
  auto client = MakeClient();
  EXPECT_TRUE(absl::IsNotFound(client->Fetch(graph_).status()));
  std::vector<std::string> stages;
  auto compiled = client->Compile(graph_, [&](const CompileProgress& p) {
    if (!p.stage.empty() && (stages.empty() || stages.back() != p.stage)) stages.push_back(p.stage);
    return true;
  });
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_STREQ(compiled->source, "compiled");
  EXPECT_EQ(stages, std::vector<std::string>{"fuse"});
  EXPECT_GT(compiled->compile_ms, 0);
  std::vector<float> a(8, 1);
  int64_t n = 8;
  auto outputs = compiled->program->Run({Vector(a.data(), n), Vector(a.data(), n)});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(static_cast<float*>((*outputs)[0].data)[7], 4);

  auto again = client->Compile(graph_);
  ASSERT_TRUE(again.ok());
  EXPECT_STREQ(again->source, "local");
  EXPECT_EQ(again->program, compiled->program);
  EXPECT_EQ(server_.compiles, 1);

  ForgetPrograms();
  auto fetched = MakeClient()->Compile(graph_);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_STREQ(fetched->source, "disk");
  EXPECT_EQ(fetched->compile_ms, 0);
  EXPECT_EQ(server_.compiles, 1);
  EXPECT_EQ(server_.infos, 2);
}

TEST_F(RemoteTest, CarriesTheServersErrorWithItsDetail) {
  server_.refuse = true;
  absl::Status status = MakeClient()->Compile(graph_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  auto detail = GetDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->node(), "add_1");
  EXPECT_EQ(detail->reason(), v1::ErrorDetail::REASON_BAD_GRAPH);
}

TEST_F(RemoteTest, CancelsWhenTheCallbackSaysSo) {
  absl::Status status =
      MakeClient()->Compile(graph_, [](const CompileProgress&) { return false; }).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(RemoteTest, TheCallbackCancelsACompileOfWhichTheServerSaysNothing) {
  server_.silent = true;
  std::vector<std::string> stages;
  absl::Status status = MakeClient()
                            ->Compile(graph_,
                                      [&](const CompileProgress& p) {
                                        stages.push_back(p.stage);
                                        return stages.size() < 2;
                                      })
                            .status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(stages, std::vector<std::string>(2));
}

TEST_F(RemoteTest, RefusesADamagedArtifact) {
  server_.damage = true;
  EXPECT_TRUE(absl::IsDataLoss(MakeClient()->Compile(graph_).status()));
}

TEST_F(RemoteTest, AStoredArtifactThatIsCutOffIsAnError) {
  auto client = MakeClient();
  ASSERT_TRUE(client->Compile(graph_).ok());
  ForgetPrograms();
  // The server makes the digest from what is left, so that only the loader can tell.
  for (auto& [key, bytes] : server_.stored) bytes.resize(bytes.size() / 2);
  EXPECT_TRUE(absl::IsDataLoss(client->Fetch(graph_).status()));
}

TEST_F(RemoteTest, RefusesTheArtifactOfAnotherRequest) {
  server_.wrong_key = true;
  EXPECT_THAT(MakeClient()->Compile(graph_).status().message(), HasSubstr("another request"));
}

TEST_F(RemoteTest, RefusesAProgramThatIsNotTheGraphs) {
  server_.change = [](v1::Program& program) { program.mutable_outputs(0)->mutable_none(); };
  auto client = MakeClient();
  EXPECT_THAT(client->Compile(graph_).status().message(), HasSubstr("output 0 is nothing"));
  EXPECT_EQ(server_.stored.size(), 1u);
  EXPECT_THAT(client->Fetch(graph_).status().message(), HasSubstr("output 0 is nothing"));
  EXPECT_TRUE(absl::IsDataLoss(client->CompileArtifact(graph_, nullptr).status()));
}

TEST_F(RemoteTest, AnotherProgramInTheLocalCacheIsNotTaken) {
  const TempDir folder;
  const auto compile = [&] {
    ForgetPrograms();
    ClientOptions options;
    options.server = server_.address();
    options.threads = 1;
    options.local_cache = folder.path();
    return (*Client::Create(options))->Compile(graph_);
  };
  auto compiled = compile();
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_STREQ(compile()->source, "local_disk");
  {
    v1::Artifact changed;
    const Digest key = *Digest::FromHex(compiled->key);
    ASSERT_TRUE(changed.ParseFromString(server_.stored[std::string(key.view())]));
    changed.mutable_program()->mutable_outputs(0)->mutable_none();
    const std::string bytes = Sealed(changed);
    auto cache = LocalCache::Open({.folder = folder.path()});
    ASSERT_TRUE(cache.ok()) << cache.status();
    ASSERT_TRUE((*cache)->Put(key, {bytes, Sha256(bytes), ""}).ok());
  }
  auto again = compile();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_STREQ(again->source, "disk") << "the server's";
  EXPECT_STREQ(compile()->source, "local_disk");
}

// The most memory that this process has had, in KiB.
int64_t PeakKib() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, "VmHWM:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

TEST_F(RemoteTest, BytesThatAreOnlyAnnouncedCostNoMemory) {
  for (const int64_t announced : {int64_t{200} << 20, int64_t{2} << 30, INT64_MAX}) {
    server_.announced = announced;
    const int64_t before = PeakKib();
    const absl::Status status = MakeClient()->Compile(graph_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_LT(PeakKib() - before, 32 << 10) << announced;
    ForgetPrograms();
  }
}

// The stream goes on as long as the client listens.
TEST_F(RemoteTest, AStreamWithoutEndEndsWhereItAnnouncedMoreThanAnArtifactHas) {
  server_.announced = int64_t{2} << 30;
  server_.endless = true;
  const int64_t before = PeakKib();
  const absl::Status status = MakeClient()->Compile(graph_).status();
  EXPECT_THAT(status.message(), HasSubstr("announced 2147483648 bytes"));
  EXPECT_LT(PeakKib() - before, 64 << 10);
}

TEST_F(RemoteTest, FollowsAServerThatWasReplacedByANewerOne) {
  auto client = MakeClient();
  ASSERT_TRUE(client->Compile(graph_).ok());
  ForgetPrograms();
  {
    std::lock_guard lock(server_.mutex);
    server_.build = "build-2";
    server_.stored.clear();
  }
  auto compiled = client->Compile(graph_);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_STREQ(compiled->source, "compiled");
  auto again = client->Compile(graph_);
  ASSERT_TRUE(again.ok());
  EXPECT_STREQ(again->source, "local");
}

TEST_F(RemoteTest, AKeyIsMadeWithTheBuildOfTheClientsTarget) {
  {
    std::lock_guard lock(server_.mutex);
    server_.builds = {{v1::TARGET_CPP, "build-cpp"}, {v1::TARGET_NULL, "build-null"}};
  }
  auto client = MakeClient();
  auto compiled = client->Compile(graph_);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->key,
            ArtifactKey(graph_, client->device(), client->compile_options(), "build-cpp").ToHex());

  ClientOptions options;
  options.server = server_.address();
  options.target = "null";
  client = *Client::Create(options);
  auto artifact = client->CompileArtifact(graph_);
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(artifact->key,
            ArtifactKey(graph_, client->device(), client->compile_options(), "build-null").ToHex());
}

// The local cache remembers which compiler a server had: for each target its own.
TEST_F(RemoteTest, WithoutAServerEachTargetsBuildIsTheOneItHadLast) {
  const TempDir folder;
  {
    std::lock_guard lock(server_.mutex);
    server_.builds = {{v1::TARGET_NULL, "build-null"}};
  }
  ClientOptions options;
  options.server = server_.address();
  options.threads = 1;
  options.local_cache = folder.path();
  ASSERT_TRUE((*Client::Create(options))->Compile(graph_).ok());
  ClientOptions other = options;
  other.target = "null";
  ASSERT_TRUE((*Client::Create(other))->CompileArtifact(graph_).ok());
  ForgetPrograms();
  server_.Stop();
  auto compiled = (*Client::Create(options))->Compile(graph_);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_STREQ(compiled->source, "local_disk");
}

TEST_F(RemoteTest, CountsKernelsOfACompileThroughTheCInterface) {
  kiln_client_options options = KILN_CLIENT_OPTIONS_INIT;
  std::string address = server_.address();
  options.server = address.c_str();
  options.threads = 1;
  kiln_client* client = nullptr;
  ASSERT_EQ(kiln_client_create(&options, &client), nullptr);
  std::string bytes = graph_.SerializeAsString();
  kiln_graph* graph = nullptr;
  ASSERT_EQ(kiln_graph_parse(bytes.data(), bytes.size(), &graph), nullptr);
  kiln_program* program = nullptr;
  kiln_compile_info info = KILN_COMPILE_INFO_INIT;
  ASSERT_EQ(kiln_compile(client, graph, nullptr, &program, &info), nullptr);
  EXPECT_STREQ(info.source, "compiled");
  EXPECT_EQ(info.kernels_cached, 1);
  EXPECT_EQ(info.kernels_compiled, 1);
  EXPECT_EQ(std::string(info.key).size(), 64u);
  kiln_program_destroy(program);
  ASSERT_EQ(kiln_client_fetch(client, graph, nullptr, &program, &info), nullptr);
  EXPECT_STREQ(info.source, "local");
  EXPECT_EQ(info.kernels_compiled, 0);
  kiln_program_destroy(program);
  kiln_graph_destroy(graph);
  kiln_client_destroy(client);
}

TEST_F(RemoteTest, WritesDebugFiles) {
  const TempDir dir;
  auto compiled = MakeClient(dir.path())->Compile(graph_);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  std::filesystem::path folder =
      std::filesystem::path(dir.path()) / absl::StrCat("test_graph-", compiled->key.substr(0, 12));
  for (const char* name : {"graph.kgraph", "graph.json", "program.json", "ir/00-fuse.kir",
                           "decisions.txt", "times.txt"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  }
}

TEST(Remote, AServerThatIsAwayIsUnavailableAndNamed) {
  ClientOptions options;
  options.server = "127.0.0.1:1";
  absl::Status status = (*Client::Create(options))->GetServerInfo().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("127.0.0.1:1"));
}

// OpenSSL ends in exit(): a thread of gRPC that connects again then crashed the process.
TEST(RemoteDeathTest, ExitEndsConnectionsBeforeOpenSslThoughTheClientLivesOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has had no channel
  EXPECT_EXIT(
      {
        // exit() calls what was registered first last.
        std::atexit([] { _exit(LiveChannelObjects() == 0 ? 0 : 7); });
        ClientOptions options;
        options.server = "https://127.0.0.1:1";
        auto* kept = Client::Create(options)->release();
        if (!absl::IsUnavailable(kept->GetServerInfo().status())) _exit(8);
        if (LiveChannelObjects() == 0) _exit(9);
        std::exit(10);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(GrpcTarget, AddressesNeedNoResolver) {
  EXPECT_EQ(*GrpcTarget("127.0.0.1:7461"), "ipv4:127.0.0.1:7461");
  EXPECT_EQ(*GrpcTarget("localhost:80"), "ipv4:127.0.0.1:80");
  EXPECT_EQ(*GrpcTarget("[::1]:80"), "ipv6:[::1]:80");
  EXPECT_EQ(*GrpcTarget("kiln.example:80"), "dns:///kiln.example:80");
  EXPECT_EQ(*GrpcTarget("unix:/run/kiln.sock"), "unix:/run/kiln.sock");
  for (const char* bad : {"", "host", "host:", ":80", "host:0", "host:65536", "host:x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(GrpcTarget(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace kiln::testing
