// What kilnd is told about the shared tier, and the tier that comes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache/remote/endpoint.h"
#include "cache/remote/remote_tier.h"
#include "proto/base/signing.h"

namespace kiln::server {

class Metrics;

struct RemoteSettings {
  std::optional<cache::RemoteUrl> url;  // nothing: there is no such tier
  std::string ca_file;
  std::vector<std::string> trusted_keys;  // of 32 bytes; the server's own always is one
  absl::Duration connect_timeout = absl::Milliseconds(50);
  absl::Duration read_timeout = absl::Milliseconds(100);
  absl::Duration write_timeout = absl::Seconds(2);
  absl::Duration lease_wait = absl::Minutes(1);
  absl::Duration expiry = absl::InfiniteDuration();
  int64_t max_entry_bytes = int64_t{256} << 20;  // what clients take of an artifact
  int64_t max_queued_bytes = int64_t{64} << 20;
};

// Values of settings; INVALID_ARGUMENT says what is expected instead.
absl::Status SetRemoteUrl(absl::string_view value, RemoteSettings& settings);
absl::Status SetRemoteTrustedKeys(absl::string_view value, RemoteSettings& settings);
// "never", or from a second to ten years.
absl::Status SetRemoteExpiry(absl::string_view value, RemoteSettings& settings);
// From 1ms to 60s.
absl::Status SetRemoteTimeout(absl::string_view value, absl::Duration& out);

// What can be seen without a connection: INVALID_ARGUMENT where remote-ca holds no certificates.
absl::Status CheckRemoteSettings(const RemoteSettings& settings);

// Null where none is configured. `disk` has the entries that had no room while they waited to be
// written. `key`, `disk` and `metrics` must outlive the result.
absl::StatusOr<std::unique_ptr<cache::RemoteTier>> OpenRemoteTier(const RemoteSettings& settings,
                                                                  const SigningKey* key,
                                                                  cache::Store& disk,
                                                                  Metrics& metrics);

}  // namespace kiln::server
