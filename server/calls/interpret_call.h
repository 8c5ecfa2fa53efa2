// The Interpret call.
#pragma once

#include "server/calls/service_context.h"
#include "server/rpc/reactor.h"

namespace kiln::server {

// A call lives until it is over and no worker sends it events any more.
Method InterpretMethod(const ServiceContext& service);

}  // namespace kiln::server
