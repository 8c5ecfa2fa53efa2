#include "server/security/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "server/exposure.h"
#include "server/security/complaint.h"
#include "server/security/tls.h"
#include "server/web/http_guard.h"
#include "tests/temp_dir.h"
#include "tests/unit/server/certificates.h"

namespace kiln::server {
namespace {

using ::kiln::testing::Authority;
using ::kiln::testing::Pair;
using ::kiln::testing::ServerSubject;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<std::unique_ptr<Credentials>> Load(const Config& config) {
  return Credentials::Load(config.security, config.listen.IsLoopback());
}

Role RoleOfNobody(const Config& config) {
  return AnonymousRole(config.security);
}

bool UsesToken(const Config& config) {
  return UsesLocalToken(config.security, config.listen.IsLoopback());
}

class CredentialsTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name, const std::string& text) {
    std::string path = dir_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  Config WithTls() {
    Config config;
    config.security.tls_cert = File("cert.pem", pair_.certificate);
    config.security.tls_key = File("key.pem", pair_.key);
    return config;
  }
  std::string ErrorOf(const Config& config) {
    absl::Status status = Load(config).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  TempDir dir_;
  Authority authority_{"test authority"};
  Pair pair_ = authority_.Issue(ServerSubject("server"));
};

TEST_F(CredentialsTest, ThePlainCommandIsForItsUserAlone) {
  Config config;
  EXPECT_EQ(RoleOfNobody(config), Role::kNone);
  EXPECT_TRUE(UsesToken(config));
  EXPECT_TRUE(Load(config).ok());
  config.security.anonymous_role = Role::kCompile;
  EXPECT_EQ(RoleOfNobody(config), Role::kCompile);
  EXPECT_FALSE(UsesToken(config)) << "everybody on this machine was let in";
  EXPECT_THAT(ExposureWarnings(config), IsEmpty());
}

TEST_F(CredentialsTest, WhoeverSetsUpMoreMustSayWhoMayCall) {
  Config beyond;
  beyond.listen = {"0.0.0.0", 7461};
  EXPECT_EQ(RoleOfNobody(beyond), Role::kNone);
  EXPECT_THAT(ErrorOf(beyond), HasSubstr("nobody could call this server"));
  EXPECT_THAT(ErrorOf(WithTls()), HasSubstr("nobody could call this server"));

  beyond.security.anonymous_role = Role::kCompile;
  EXPECT_TRUE(Load(beyond).ok());
  EXPECT_THAT(ExposureWarnings(beyond),
              ElementsAre(HasSubstr("no TLS"), HasSubstr("whoever can connect has the role "
                                                         "'compile'")));
  Config access;
  access.security.access_file = File("access", "ops admin certificate\n");
  EXPECT_EQ(RoleOfNobody(access), Role::kNone) << "an access file alone closes the door";
  EXPECT_FALSE(UsesToken(access));
}

TEST_F(CredentialsTest, NothingIsMissingWithTlsAndCertificates) {
  Config config = WithTls();
  config.listen = {"0.0.0.0", 7461};
  config.security.tls_client_ca = File("ca.pem", authority_.certificate());
  EXPECT_TRUE(Load(config).ok());
  EXPECT_THAT(ExposureWarnings(config), IsEmpty());
  config.metrics_listen = {"0.0.0.0", 7462};
  EXPECT_THAT(ExposureWarnings(config), ElementsAre(HasSubstr("metrics and pages")));
  config.security.metrics_token_sha256 = std::string(32, 'x');
  EXPECT_THAT(ExposureWarnings(config), IsEmpty());
}

TEST_F(CredentialsTest, SettingsThatDoNotFitTogetherAreNamed) {
  Config config = WithTls();
  config.security.tls_key.clear();
  EXPECT_THAT(ErrorOf(config), HasSubstr("--tls-cert and --tls-key"));
  config = Config();
  config.security.tls_client_ca = File("ca.pem", authority_.certificate());
  EXPECT_THAT(ErrorOf(config), HasSubstr("--tls-client-ca needs --tls-cert"));
  config = WithTls();
  config.security.client_cert_required = true;
  EXPECT_THAT(ErrorOf(config), HasSubstr("--tls-client-auth needs --tls-client-ca"));
}

TEST_F(CredentialsTest, BadFilesAreNamed) {
  Config config = WithTls();
  config.security.anonymous_role = Role::kRead;
  ASSERT_TRUE(Load(config).ok());
  config.security.tls_cert = dir_.path() + "/absent.pem";
  EXPECT_THAT(ErrorOf(config), HasSubstr("--tls-cert: cannot read " + config.security.tls_cert));
  config.security.tls_cert = File("junk.pem", "junk");
  EXPECT_THAT(ErrorOf(config), HasSubstr("junk.pem"));
  config = WithTls();
  config.security.anonymous_role = Role::kRead;
  config.security.access_file = File("access", "ops root certificate\n");
  EXPECT_THAT(ErrorOf(config), HasSubstr("access line 1: 'root' is no role"));
}

TEST_F(CredentialsTest, AFileThatGoesBadLeavesWhatWasReadBefore) {
  Config config = WithTls();
  config.security.access_file = File("access", "ops admin certificate\n");
  auto credentials = Load(config);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_TRUE((*credentials)->Reload().ok());
  File("access", "ops admin nonsense\n");
  EXPECT_THAT((*credentials)->Reload().message(), HasSubstr("line 1"));
  File("access", "ops admin certificate\n");
  Pair other = authority_.Issue(ServerSubject("server"));
  File("cert.pem", other.certificate);
  EXPECT_THAT((*credentials)->Reload().message(), HasSubstr("not its certificate's"))
      << "the certificate is there, its key not yet";
  File("key.pem", other.key);
  EXPECT_TRUE((*credentials)->Reload().ok());
}

TEST(ComplaintTest, WhatOneLookFindsMayPassAndWhatStaysIsSaidOnce) {
  Complaint complaint;
  EXPECT_FALSE(complaint.IsDue("", 2));
  EXPECT_FALSE(complaint.IsDue("", 2)) << "nothing is wrong";
  EXPECT_FALSE(complaint.IsDue("half", 2));  // one file of two
  EXPECT_FALSE(complaint.IsDue("", 2));
  EXPECT_FALSE(complaint.IsDue("half", 2));
  EXPECT_FALSE(complaint.IsDue("broken", 2)) << "another";
  EXPECT_TRUE(complaint.IsDue("broken", 2));
  EXPECT_FALSE(complaint.IsDue("broken", 2)) << "said";
  EXPECT_FALSE(complaint.IsDue("", 2)) << "mended";
  EXPECT_FALSE(complaint.IsDue("broken", 2));
  EXPECT_TRUE(complaint.IsDue("broken", 1)) << "whoever asks waits for no second look";
  EXPECT_FALSE(complaint.IsDue("broken", 2)) << "said";
}

TEST_F(CredentialsTest, MaterialIsCheckedBeforeItIsUsed) {
  TlsMaterial material{pair_.certificate, pair_.key, authority_.certificate()};
  auto expiry = CheckTlsMaterial(material);
  ASSERT_TRUE(expiry.ok()) << expiry.status();
  EXPECT_GT(*expiry, absl::Now() + absl::Hours(24 * 29));
  EXPECT_LT(*expiry, absl::Now() + absl::Hours(24 * 31));
  TlsMaterial bad = material;
  bad.private_key = authority_.Issue(ServerSubject("server")).key;
  EXPECT_THAT(CheckTlsMaterial(bad).status().message(), HasSubstr("not its certificate's"));
  bad.private_key = pair_.certificate;
  EXPECT_THAT(CheckTlsMaterial(bad).status().message(), HasSubstr("no private key"));
  bad = material;
  bad.certificates.resize(bad.certificates.size() / 2);
  EXPECT_THAT(CheckTlsMaterial(bad).status().message(), HasSubstr("no certificates"));
  bad = material;
  bad.certificates += "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n";
  EXPECT_THAT(CheckTlsMaterial(bad).status().message(), HasSubstr("no certificates"));
  bad = material;
  bad.client_ca = "nobody";
  EXPECT_THAT(CheckTlsMaterial(bad).status().message(), HasSubstr("the clients' CA"));
}

TEST_F(CredentialsTest, TheSigningKeyIsMadeOnceAndForItsOwnerOnly) {
  SecurityConfig config;
  std::string first = (*OpenSigningKey(config, dir_.path()))->public_key();
  struct stat info = {};
  ASSERT_EQ(stat((dir_.path() + "/signing.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ((*OpenSigningKey(config, dir_.path()))->public_key(), first);
  config.signing_key = dir_.path() + "/signing.kye";
  absl::Status absent = OpenSigningKey(config, dir_.path()).status();
  EXPECT_TRUE(absl::IsNotFound(absent)) << absent;
  EXPECT_THAT(absent.message(), HasSubstr("signing.kye"));
}

TEST(HttpGuard, TakesTheTokenAsBearerOrPassword) {
  Digest digest = Sha256("secret");
  std::string hash(digest.view());
  EXPECT_TRUE(ShowsToken("Bearer secret", hash));
  EXPECT_TRUE(ShowsToken("Basic " + absl::Base64Escape("anybody:secret"), hash));
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string("Bearer secre"),
        std::string("Digest secret"), "Basic " + absl::Base64Escape("secret"),
        "Basic " + absl::Base64Escape("secret:other"), std::string("Basic !")}) {
    EXPECT_FALSE(ShowsToken(wrong, hash)) << wrong;
  }
}

TEST(HttpGuard, LeavesProbesFree) {
  auto page = [](const HttpRequest&) { return HttpReply{.body = "seen"}; };
  HttpRoutes routes;
  routes["/metrics"].get = page;
  routes["/healthz"].get = page;
  routes["/api/v1/x"] = {.get = page, .post = page};
  HttpRoutes open = RequireToken(routes, "");
  EXPECT_EQ(open["/metrics"].get({}).code, 200);
  HttpRoutes guarded = RequireToken(routes, std::string(Sha256("secret").view()));
  EXPECT_EQ(guarded["/healthz"].get({}).code, 200);
  EXPECT_EQ(guarded["/metrics"].get({}).code, 401);
  EXPECT_EQ(guarded["/api/v1/x"].post({}).code, 401);
  EXPECT_FALSE(guarded["/metrics"].post) << "a method that was not there stays away";
  HttpRequest request;
  request.headers = {{"authorization", "Bearer secret"}};
  EXPECT_EQ(guarded["/metrics"].get(request).body, "seen");
}

}  // namespace
}  // namespace kiln::server
