// The Fetch call.
#pragma once

#include "kiln/v1/compile_service.grpc.pb.h"
#include "server/service.h"

namespace kiln::server {

// Belongs to gRPC from here on; deletes itself when the call is over.
// Takes and gives messages as they travel, so that an artifact goes out without being copied.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(const ServiceContext& service,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request);

}  // namespace kiln::server
