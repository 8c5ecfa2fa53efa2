#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/temp_dir.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

Environment Variables(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  };
}

std::string ErrorOf(const std::vector<std::string>& arguments,
                    std::map<std::string, std::string> variables = {}) {
  absl::Status status = LoadConfig(arguments, Variables(std::move(variables))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(Config, DefaultsListenOnLoopback) {
  Config config = LoadConfig({}, Variables({{"HOME", "/home/me"}})).value();
  EXPECT_EQ(config.listen.ToString(), "127.0.0.1:7461");
  EXPECT_EQ(config.metrics_listen.ToString(), "127.0.0.1:7462");
  EXPECT_TRUE(config.listen.IsLoopback());
  EXPECT_EQ(config.data_dir, "/home/me/.cache/kiln");
  EXPECT_GE(config.workers, 1);
  EXPECT_EQ(config.worker_timeout, absl::Seconds(120));
  EXPECT_EQ(config.cache_max_size_bytes, int64_t{20} << 30);
}

TEST(Config, ConnectionsRequestsAndHostsHaveLimits) {
  Config config = LoadConfig({"--max-connections=7", "--max-connections-per-address=3",
                              "--max-connection-idle=2m", "--max-connection-age=10m",
                              "--request-timeout=5s", "--sandbox=require", "--assemble-ahead=off",
                              "--metrics-hosts=A.example, b.example"},
                             Variables({}))
                      .value();
  EXPECT_EQ(config.max_connections, 7);
  EXPECT_EQ(config.max_connections_per_address, 3);
  EXPECT_EQ(config.max_connection_idle, absl::Minutes(2));
  EXPECT_EQ(config.max_connection_age, absl::Minutes(10));
  EXPECT_EQ(config.request_timeout, absl::Seconds(5));
  EXPECT_TRUE(config.sandbox_required);
  EXPECT_FALSE(config.assemble_ahead);
  EXPECT_EQ(config.metrics_hosts, (std::vector<std::string>{"a.example", "b.example"}));
  EXPECT_THAT(ErrorOf({"--max-connections=0"}), HasSubstr("--max-connections"));
  EXPECT_THAT(ErrorOf({"--metrics-hosts=a:80"}), HasSubstr("'a:80' is no host's name"));
  EXPECT_THAT(ErrorOf({"--metrics-hosts=a,"}), HasSubstr("--metrics-hosts"));
  EXPECT_THAT(ErrorOf({"--sandbox=no"}), HasSubstr("'no' is neither 'require' nor 'warn'"));
  EXPECT_THAT(ErrorOf({"--assemble-ahead=no"}), HasSubstr("'no' is neither 'on' nor 'off'"));
}

TEST(Config, DataDirectoryFollowsTheEnvironment) {
  EXPECT_EQ(
      LoadConfig({}, Variables({{"KILN_DATA_DIR", "/d"}, {"XDG_CACHE_HOME", "/x"}}))->data_dir,
      "/d");
  EXPECT_EQ(LoadConfig({}, Variables({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}))->data_dir,
            "/x/kiln");
}

TEST(Config, AFlagGoesBeforeAVariableBeforeTheFile) {
  TempDir dir;
  std::string file = dir.path() + "/kilnd.conf";
  std::ofstream(file) << "# a comment\n\nworkers = 3\nlisten=127.0.0.1:1 # here\n"
                      << "metrics-listen = 127.0.0.1:2\n";
  Config config =
      LoadConfig(
          {"--config", file, "--listen=127.0.0.1:5"},
          Variables({{"KILND_METRICS_LISTEN", "127.0.0.1:4"}, {"KILND_LISTEN", "127.0.0.1:3"}}))
          .value();
  EXPECT_EQ(config.workers, 3);
  EXPECT_EQ(config.metrics_listen.port, 4);
  EXPECT_EQ(config.listen.port, 5);
}

TEST(Config, ErrorsNameTheKeyAndWhereItIs) {
  EXPECT_THAT(ErrorOf({"--wrokers=2"}), HasSubstr("--wrokers"));
  EXPECT_THAT(ErrorOf({"--workers"}), HasSubstr("--workers needs a value"));
  EXPECT_THAT(ErrorOf({"--workers=0"}), HasSubstr("--workers: '0'"));
  EXPECT_THAT(ErrorOf({"serve"}), HasSubstr("'serve'"));
  EXPECT_THAT(ErrorOf({}, {{"KILND_WORKER_TIMEOUT", "soon"}}),
              HasSubstr("KILND_WORKER_TIMEOUT: 'soon'"));
  EXPECT_THAT(ErrorOf({"--config=/nonexistent.conf"}), HasSubstr("/nonexistent.conf"));
  EXPECT_THAT(ErrorOf({"--remote-cache=h:1"}), HasSubstr("--remote-cache: not an address"));
  TempDir dir;
  std::string file = dir.path() + "/kilnd.conf";
  std::ofstream(file) << "workers = 2\nworker = 2\n";
  EXPECT_THAT(ErrorOf({"--config", file}), HasSubstr("line 2: unknown key 'worker'"));
  std::ofstream(file) << "workers 2\n";
  EXPECT_THAT(ErrorOf({"--config", file}), HasSubstr("line 1: expected KEY = VALUE"));
}

TEST(Config, TracesGoToAnHttpAddressAtARatio) {
  Config config =
      LoadConfig({"--otlp-endpoint=http://h:4318", "--trace-sample-ratio=0.25"}, Variables({}))
          .value();
  EXPECT_EQ(config.otlp_endpoint, "http://h:4318/v1/traces");
  EXPECT_EQ(config.trace_sample_ratio, 0.25);
  for (const char* bad : {"h:4318", "ftp://h", "http://", ""}) {
    EXPECT_THAT(ErrorOf({absl::StrCat("--otlp-endpoint=", bad)}), HasSubstr("--otlp-endpoint: "));
  }
  for (const char* bad : {"-0.1", "1.1", "nan", "often", ""}) {
    EXPECT_THAT(ErrorOf({absl::StrCat("--trace-sample-ratio=", bad)}), HasSubstr("from 0 to 1"));
  }
}

TEST(Config, DescribesWhereEachValueComesFrom) {
  TempDir dir;
  std::string file = dir.path() + "/kilnd.conf";
  std::ofstream(file) << "workers = 3\n\nmax-queued-jobs = 7\n";
  std::string text = DescribeConfig(LoadConfig({"--config", file, "--log-format=json"},
                                               Variables({{"KILND_WORKERS", "4"}, {"HOME", "/h"}}))
                                        .value());
  auto line = [&text](const std::string& begin) {
    size_t at = text.find("\n" + begin) + 1;
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_THAT(line("workers = 4"), HasSubstr("# KILND_WORKERS"));
  EXPECT_THAT(line("max-queued-jobs = 7"), HasSubstr("# " + file + " line 3"));
  EXPECT_THAT(line("log-format = json"), HasSubstr("# --log-format"));
  EXPECT_THAT(line("# data-dir = /h/.cache/kiln"), HasSubstr("# default"));
  EXPECT_THAT(line("# worker-memory = 4GiB"), HasSubstr("# default"));
}

TEST(Config, VariablesThatAreNoKeysAreLeftAlone) {
  // Kubernetes sets such for a service called kilnd.
  EXPECT_TRUE(LoadConfig({}, Variables({{"KILND_SERVICE_HOST", "10.0.0.1"}})).ok());
}

TEST(Config, BoundsOfTheCacheAreCheckedAndNamed) {
  auto config = LoadConfig({"--cache-max-age=36h", "--cache-max-size", "32MiB"}, Variables({}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->cache_max_age, absl::Hours(36));
  EXPECT_EQ(config->cache_max_size_bytes, 32 << 20);
  EXPECT_EQ(LoadConfig({}, Variables({}))->cache_max_age, absl::InfiniteDuration());
  for (const char* bad : {"", "7", "-1h", "999ms", "30 days", "0s"}) {
    auto refused = LoadConfig({"--cache-max-age", bad}, Variables({}));
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--cache-max-age"));
  }
  for (const char* bad : {"31MiB", "1MiB", "0"}) {
    EXPECT_FALSE(LoadConfig({"--cache-max-size", bad}, Variables({})).ok()) << bad;
  }
}

TEST(Config, SecuritySettingsAreCheckedAndNamed) {
  std::string hash(64, 'a');
  auto config = LoadConfig({"--tls-client-auth=optional", "--anonymous-role=read",
                            "--metrics-token-sha256=" + hash, "--access-file=/a"},
                           Variables({{"KILND_TLS_CERT", "/c"}, {"KILND_SIGNING_KEY", "/k"}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->security.client_cert_required, false);
  EXPECT_EQ(config->security.anonymous_role, Role::kRead);
  EXPECT_EQ(config->security.metrics_token_sha256, std::string(32, '\xaa'));
  EXPECT_EQ(config->security.access_file, "/a");
  EXPECT_EQ(config->security.tls_cert, "/c");
  EXPECT_EQ(config->security.signing_key, "/k");
  EXPECT_EQ(LoadConfig({}, Variables({}))->security.anonymous_role, std::nullopt);
  EXPECT_THAT(ErrorOf({"--tls-client-auth=maybe"}), HasSubstr("--tls-client-auth: 'maybe'"));
  EXPECT_THAT(ErrorOf({"--anonymous-role=root"}), HasSubstr("--anonymous-role: 'root'"));
  for (const std::string& bad :
       {std::string(), std::string("secret"), hash.substr(1), hash.substr(1) + "g"}) {
    EXPECT_THAT(ErrorOf({"--metrics-token-sha256=" + bad}), HasSubstr("--metrics-token-sha256: "));
  }
  for (const char* file : {"tls-cert", "tls-key", "tls-client-ca", "access-file", "signing-key"}) {
    EXPECT_THAT(ErrorOf({absl::StrCat("--", file, "=")}), HasSubstr("it is empty")) << file;
  }
}

TEST(Config, HelpNamesEveryFlagOfTheInterface) {
  for (const char* flag :
       {"--config", "--listen", "--metrics-listen", "--data-dir", "--remote-cache", "--workers",
        "--worker-memory", "--worker-timeout", "--cache-max-size", "--log-format"}) {
    EXPECT_THAT(ConfigHelp(), HasSubstr(flag));
  }
}

TEST(ParseBytes, TakesUnitsAndRefusesTheRest) {
  EXPECT_EQ(ParseBytes("123").value(), 123);
  EXPECT_EQ(ParseBytes("5KiB").value(), 5120);
  EXPECT_EQ(ParseBytes("20GiB").value(), int64_t{20} << 30);
  EXPECT_EQ(ParseBytes("2MB").value(), 2000000);
  for (const char* bad : {"", "0", "-1", "GiB", "1.5GiB", "1XB", "9999999999TiB"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(ParseAddress, TakesHostsAndBracketsAndRefusesTheRest) {
  EXPECT_EQ(ParseAddress("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress("[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseAddress("localhost:0")->port, 0);
  EXPECT_FALSE(ParseAddress("0.0.0.0:1")->IsLoopback());
  for (const char* bad :
       {"", "7461", ":7461", "host:", "host:70000", "host:-1", "::1:80", "[]:1"}) {
    EXPECT_FALSE(ParseAddress(bad).ok()) << bad;
  }
}

TEST(Config, TenantsHaveWeightsAndLimits) {
  Config config =
      LoadConfig({"--tenant-weight=gold=4,plain=2", "--tenant-weight", "late=3",
                  "--tenant-max-queued=10", "--tenant-max-running=2", "--max-request-bytes=64MiB"},
                 Variables({{"HOME", "/h"}}))
          .value();
  EXPECT_EQ(config.tenant_weights,
            (std::map<std::string, int>{{"gold", 4}, {"late", 3}, {"plain", 2}}));
  EXPECT_EQ(config.tenant_max_queued, 10);
  EXPECT_EQ(config.tenant_max_running, 2);
  EXPECT_EQ(config.max_request_bytes, int64_t{64} << 20);
  for (const char* bad : {"gold", "gold=0", "gold=1001", "=3", "a b=1", "gold=2,", "gold=x"}) {
    EXPECT_THAT(ErrorOf({absl::StrCat("--tenant-weight=", bad)}), HasSubstr("NAME=WEIGHT")) << bad;
  }
  EXPECT_THAT(ErrorOf({"--tenant-max-queued=0"}), HasSubstr("'0'"));
  EXPECT_THAT(ErrorOf({"--tenant-max-running=none"}), HasSubstr("none"));
  EXPECT_THAT(ErrorOf({"--max-request-bytes=1KiB"}), HasSubstr("1KiB"));
}

}  // namespace
}  // namespace kiln::server
