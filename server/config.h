// What kilnd was told: flags over environment over file over defaults.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/address.h"
#include "server/remote_settings.h"
#include "server/security/security_config.h"

namespace kiln::server {

// What a setting was given, and where: "--listen", "KILND_LISTEN", "/etc/kiln/kilnd.conf line 3".
struct SettingOrigin {
  std::string value;
  std::string source;
};

struct Config {
  Address listen{"127.0.0.1", 7461};
  // Of the Unix socket for this user's programs; or "auto", where they look for it, and "none".
  std::string socket = "auto";
  absl::Duration idle_timeout = absl::InfiniteDuration();
  Address metrics_listen{"127.0.0.1", 7462};
  std::string data_dir;  // never empty
  int workers = 1;       // default: one a processor
  int64_t worker_memory_bytes = int64_t{4} << 30;
  absl::Duration worker_timeout = absl::Seconds(120);
  int worker_standby = 64;
  int64_t cache_max_size_bytes = int64_t{20} << 30;
  absl::Duration cache_max_age = absl::InfiniteDuration();  // since the last use
  int64_t cache_memory_size_bytes = int64_t{512} << 20;
  int max_queued_jobs = 256;
  int max_connections = 0;              // 0: by the limit of descriptors
  int max_connections_per_address = 0;  // 0: half of them
  absl::Duration max_connection_idle = absl::Minutes(15);
  absl::Duration max_connection_age = absl::Hours(1);
  absl::Duration request_timeout = absl::Minutes(1);
  std::vector<std::string> metrics_hosts;
  bool sandbox_required = false;
  std::string ptxas = "none";
  std::string nvdisasm = "auto";  // used where there is a ptxas
  bool assemble_ahead = true;     // the same
  int64_t max_request_bytes = int64_t{512} << 20;
  int tenant_max_queued = 0;   // 0: no limit of its own
  int tenant_max_running = 0;  // 0: as BrokerOptions
  std::map<std::string, int> tenant_weights;
  SecurityConfig security;
  RemoteSettings remote;
  std::string otlp_endpoint;  // of ParseOtlpEndpoint; empty: no spans are exported
  double trace_sample_ratio = 1;
  bool log_json = false;
  std::map<std::string, SettingOrigin> origins;  // of the settings that were given, by their key
};

// Value of an environment variable, if it is set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();

// `arguments` are those after the program's name: "--key=value" or "--key value". The environment
// has KILND_LISTEN for --listen; variables with that prefix that are no key of ours are left alone
// (Kubernetes makes such). A file has lines "key = value", '#' begins a comment.
// INVALID_ARGUMENT, naming where the value came from, for an unknown key or a bad value.
absl::StatusOr<Config> LoadConfig(absl::Span<const std::string> arguments,
                                  const Environment& environment);

// "1234", "64KiB", "20GiB", "1GB". INVALID_ARGUMENT otherwise, and for 0 or an overflow.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// What is in force, as a configuration file: a line a setting with where it comes from, those at
// their defaults commented out, passwords left out.
std::string DescribeConfig(const Config& config);

// The text of --help.
std::string ConfigHelp();

}  // namespace kiln::server
