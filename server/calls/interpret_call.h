// The Interpret call.
#pragma once

#include "server/rpc/reactor.h"
#include "server/service.h"

namespace kiln::server {

// A call lives until it is over and no worker sends it events any more.
Method InterpretMethod(const ServiceContext& service);

}  // namespace kiln::server
