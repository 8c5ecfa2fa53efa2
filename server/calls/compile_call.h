// The Compile call.
#pragma once

#include "server/calls/service_context.h"
#include "server/rpc/reactor.h"

namespace kiln::server {

// A call lives until it is over and nobody calls it back any more. A request is parsed only once
// its caller is known, and an artifact goes to any number of waiters without being copied.
Method CompileMethod(const ServiceContext& service);

}  // namespace kiln::server
