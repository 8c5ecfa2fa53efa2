#include "cache/remote/endpoint.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr int kDefaultPort = 6379;
constexpr int kMaxDatabase = 65535;
constexpr size_t kMaxSeeds = 64;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = absl::ascii_tolower(static_cast<unsigned char>(c));
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

absl::StatusOr<std::string> PercentDecode(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return absl::InvalidArgumentError("its user or password has a '%' without two hex digits");
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

absl::Status ParseCredentials(absl::string_view text, RemoteUrl& url) {
  const size_t colon = text.find(':');
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError("what stands before its '@' is not user:password");
  }
  KILN_ASSIGN_OR_RETURN(url.user, PercentDecode(text.substr(0, colon)));
  KILN_ASSIGN_OR_RETURN(url.password, PercentDecode(text.substr(colon + 1)));
  if (url.password.empty()) return absl::InvalidArgumentError("its password is empty");
  return absl::OkStatus();
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  Endpoint endpoint{"", kDefaultPort};
  absl::string_view port;
  if (absl::ConsumePrefix(&text, "[")) {
    const size_t end = text.find(']');
    if (end == absl::string_view::npos) {
      return absl::InvalidArgumentError("it has a '[' without a ']'");
    }
    endpoint.host = std::string(text.substr(0, end));
    port = text.substr(end + 1);
  } else {
    const size_t colon = text.find(':');
    endpoint.host = std::string(text.substr(0, colon));
    if (colon != absl::string_view::npos) port = text.substr(colon);
  }
  const bool has_port = !port.empty();
  if (has_port && (!absl::ConsumePrefix(&port, ":") || !absl::SimpleAtoi(port, &endpoint.port) ||
                   endpoint.port < 1 || endpoint.port > 65535)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' has no port from 1 to 65535"));
  }
  for (char c : endpoint.host) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        absl::string_view("-._:%").find(c) == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("'", endpoint.host, "' is no host"));
    }
  }
  if (endpoint.host.empty()) return absl::InvalidArgumentError("it names no host");
  return endpoint;
}

absl::Status ParseAfterScheme(absl::string_view text, RemoteUrl& url) {
  if (const size_t at = text.rfind('@'); at != absl::string_view::npos) {
    KILN_RETURN_IF_ERROR(ParseCredentials(text.substr(0, at), url));
    text.remove_prefix(at + 1);
  }
  if (const size_t slash = text.find('/'); slash != absl::string_view::npos) {
    const absl::string_view database = text.substr(slash + 1);
    if (!database.empty() && (!absl::SimpleAtoi(database, &url.database) || url.database < 0 ||
                              url.database > kMaxDatabase)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", database, "' is no database's number, as in /0"));
    }
    text = text.substr(0, slash);
  }
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    KILN_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(part));
    url.seeds.push_back(std::move(endpoint));
  }
  if (url.seeds.size() > kMaxSeeds) {
    return absl::InvalidArgumentError(absl::StrCat("it names more than ", kMaxSeeds, " hosts"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Endpoint::ToString() const {
  const bool bracket = host.find(':') != std::string::npos;
  return bracket ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<RemoteUrl> ParseRemoteUrl(absl::string_view text) {
  RemoteUrl url;
  absl::Status status;
  if (absl::ConsumePrefix(&text, "rediss://")) {
    url.tls = true;
    status = ParseAfterScheme(text, url);
  } else if (absl::ConsumePrefix(&text, "redis://")) {
    status = ParseAfterScheme(text, url);
  } else {
    status = absl::InvalidArgumentError("it begins with neither redis:// nor rediss://");
  }
  if (status.ok()) return url;
  return absl::InvalidArgumentError(
      absl::StrCat("not an address of a shared tier, as in redis://HOST:6379: ", status.message()));
}

}  // namespace kiln::cache
