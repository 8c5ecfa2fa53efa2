// Real TLS: right, wrong, expired and absent certificates, and their replacement under load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"
#include "tests/integration/graphs.h"
#include "tests/integration/secure_server.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;
using enum grpc::StatusCode;

using TlsTest = SecureServerTest;

TEST_F(TlsTest, AServerIsBelievedOnlyWithACertificateOfTheCaForItsName) {
  ASSERT_TRUE(StartServer(Join(TlsFlags(server_pair_), {"--anonymous-role=compile"})));
  std::string shown;
  grpc::Status status = Info(Connect(), "", &shown);
  EXPECT_TRUE(status.ok()) << Text(status);
  EXPECT_EQ(shown, "server-1");
  const double left = server().Metrics().Sum("kiln_tls_certificate_remaining_seconds");
  EXPECT_GT(left, 0);
  Authority other("another authority");
  EXPECT_EQ(Info(Connect(other.certificate())).error_code(), UNAVAILABLE);
  EXPECT_EQ(Info(server().Connect()).error_code(), UNAVAILABLE) << "without TLS";
  EXPECT_THAT(server().process().Errors(), HasSubstr("info grpc message=\"Handshake failed"))
      << "gRPC's own lines are in the server's form";

  Subject expired = ServerSubject("expired");
  expired.left = -absl::Minutes(1);
  ShowCertificate(authority_.Issue(expired));
  server().process().Signal(SIGHUP);
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
    return Info(Connect()).error_code() == UNAVAILABLE;
  })) << "an expired certificate";
  EXPECT_LT(server().Metrics().Sum("kiln_tls_certificate_remaining_seconds"), -59);
  ShowCertificate(authority_.Issue({.common_name = "x", .alternative_names = {"DNS:elsewhere"}}));
  server().process().Signal(SIGHUP);
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
    return server().process().Errors().find("certificate loaded") !=
           server().process().Errors().rfind("certificate loaded");
  }));
  EXPECT_EQ(Info(Connect()).error_code(), UNAVAILABLE) << "a certificate for another name";
}

TEST_F(TlsTest, AClientThatSpeaksTlsToOneThatDoesNotAndTheReverseSaysSo) {
  const auto status = [this](const std::string& scheme) {
    return RunToEnd({KILN_CLI, "status", "--timeout=20",
                     absl::StrCat("--server=", scheme, server().grpc_address()),
                     absl::StrCat("--tls-ca=", File("ca.pem", authority_.certificate()))});
  };
  ASSERT_TRUE(StartServer(Join(TlsFlags(server_pair_), {"--anonymous-role=compile"})));
  const Ended plain = status("http://");
  EXPECT_EQ(plain.code, 3);
  EXPECT_THAT(plain.errors, HasSubstr("if it speaks TLS, its name is https://HOST:PORT"));
  ASSERT_TRUE(StartServer({"--anonymous-role=compile"}));
  const Ended encrypted = status("https://");
  EXPECT_EQ(encrypted.code, 3);
  EXPECT_THAT(encrypted.errors, HasSubstr("it does not speak TLS (http://HOST:PORT"));
}

TEST_F(TlsTest, MutualTlsAsksForACertificateOfTheClientsCa) {
  Authority clients("the clients' authority");
  std::string ca = File("clients.pem", clients.certificate());
  ASSERT_TRUE(
      StartServer(Join(TlsFlags(server_pair_),
                       {absl::StrCat("--tls-client-ca=", ca),
                        AccessFlag("ops.example admin certificate\n* read certificate\n")})));
  Pair worker = clients.Issue({.common_name = "worker-1"});
  Pair ops = clients.Issue({.common_name = "someone", .alternative_names = {"DNS:ops.example"}});
  EXPECT_TRUE(Info(Connect(&worker)).ok());
  const std::string clear = "/kiln.v1.CompileService/ClearCache";
  grpc::Status refused = CallEmpty(Connect(&worker), clear);
  EXPECT_EQ(refused.error_code(), PERMISSION_DENIED) << Text(refused);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("ClearCache takes the role 'admin'; worker-1 has 'read'"));
  grpc::Status cleared = CallEmpty(Connect(&ops), clear);
  EXPECT_TRUE(cleared.ok()) << Text(cleared);

  EXPECT_EQ(Info(Connect()).error_code(), UNAVAILABLE) << "no certificate";
  Pair foreign = Authority("another authority").Issue({.common_name = "ops.example"});
  EXPECT_EQ(Info(Connect(&foreign)).error_code(), UNAVAILABLE) << "another authority's";
  Pair expired = clients.Issue({.common_name = "ops.example", .left = -absl::Minutes(1)});
  EXPECT_EQ(Info(Connect(&expired)).error_code(), UNAVAILABLE) << "expired";
}

TEST_F(TlsTest, OptionalCertificatesLetOthersShowATokenButNoBadCertificate) {
  Authority clients("the clients' authority");
  std::string ca = File("clients.pem", clients.certificate());
  ASSERT_TRUE(StartServer(Join(TlsFlags(server_pair_),
                               {absl::StrCat("--tls-client-ca=", ca), "--tls-client-auth=optional",
                                AccessFlag(absl::StrCat("worker-1 compile certificate\n",
                                                        TokenLine("t", "read", "secret")))})));
  Pair worker = clients.Issue({.common_name = "worker-1"});
  Pair stranger = clients.Issue({.common_name = "worker-2"});
  Pair foreign = Authority("another authority").Issue({.common_name = "worker-1"});
  EXPECT_TRUE(Info(Connect(&worker)).ok());
  EXPECT_TRUE(Info(Connect(), "secret").ok());
  EXPECT_EQ(Info(Connect()).error_code(), UNAUTHENTICATED);
  EXPECT_EQ(Info(Connect(&stranger)).error_code(), PERMISSION_DENIED) << "no line names it";
  EXPECT_TRUE(Info(Connect(&stranger), "secret").ok()) << "a token goes before a certificate";
  EXPECT_EQ(Info(Connect(&worker), "wrong").error_code(), UNAUTHENTICATED);
  EXPECT_EQ(Info(Connect(&foreign)).error_code(), UNAVAILABLE);
}

TEST_F(TlsTest, CertificatesAreReplacedUnderLoadWithoutAFailedCall) {
  ASSERT_TRUE(StartServer(Join(TlsFlags(server_pair_), {"--anonymous-role=compile"})));
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  std::mutex mutex;
  std::vector<std::string> failures;
  auto count = [&](const grpc::Status& status) {
    ++calls;
    if (status.ok()) return;
    std::lock_guard lock(mutex);
    failures.push_back(Text(status));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, kept = Connect()] {
      while (!stop) count(Info(kept));
    });
    threads.emplace_back([&] {
      while (!stop) count(Info(Connect()));  // a handshake each
    });
  }
  for (int round = 2; round <= 5; ++round) {
    std::string name = absl::StrCat("server-", round);
    Pair next = authority_.Issue(ServerSubject(name));
    // The way of many tools: for a while certificate and key do not fit.
    File("cert.pem", next.certificate);
    server().process().Signal(SIGHUP);
    std::string shown;
    count(Info(Connect(), "", &shown));
    EXPECT_EQ(shown, absl::StrCat("server-", round - 1));
    File("key.pem", next.key);
    if (round % 2 == 0) server().process().Signal(SIGHUP);  // else it sees by itself
    EXPECT_TRUE(Eventually(absl::Seconds(20), [&] {
      count(Info(Connect(), "", &shown));
      return shown == name;
    })) << shown;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(failures, ::testing::IsEmpty());
  EXPECT_GT(calls, 50);
  std::printf("%d calls while 4 certificates were replaced, %zu failed\n", calls.load(),
              failures.size());
  EXPECT_THAT(server().process().Errors(), HasSubstr("not its certificate's"));
}

TEST_F(TlsTest, TheClientLibraryCompilesOverMutualTls) {
  Authority clients("the clients' authority");
  ASSERT_TRUE(StartServer(
      Join(TlsFlags(server_pair_),
           {absl::StrCat("--tls-client-ca=", File("clients.pem", clients.certificate()))})));
  Pair own = clients.Issue({.common_name = "worker-1"});
  ClientOptions options;
  std::string port = server().grpc_address().substr(server().grpc_address().rfind(':'));
  options.server = absl::StrCat("https://localhost", port);
  options.tls_ca = File("ca.pem", authority_.certificate());
  options.tls_cert = File("own.pem", own.certificate);
  options.tls_key = File("own-key.pem", own.key);
  options.known_servers = folder_.path() + "/known_servers";
  options.timeout = absl::Seconds(60);
  options.threads = 1;
  v1::Graph graph = QuickRequest(100).graph();
  auto compiled = (*Client::Create(options))->Compile(graph);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  ForgetPrograms();

  ClientOptions stranger = options;
  stranger.tls_cert.clear();
  stranger.tls_key.clear();
  EXPECT_TRUE(absl::IsUnavailable((*Client::Create(stranger))->Fetch(graph).status()));
  ClientOptions fooled = options;
  fooled.tls_ca = File("other.pem", Authority("another authority").certificate());
  EXPECT_TRUE(absl::IsUnavailable((*Client::Create(fooled))->Fetch(graph).status()));
}

}  // namespace
}  // namespace kiln::integration
