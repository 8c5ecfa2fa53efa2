#include "server/calls/shared_lookup.h"

#include "server/observe/tracing.h"

namespace kiln::server {

void LookUpShared(const ServiceContext& service, const TraceContext& trace, const cache::Key& key,
                  const std::function<void(const absl::StatusOr<cache::Found>&)>& done) {
  if (service.shared == nullptr) return done(absl::NotFoundError("in no tier"));
  absl::Status queued = service.network.Run(
      [shared = service.shared, trace, key, done] { done(TracedGet(trace, *shared, key)); });
  if (!queued.ok()) done(queued);
}

}  // namespace kiln::server
