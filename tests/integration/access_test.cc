// Tokens and roles over a real connection, and what stays free.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/digest.h"
#include "server/security/method_roles.h"
#include "tests/integration/graphs.h"
#include "tests/integration/secure_server.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using enum grpc::StatusCode;
using server::Role;

class AccessTest : public SecureServerTest {
 protected:
  std::string Lines() {
    return TokenLine("reader", "read", "r-secret") + TokenLine("trainer", "compile", "c-secret") +
           TokenLine("ops", "admin", "a-secret");
  }
};

TEST_F(AccessTest, EveryMethodTakesItsRoleAndNoLess) {
  ASSERT_TRUE(StartServer({AccessFlag(Lines())}));
  const std::map<Role, std::string> tokens = {
      {Role::kRead, "r-secret"}, {Role::kCompile, "c-secret"}, {Role::kAdmin, "a-secret"}};
  auto channel = server().Connect();
  const auto& service =
      *v1::FetchRequest::descriptor()->file()->FindServiceByName("CompileService");
  for (int i = 0; i < service.method_count(); ++i) {
    const std::string& name = service.method(i)->name();
    const std::string path = absl::StrCat("/", service.full_name(), "/", name);
    SCOPED_TRACE(name);
    EXPECT_EQ(CallEmpty(channel, path).error_code(), UNAUTHENTICATED);
    EXPECT_EQ(CallEmpty(channel, path, "x-secret").error_code(), UNAUTHENTICATED);
    const Role needed = server::RoleOf(name).value();
    for (const auto& [role, token] : tokens) {
      grpc::Status status = CallEmpty(channel, path, token);
      if (role < needed) {
        EXPECT_EQ(status.error_code(), PERMISSION_DENIED) << Text(status);
      } else {
        EXPECT_NE(status.error_code(), PERMISSION_DENIED) << Text(status);
        EXPECT_NE(status.error_code(), UNAUTHENTICATED) << Text(status);
        EXPECT_NE(status.error_code(), UNIMPLEMENTED) << Text(status);
      }
    }
  }
}

TEST_F(AccessTest, TheClientLibraryShowsItsToken) {
  ASSERT_TRUE(StartServer({AccessFlag(Lines())}));
  v1::Graph graph = QuickRequest(100).graph();
  ClientOptions options;
  options.server = server().grpc_address();
  options.threads = 1;
  options.known_servers = folder_.path() + "/known_servers";
  EXPECT_TRUE(absl::IsUnauthenticated((*Client::Create(options))->Compile(graph).status()));
  options.token = "x-secret";
  EXPECT_TRUE(absl::IsUnauthenticated((*Client::Create(options))->Compile(graph).status()));
  options.token = "r-secret";
  absl::Status denied = (*Client::Create(options))->Compile(graph).status();
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(denied.message(), HasSubstr("Compile takes the role 'compile'; reader has 'read'"));
  options.token = "";
  options.token_file = File("token", "c-secret\n");
  auto compiled = (*Client::Create(options))->Compile(graph);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_THAT(server().process().Errors(), Not(HasSubstr("-secret"))) << "no token is logged";
}

TEST_F(AccessTest, WhoMayCompileMayTellWhatARunTook) {
  ASSERT_TRUE(StartServer({AccessFlag(Lines())}));
  ClientOptions options;
  options.server = server().grpc_address();
  options.threads = 1;
  options.known_servers = folder_.path() + "/known_servers";
  options.token = "c-secret";
  const auto client = *Client::Create(options);
  const auto compiled = client->CompileArtifact(QuickRequest(100).graph());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  v1::DeviceTimes times;
  times.set_device("gcu-16m");
  v1::LaunchTime& time = *times.add_launches();
  time.set_kernel("kiln_0123");
  time.set_launches(1);
  time.set_mean_us(12);
  EXPECT_EQ(client->ReportRun(compiled->key, times), absl::OkStatus());
  absl::Status status = client->ReportRun(std::string(64, '0'), times);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::IsInvalidArgument(client->ReportRun("no key", times)));
  time.set_mean_us(-1);
  status = client->ReportRun(compiled->key, times);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("kernel kiln_0123 took -1 us"));
  time.set_mean_us(12);
  options.token = "r-secret";
  status = (*Client::Create(options))->ReportRun(compiled->key, times);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
}

TEST_F(AccessTest, ATokenTakenOutOfTheFileEndsWithSighup) {
  ASSERT_TRUE(StartServer({AccessFlag(Lines())}));
  auto channel = server().Connect();
  ASSERT_TRUE(Info(channel, "r-secret").ok());
  File("access", TokenLine("ops", "admin", "a-secret") + "bad line\n");
  server().process().Signal(SIGHUP);
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
    return server().process().Errors().find("access line 2") != std::string::npos;
  }));
  EXPECT_TRUE(Info(channel, "r-secret").ok()) << "a bad file leaves what was read before";
  File("access", TokenLine("ops", "admin", "a-secret"));
  server().process().Signal(SIGHUP);
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
    return Info(channel, "r-secret").error_code() == UNAUTHENTICATED;
  }));
  EXPECT_TRUE(Info(channel, "a-secret").ok());
  EXPECT_EQ(StopServer(), 0);
}

TEST_F(AccessTest, AFileOfSecretsThatOthersReadGetsAWarning) {
  std::string flag = AccessFlag(Lines());
  chmod((folder_.path() + "/access").c_str(), 0644);
  ASSERT_TRUE(StartServer({flag}));
  EXPECT_THAT(server().process().Errors(), HasSubstr("readable by every user"));
  ASSERT_EQ(StopServer(), 0);
  chmod((folder_.path() + "/access").c_str(), 0600);
  ASSERT_TRUE(StartServer({flag}));
  EXPECT_THAT(server().process().Errors(), Not(HasSubstr("readable by every user")));
}

TEST_F(AccessTest, HealthAndProbesAreFreeMetricsWhereSaid) {
  ASSERT_TRUE(StartServer({AccessFlag(Lines())}));
  grpc::Status health = CallEmpty(server().Connect(), "/grpc.health.v1.Health/Check");
  EXPECT_TRUE(health.ok()) << Text(health);
  EXPECT_EQ(HttpGet(server().http_address(), "/metrics")->code, 200);
  ASSERT_TRUE(StartServer(
      {AccessFlag(Lines()), absl::StrCat("--metrics-token-sha256=", Sha256("m-secret").ToHex())}));
  EXPECT_EQ(HttpGet(server().http_address(), "/healthz")->code, 200);
  EXPECT_EQ(HttpGet(server().http_address(), "/readyz")->code, 200);
  auto refused = HttpGet(server().http_address(), "/metrics");
  EXPECT_EQ(refused->code, 401);
  EXPECT_THAT(refused->headers, HasSubstr("WWW-Authenticate: Basic"));
  EXPECT_THAT(refused->body, Not(HasSubstr("kiln_")));
  // HttpGet writes its path as it stands.
  auto seen = HttpGet(server().http_address(),
                      "/metrics HTTP/1.1\r\nAuthorization: Bearer m-secret\r\nX: ");
  EXPECT_EQ(seen->code, 200) << seen->body;
}

TEST_F(AccessTest, AServerThatNobodyCouldCallDoesNotStart) {
  std::vector<std::string> command = {KilndPath(), "--listen=0.0.0.0:0",
                                      "--metrics-listen=127.0.0.1:0",
                                      absl::StrCat("--data-dir=", folder_.path(), "/data")};
  Ended ended = RunToEnd(command);
  EXPECT_EQ(ended.code, 78);
  EXPECT_THAT(ended.errors, HasSubstr("nobody could call this server"));
  EXPECT_THAT(ended.errors, HasSubstr("--access-file"));
}

TEST_F(AccessTest, ListeningBeyondThisMachineSaysWhatIsMissing) {
  ASSERT_TRUE(StartServer({"--listen=0.0.0.0:0", "--anonymous-role=compile"}));
  std::string log = server().process().Errors();
  EXPECT_THAT(log, HasSubstr("no TLS"));
  EXPECT_THAT(log, HasSubstr("no authentication: whoever can connect has the role 'compile'"));
  ASSERT_TRUE(
      StartServer(Join(TlsFlags(server_pair_), {"--listen=0.0.0.0:0", AccessFlag(Lines())})));
  log = server().process().Errors();
  EXPECT_THAT(log, HasSubstr("listening beyond this machine"));
  EXPECT_THAT(log, Not(HasSubstr("no TLS")));
  EXPECT_THAT(log, Not(HasSubstr("no authentication")));
  ASSERT_TRUE(StartServer());
  EXPECT_THAT(server().process().Errors(), Not(HasSubstr("beyond this machine")));
}

TEST_F(AccessTest, TheCommandLineSpeaksTlsAndShowsATokenFile) {
  ASSERT_TRUE(StartServer(Join(TlsFlags(server_pair_), {AccessFlag(Lines())})));
  std::string port = server().grpc_address().substr(server().grpc_address().rfind(':'));
  std::vector<std::string> status = {
      KILN_CLI, "status", absl::StrCat("--server=https://localhost", port),
      absl::StrCat("--tls-ca=", File("ca.pem", authority_.certificate())),
      absl::StrCat("--known-servers=", folder_.path(), "/known_servers")};
  Ended nobody = RunToEnd(status);
  EXPECT_EQ(nobody.code, 1);
  EXPECT_THAT(nobody.errors, HasSubstr("takes a token or a client certificate"));
  Ended reader =
      RunToEnd(Join(status, {absl::StrCat("--token-file=", File("token", "r-secret\n"))}));
  EXPECT_EQ(reader.code, 0) << reader.errors;
  Ended key = RunToEnd(Join(status, {absl::StrCat("--token-file=", folder_.path(), "/token"),
                                     "--public-key=ed25519:"
                                     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}));
  EXPECT_EQ(key.code, 1);
  EXPECT_THAT(key.errors, HasSubstr("has the public key ed25519:"));
}

// GetServerInfo as `tenant`.
grpc::Status InfoAs(const std::shared_ptr<grpc::Channel>& channel, const std::string& tenant,
                    const std::string& token) {
  grpc::ClientContext context;
  context.AddMetadata("kiln-tenant", tenant);
  context.AddMetadata("authorization", "Bearer " + token);
  v1::ServerInfo info;
  return v1::CompileService::NewStub(channel)->GetServerInfo(&context, {}, &info);
}

TEST_F(AccessTest, CallersNameThemselvesAFewTenantsAndNoneOfOthers) {
  ASSERT_TRUE(
      StartServer({AccessFlag(Lines() + "ci compile " + Sha256("ci-secret").ToHex() + " team-a\n"),
                   "--tenant-names=2"}));
  auto channel = server().Connect();
  for (const char* tenant : {"first", "second", "third", "fourth", "second"}) {
    EXPECT_TRUE(InfoAs(channel, tenant, "c-secret").ok()) << tenant;
  }
  EXPECT_TRUE(InfoAs(channel, "third", "r-secret").ok()) << "another identity";
  const grpc::Status taken = InfoAs(channel, "team-a", "c-secret");
  EXPECT_EQ(taken.error_code(), PERMISSION_DENIED) << Text(taken);
  EXPECT_THAT(taken.error_message(), HasSubstr("'team-a'"));
  EXPECT_TRUE(InfoAs(channel, "anything", "ci-secret").ok());
  const auto logged = [&](const std::string& tenant, const std::string& identity) {
    const std::string log = server().process().Errors();
    const std::string wanted = absl::StrCat("tenant=", tenant, " identity=", identity);
    int count = 0;
    for (size_t at = log.find(wanted); at != std::string::npos; at = log.find(wanted, at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] { return logged("team-a", "ci") == 1; }));
  EXPECT_EQ(logged("first", "trainer"), 1);
  EXPECT_EQ(logged("second", "trainer"), 2);
  EXPECT_EQ(logged("third", "trainer"), 0);
  EXPECT_EQ(logged("other", "trainer"), 2);
  EXPECT_EQ(logged("third", "reader"), 1);
}

}  // namespace
}  // namespace kiln::integration
