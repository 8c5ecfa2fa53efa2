// The shared tier over TLS, with certificates made by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/remote_tier_fixture.h"

namespace kiln::integration {
namespace {

using cache::RemoteTierOptions;

class RemoteTlsTest : public RemoteTierFixture {
 protected:
  void SetUp() override {
    RemoteTierFixture::SetUp();
    if (IsSkipped()) return;
    if (FindProgram("openssl").empty()) GTEST_SKIP() << "openssl is not installed";
  }
  // A certificate that vouches for itself, for `name` ("IP:127.0.0.1").
  void MakeCertificate(const std::string& file, const std::string& name) {
    auto openssl =
        Process::Start({FindProgram("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=tier",
                        "-addext", absl::StrCat("subjectAltName=", name), "-keyout",
                        Path(file + ".key"), "-out", Path(file + ".pem")});
    ASSERT_TRUE(openssl.ok()) << openssl.status();
    ASSERT_EQ((*openssl)->Wait(absl::Seconds(30)), 0) << (*openssl)->Errors();
  }
  std::string Path(const std::string& file) { return absl::StrCat(dir_.path(), "/", file); }
  void StartRedis(const std::string& certificate) {
    tls_port_ = FreePort();
    auto redis = RedisProcess::Start({"--tls-port", absl::StrCat(tls_port_), "--tls-cert-file",
                                      Path(certificate + ".pem"), "--tls-key-file",
                                      Path(certificate + ".key"), "--tls-ca-cert-file",
                                      Path(certificate + ".pem"), "--tls-auth-clients", "no"});
    if (!redis.ok()) GTEST_SKIP() << "this redis-server has no TLS: " << redis.status();
    redis_ = *std::move(redis);
  }
  std::unique_ptr<cache::RemoteTier> OpenTls(const std::string& host, const std::string& ca_file) {
    return Open(absl::StrCat("rediss://", host, ":", tls_port_),
                [&](RemoteTierOptions& o) { o.ca_file = ca_file; });
  }

  int tls_port_ = 0;
  std::unique_ptr<RedisProcess> redis_;
};

TEST_F(RemoteTlsTest, SharesOverTlsWithAServerThatItKnows) {
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("right", "IP:127.0.0.1,DNS:localhost"));
  StartRedis("right");
  if (IsSkipped()) return;
  auto by_address = OpenTls("127.0.0.1", Path("right.pem"));
  for (size_t size_bytes : {size_t{100}, size_t{5} << 20}) {
    const cache::Key key = ArtifactKey(static_cast<int>(size_bytes));
    PutAndWait(*by_address, key, EntryOf(1, size_bytes));
    auto found = OpenTls("localhost", Path("right.pem"))->store().Get(key);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->entry->bytes.size(), size_bytes);
  }
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(by_address->store().Get(ArtifactKey(100)).ok()) << i;
  // One for all of these: the connection is kept.
  EXPECT_THAT(redis_->Call({"INFO", "stats"}), ::testing::HasSubstr("total_connections_received"));
}

TEST_F(RemoteTlsTest, AServerThatNobodyVouchesForIsNotTalkedTo) {
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("right", "IP:127.0.0.1"));
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("other", "IP:127.0.0.1"));
  StartRedis("right");
  if (IsSkipped()) return;
  for (auto& tier : {OpenTls("127.0.0.1", Path("other.pem")), OpenTls("127.0.0.1", "")}) {
    absl::Status status = tier->store().Get(ArtifactKey(0)).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("certificate verify failed"));
  }
  absl::Status status =
      OpenTls("localhost", Path("right.pem"))->store().Get(ArtifactKey(0)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << "the certificate is not for this name: " << status;
}

TEST_F(RemoteTlsTest, AStalledServerCostsTheLimitInTheHandshakeToo) {
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("right", "IP:127.0.0.1"));
  StartRedis("right");
  if (IsSkipped()) return;
  redis_->Stop();
  auto tier = Open(absl::StrCat("rediss://127.0.0.1:", tls_port_), [&](RemoteTierOptions& o) {
    o.ca_file = Path("right.pem");
    o.connect_timeout = absl::Milliseconds(50);
    o.read_timeout = absl::Milliseconds(100);
  });
  const absl::Time start = absl::Now();
  EXPECT_FALSE(tier->store().Get(ArtifactKey(0)).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST_F(RemoteTlsTest, AFileWithoutCertificatesIsRefused) {
  RemoteTierOptions options;
  options.url = cache::ParseRemoteUrl("rediss://h").value();
  options.ca_file = "/dev/null";
  EXPECT_TRUE(absl::IsInvalidArgument(cache::OpenRemoteTier(options).status()));
}

}  // namespace
}  // namespace kiln::integration
