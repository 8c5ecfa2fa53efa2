#include "server/remote_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/memory_store.h"
#include "server/config.h"
#include "server/observe/metrics.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kKey[] = "ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

absl::StatusOr<Config> Load(const std::vector<std::string>& arguments) {
  return LoadConfig(arguments, [](const std::string&) { return std::nullopt; });
}

TEST(RemoteSettings, ThereIsNoTierUnlessOneIsNamed) {
  Config config = Load({}).value();
  EXPECT_FALSE(config.remote.url.has_value());
  Metrics metrics("1", "b");
  const auto disk = cache::MakeMemoryStore(1);
  EXPECT_EQ(OpenRemoteTier(config.remote, nullptr, *disk, metrics).value(), nullptr);
}

TEST(RemoteSettings, DefaultsAreTheDocumentedOnes) {
  Config config = Load({"--remote-cache=redis://h"}).value();
  ASSERT_TRUE(config.remote.url.has_value());
  EXPECT_EQ(config.remote.url->seeds[0].ToString(), "h:6379");
  EXPECT_EQ(config.remote.connect_timeout, absl::Milliseconds(50));
  EXPECT_EQ(config.remote.read_timeout, absl::Milliseconds(100));
  EXPECT_EQ(config.remote.expiry, absl::InfiniteDuration());
  EXPECT_EQ(config.remote.max_entry_bytes, 256 << 20);
}

TEST(RemoteSettings, EveryOneIsRead) {
  Config config =
      Load({"--remote-cache=rediss://u:p@a:1,b:2/3", "--remote-ca=/ca.pem",
            std::string("--remote-trusted-keys=") + kKey + ", " + kKey,
            "--remote-connect-timeout=1s", "--remote-read-timeout=2s", "--remote-write-timeout=3s",
            "--remote-expiry=720h", "--remote-max-entry-size=1MiB", "--remote-queue-size=2MiB"})
          .value();
  const RemoteSettings& remote = config.remote;
  EXPECT_TRUE(remote.url->tls);
  EXPECT_EQ(remote.url->database, 3);
  EXPECT_EQ(remote.ca_file, "/ca.pem");
  EXPECT_THAT(remote.trusted_keys, SizeIs(2));
  EXPECT_THAT(remote.trusted_keys[0], SizeIs(32));
  EXPECT_EQ(remote.connect_timeout, absl::Seconds(1));
  EXPECT_EQ(remote.read_timeout, absl::Seconds(2));
  EXPECT_EQ(remote.write_timeout, absl::Seconds(3));
  EXPECT_EQ(remote.expiry, absl::Hours(720));
  EXPECT_EQ(remote.max_entry_bytes, 1 << 20);
  EXPECT_EQ(remote.max_queued_bytes, 2 << 20);
  EXPECT_EQ(Load({"--remote-expiry=720h", "--remote-expiry=never"})->remote.expiry,
            absl::InfiniteDuration());
}

TEST(RemoteSettings, BadValuesAreRefusedByName) {
  for (const char* bad :
       {"--remote-cache=", "--remote-cache=h:1", "--remote-cache=redis://", "--remote-ca=",
        "--remote-trusted-keys=", "--remote-trusted-keys=abc", "--remote-trusted-keys=ed25519:AAAA",
        "--remote-connect-timeout=0s", "--remote-read-timeout=61s", "--remote-read-timeout=100",
        "--remote-write-timeout=soon", "--remote-expiry=0s", "--remote-expiry=forever",
        "--remote-max-entry-size=1", "--remote-queue-size=1KiB"}) {
    absl::Status status = Load({bad}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    const std::string name(bad, std::string(bad).find('='));
    EXPECT_THAT(std::string(status.message()), HasSubstr(name)) << bad;
  }
}

TEST(RemoteSettings, MetricsShowTheTier) {
  Metrics metrics("1", "b");
  metrics.RemoteDone("get", true, absl::Milliseconds(1));
  metrics.RemoteDone("get", false, absl::Milliseconds(100));
  metrics.RemoteWritten(cache::WriteResult::kDropped);
  EXPECT_THAT(metrics.Render({}), ::testing::Not(HasSubstr("kiln_remote_nodes{")));
  GaugeValues gauges;
  gauges.remote = cache::RemoteCounts{{3, 1, 2}, 5, 2, 600};
  const std::string text = metrics.Render(gauges);
  for (const char* line :
       {"kiln_remote_request_duration_seconds_count{operation=\"get\",result=\"error\"} 1\n",
        "kiln_remote_writes_total{result=\"dropped\"} 1\n",
        "kiln_remote_nodes{breaker=\"closed\"} 3\n", "kiln_remote_nodes{breaker=\"open\"} 2\n",
        "kiln_remote_nodes{breaker=\"half_open\"} 1\n", "kiln_remote_queued_entries 5\n",
        "kiln_remote_deferred_entries 2\n", "kiln_remote_queued_bytes 600\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace kiln::server
