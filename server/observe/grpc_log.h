// What gRPC has to say, in the server's own log.
#pragma once

namespace kiln::server {

// For the whole process; call it before the first use of gRPC. gRPC's errors, such as handshakes
// that failed, are what callers did, so they are information here.
void TakeGrpcLog();

}  // namespace kiln::server
