#include "server/remote_settings.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "server/observe/metrics.h"

namespace kiln::server {

absl::Status SetRemoteUrl(absl::string_view value, RemoteSettings& settings) {
  KILN_ASSIGN_OR_RETURN(settings.url, cache::ParseRemoteUrl(value));
  return absl::OkStatus();
}

absl::Status SetRemoteTrustedKeys(absl::string_view value, RemoteSettings& settings) {
  settings.trusted_keys.clear();
  for (absl::string_view text : absl::StrSplit(value, ',', absl::SkipWhitespace())) {
    KILN_ASSIGN_OR_RETURN(std::string key, ParsePublicKey(absl::StripAsciiWhitespace(text)));
    settings.trusted_keys.push_back(std::move(key));
  }
  if (settings.trusted_keys.empty()) return absl::InvalidArgumentError("it names no public key");
  return absl::OkStatus();
}

absl::Status SetRemoteExpiry(absl::string_view value, RemoteSettings& settings) {
  if (value == "never") {
    settings.expiry = absl::InfiniteDuration();
    return absl::OkStatus();
  }
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) || duration < absl::Seconds(1) ||
      duration > absl::Hours(24 * 3650)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value, "' is neither 'never' nor a duration from 1s to 87600h"));
  }
  settings.expiry = duration;
  return absl::OkStatus();
}

absl::Status SetRemoteTimeout(absl::string_view value, absl::Duration& out) {
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) || duration < absl::Milliseconds(1) ||
      duration > absl::Seconds(60)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value, "' is not a duration from 1ms to 60s, as in 50ms"));
  }
  out = duration;
  return absl::OkStatus();
}

absl::Status CheckRemoteSettings(const RemoteSettings& settings) {
  if (!settings.url) return absl::OkStatus();
  return Annotate(cache::CheckRemoteTls(*settings.url, settings.ca_file), "--remote-ca");
}

absl::StatusOr<std::unique_ptr<cache::RemoteTier>> OpenRemoteTier(const RemoteSettings& settings,
                                                                  const SigningKey* key,
                                                                  cache::Store& disk,
                                                                  Metrics& metrics) {
  if (!settings.url) return nullptr;
  cache::RemoteTierOptions options;
  options.url = *settings.url;
  options.ca_file = settings.ca_file;
  options.connect_timeout = settings.connect_timeout;
  options.read_timeout = settings.read_timeout;
  options.write_timeout = settings.write_timeout;
  options.max_entry_bytes = settings.max_entry_bytes;
  options.expiry = settings.expiry;
  options.queue.max_bytes = settings.max_queued_bytes;
  options.read_back = [&disk](const cache::Key& key) -> absl::StatusOr<cache::EntryPtr> {
    KILN_ASSIGN_OR_RETURN(cache::Found found, disk.Get(key));
    return found.entry;
  };
  options.signing_key = key;
  options.trusted_keys = settings.trusted_keys;
  options.observer.done = [&metrics](absl::string_view operation, bool ok,
                                     absl::Duration duration) {
    metrics.RemoteDone(operation, ok, duration);
  };
  options.observer.written = [&metrics](cache::WriteResult result) {
    metrics.RemoteWritten(result);
  };
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<cache::RemoteTier> tier, cache::OpenRemoteTier(options));
  Log(LogLevel::kInfo, "sharing a cache tier",
      {{"server", settings.url->seeds.front().ToString()},
       {"tls", settings.url->tls ? "yes" : "no"},
       {"signed_by", FormatPublicKey(key->public_key())},
       {"trusted_keys", absl::StrCat(settings.trusted_keys.size() + 1)}});
  return tier;
}

}  // namespace kiln::server
