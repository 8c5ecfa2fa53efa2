#include "server/address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kiln::server {

std::string Address::ToString() const {
  if (IsNone()) return "none";
  bool is_v6 = absl::StrContains(host, ':');
  return is_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool Address::IsLoopback() const {
  return IsNone() || host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  if (text == "none") return Address();
  size_t colon = text.rfind(':');
  Address address;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port) || address.port < 0 ||
      address.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no address; expected HOST:PORT, as in 127.0.0.1:7461"));
  }
  absl::string_view host = text.substr(0, colon);
  bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of("[]") != absl::string_view::npos ||
      (!bracketed && absl::StrContains(host, ':'))) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no address; expected HOST:PORT, IPv6 in brackets"));
  }
  address.host = std::string(host);
  return address;
}

}  // namespace kiln::server
