// The Fetch call.
#pragma once

#include "server/calls/service_context.h"
#include "server/rpc/reactor.h"

namespace kiln::server {

// An artifact goes out without being copied.
Method FetchMethod(const ServiceContext& service);

}  // namespace kiln::server
