#include "server/security/tenant_names.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln::server {
namespace {

// Beyond it, those of new owners are not told apart.
constexpr size_t kMaxOwners = 65536;

}  // namespace

std::string TenantNames::TenantOf(absl::string_view owner, absl::string_view name, absl::Time now) {
  const auto is_old = [now](const Name& known) { return now - known.last > kTenantNameKept; };
  absl::MutexLock lock(&mu_);
  if (owners_.size() >= kMaxOwners && !owners_.contains(owner)) {
    absl::erase_if(owners_, [&](const auto& entry) {
      return std::all_of(entry.second.begin(), entry.second.end(), is_old);
    });
    if (owners_.size() >= kMaxOwners) return kOtherTenants;
  }
  std::vector<Name>& names = owners_[owner];
  auto known = std::find_if(names.begin(), names.end(),
                            [name](const Name& each) { return each.name == name; });
  if (known == names.end()) {
    std::erase_if(names, is_old);
    if (names.size() >= max_names_) return kOtherTenants;
    known = names.insert(names.end(), Name{std::string(name), now});
  }
  known->last = now;
  return std::string(name);
}

std::string AddressOfPeer(absl::string_view peer) {
  const absl::string_view address = peer.substr(0, peer.rfind(':'));
  absl::string_view host = address;
  if (!absl::ConsumePrefix(&host, "ipv6:%5B") || !absl::ConsumeSuffix(&host, "%5D")) {
    return std::string(address);
  }
  in6_addr network = {};
  if (inet_pton(AF_INET6, std::string(host).c_str(), &network) != 1) return std::string(address);
  std::fill(std::begin(network.s6_addr) + 8, std::end(network.s6_addr), uint8_t{0});
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &network, text, sizeof(text));
  return absl::StrCat("ipv6:", text);
}

}  // namespace kiln::server
