// gRPC's server reflection service (grpc.reflection.v1 and v1alpha): what grpcurl and the like ask
// to learn the services and their messages.
// https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
#pragma once

#include <string>
#include <vector>

#include "server/rpc/reactor.h"

namespace kiln::server {

// `services`: full names to list, beside reflection's own. Descriptors are those of every message
// linked into the process.
void AddReflection(std::vector<std::string> services, Methods& methods);

}  // namespace kiln::server
