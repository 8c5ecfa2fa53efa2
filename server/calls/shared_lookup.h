// Asks the tier that servers share, on threads that may wait for it.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "cache/store.h"
#include "proto/base/trace_context.h"
#include "server/calls/service_context.h"

namespace kiln::server {

// For what `service.local` lacks. Calls `done` once: on a thread of `service.network`, or before it
// returns where no tier is shared or too many calls wait for it already, which is a miss.
void LookUpShared(const ServiceContext& service, const TraceContext& trace, const cache::Key& key,
                  const std::function<void(const absl::StatusOr<cache::Found>&)>& done);

}  // namespace kiln::server
