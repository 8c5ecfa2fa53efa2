// CompileService's methods: adapters only. Each call parses, hands its work to an executor or the
// broker, and answers when that calls back; nothing here compiles or waits.
#pragma once

#include "server/calls/service_context.h"
#include "server/rpc/reactor.h"

namespace kiln::server {

// `context` and what it refers to must outlive the calls of these methods.
void AddCompileService(const ServiceContext* context, Methods& methods);

}  // namespace kiln::server
