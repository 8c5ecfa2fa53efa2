// The Compile call.
#pragma once

#include "kiln/v1/compile_service.grpc.pb.h"
#include "server/service.h"

namespace kiln::server {

// Lives until the call is over and nobody calls it back any more.
grpc::ServerWriteReactor<v1::CompileEvent>* StartCompile(const ServiceContext& service,
                                                         grpc::CallbackServerContext* context,
                                                         const v1::CompileRequest* request);

}  // namespace kiln::server
