#include "client/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "client/remote.h"
#include "tests/temp_dir.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kVariables[] = {"KILN_TLS_CA", "KILN_TLS_CERT", "KILN_TLS_KEY", "KILN_TOKEN",
                                      "KILN_TOKEN_FILE"};

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() {
    for (const char* name : kVariables) unsetenv(name);
  }
  ~CredentialsTest() override {
    for (const char* name : kVariables) unsetenv(name);
  }
  std::string File(const std::string& name, const std::string& text) {
    std::string path = dir_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::string ErrorOf(const ClientOptions& options) {
    absl::Status status = Credentials::Load(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  std::string Ca() { return File("ca.pem", "-----BEGIN CERTIFICATE-----\n"); }

  TempDir dir_;
};

TEST_F(CredentialsTest, ASchemeSaysWhetherItIsTls) {
  auto plain = *Credentials::Load({});
  EXPECT_FALSE(plain->UsesTls("host:1"));
  EXPECT_FALSE(plain->UsesTls("http://host:1"));
  EXPECT_TRUE(plain->UsesTls("https://host:1"));
  ClientOptions options;
  options.tls_ca = Ca();
  auto with_ca = *Credentials::Load(options);
  EXPECT_TRUE(with_ca->UsesTls("host:1"));
  EXPECT_FALSE(with_ca->UsesTls("http://host:1"));
  setenv("KILN_TLS_CA", options.tls_ca.c_str(), 1);
  EXPECT_TRUE((*Credentials::Load({}))->UsesTls("host:1"));
  EXPECT_EQ(*GrpcTarget("https://kiln.example:443"), "dns:///kiln.example:443");
  EXPECT_EQ(*GrpcTarget("http://127.0.0.1:80/"), "ipv4:127.0.0.1:80");
  EXPECT_TRUE(absl::IsInvalidArgument(GrpcTarget("https://kiln.example").status()));
}

TEST_F(CredentialsTest, ATokenLeavesThisMachineInTheClearOnlyWhereThatIsSaid) {
  ClientOptions options;
  options.token = "secret";
  auto credentials = *Credentials::Load(options);
  for (const char* fine : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/kiln.sock",
                           "https://host:1", "http://host:1"}) {
    EXPECT_TRUE(credentials->CheckServer(fine).ok()) << fine;
  }
  absl::Status refused = credentials->CheckServer("host:1");
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("https://host:1"));
  EXPECT_TRUE((*Credentials::Load({}))->CheckServer("host:1").ok()) << "there is no token";
  options.server = "host:1";
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create(options).status()));
}

TEST_F(CredentialsTest, BadOptionsAreNamed) {
  ClientOptions options;
  options.tls_cert = Ca();
  EXPECT_THAT(ErrorOf(options), HasSubstr("tls_cert and tls_key"));
  options.tls_key = options.tls_cert;
  EXPECT_THAT(ErrorOf(options), HasSubstr("tls_key: "));
  options = ClientOptions();
  options.tls_ca = dir_.path() + "/absent";
  EXPECT_THAT(ErrorOf(options), HasSubstr("tls_ca: cannot read '" + options.tls_ca));
  options = ClientOptions();
  options.token = "two words";
  EXPECT_THAT(ErrorOf(options), HasSubstr("is no token"));
  options.token = "a";
  options.token_file = "b";
  EXPECT_THAT(ErrorOf(options), HasSubstr("token and token_file"));
  options = ClientOptions();
  options.token_file = File("empty", " \n");
  EXPECT_THAT(ErrorOf(options), HasSubstr("is no token"));
  setenv("KILN_TOKEN", "line\nbreak", 1);
  EXPECT_THAT(ErrorOf({}), HasSubstr("is no token"));
}

}  // namespace
}  // namespace kiln::testing
