// The Fetch call.
#pragma once

#include "kiln/v1/compile_service.grpc.pb.h"
#include "server/service.h"

namespace kiln::server {

// Belongs to gRPC from here on; deletes itself when the call is over.
grpc::ServerWriteReactor<v1::ArtifactChunk>* StartFetch(const ServiceContext& service,
                                                        grpc::CallbackServerContext* context,
                                                        const v1::FetchRequest* request);

}  // namespace kiln::server
