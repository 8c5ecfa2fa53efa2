// The names by which callers call themselves. A tenant's name is a share of the server: whoever
// could use any number of names would have any number of shares.
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kiln::server {

inline constexpr int kDefaultTenantNames = 8;
// The tenant that calls beyond that belong to, whoever they come from.
inline constexpr char kOtherTenants[] = "other";
// How long a name counts after its last call.
inline constexpr absl::Duration kTenantNameKept = absl::Minutes(10);

// Thread-safe.
class TenantNames {
 public:
  explicit TenantNames(int max_names) : max_names_(static_cast<size_t>(max_names)) {}

  // The tenant of a call that names itself `name`: that, or kOtherTenants where `owner` went by
  // `max_names` others lately.
  std::string TenantOf(absl::string_view owner, absl::string_view name, absl::Time now);

 private:
  struct Name {
    std::string name;
    absl::Time last;
  };

  const size_t max_names_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::vector<Name>> owners_ ABSL_GUARDED_BY(mu_);
};

// Whom an address belongs to: `peer`, as gRPC names it ("ipv4:10.0.0.1:4711"), without its port; of
// IPv6 the first half, as the rest is one holder's to choose.
std::string AddressOfPeer(absl::string_view peer);

}  // namespace kiln::server
