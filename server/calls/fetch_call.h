// The Fetch call.
#pragma once

#include "server/rpc/reactor.h"
#include "server/service.h"

namespace kiln::server {

// An artifact goes out without being copied.
Method FetchMethod(const ServiceContext& service);

}  // namespace kiln::server
