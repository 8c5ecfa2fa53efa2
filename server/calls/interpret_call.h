// The Interpret call.
#pragma once

#include "kiln/v1/compile_service.grpc.pb.h"
#include "server/service.h"

namespace kiln::server {

// Lives until the call is over and no worker sends it events any more.
grpc::ServerWriteReactor<v1::InterpretEvent>* StartInterpret(const ServiceContext& service,
                                                             grpc::CallbackServerContext* context,
                                                             const v1::InterpretRequest* request);

}  // namespace kiln::server
