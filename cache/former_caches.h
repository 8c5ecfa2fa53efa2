// What former builds of kilnd left: each build that a user's programs start has a cache folder of
// its own, "own-" and 16 hex digits (proto/base/own_server.h), and nobody else ever deletes one.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace kiln::cache {

struct FormerCachesLimits {
  absl::Duration max_age = absl::Hours(24 * 14);  // since it was last written to
  int most = 3;                                   // younger ones that stay, the last used first,
  absl::Duration min_age = absl::Hours(24);       // beside those that are as young as this
};

struct DeletedCaches {
  int folders = 0;
  int64_t size_bytes = 0;
};

// Deletes folders of former builds beside `data_dir`, which stays whatever it is; does nothing
// where `data_dir` has no such name itself. Only folders of this user, with a lock of Kiln's that
// no process holds. A folder is renamed before it is emptied; what a kill leaves of it goes the
// next time. What cannot be deleted stays.
DeletedCaches DeleteFormerCaches(const std::string& data_dir, absl::Time now,
                                 const FormerCachesLimits& limits = {});

}  // namespace kiln::cache
