// What kilnd was told: flags over environment over file over defaults.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/address.h"

namespace kiln::server {

struct Config {
  Address listen{"127.0.0.1", 7461};
  Address metrics_listen{"127.0.0.1", 7462};
  std::string data_dir;  // never empty
  int workers = 1;       // default: one a processor
  int64_t worker_memory_bytes = int64_t{4} << 30;
  absl::Duration worker_timeout = absl::Seconds(120);
  int64_t cache_max_size_bytes = int64_t{20} << 30;
  int64_t cache_memory_size_bytes = int64_t{512} << 20;
  int max_queued_jobs = 256;
  bool log_json = false;
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

// The text of --help.
std::string ConfigHelp();

}  // namespace kiln::server
