// The Compile call.
#pragma once

#include "kiln/v1/compile_service.grpc.pb.h"
#include "server/service.h"

namespace kiln::server {

// Lives until the call is over and nobody calls it back any more. Takes and gives messages as they
// travel: a request is parsed only once its caller is known, and an artifact goes to any number of
// waiters without being copied.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartCompile(const ServiceContext& service,
                                                         grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request);

}  // namespace kiln::server
