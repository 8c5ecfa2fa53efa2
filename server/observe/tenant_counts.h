// How many jobs tenants have.
#pragma once

#include <string>

namespace kiln::server {

// Jobs of one tenant, at one moment.
struct TenantCounts {
  std::string tenant;
  int queued = 0;
  int running = 0;
};

}  // namespace kiln::server
