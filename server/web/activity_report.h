// The activity of the whole server, for the GetActivity call and the web page.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cache/store.h"
#include "server/jobs/broker.h"
#include "server/observe/activity.h"
#include "server/workers/worker_pool.h"

namespace kiln {
namespace v1 {
class GetActivityRequest;
}

namespace server {

// Thread-safe. Everything it refers to must outlive it.
struct ActivitySources {
  ActivityLog& log;
  Broker& broker;
  WorkerPool& workers;
  cache::Store& store;
  std::string version;
  std::string compiler_build;
  std::function<bool()> draining;
};

// INVALID_ARGUMENT for a negative number; numbers over the limits of activity.h take those.
absl::Status ReportActivity(const ActivitySources& sources, const v1::GetActivityRequest& request,
                            v1::Activity& out);

}  // namespace server
}  // namespace kiln
