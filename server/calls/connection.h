// What became of a client's connection.
#pragma once

#include "absl/strings/string_view.h"

namespace kiln::server {

// `peer`: as grpc::ServerContext::peer() says, "ipv4:10.0.0.1:41234". Asks gRPC's own list of
// sockets (channelz): gRPC tells a call that it was cancelled, but not whether by its client or by
// the end of the connection. Right some 50 ms after the connection's end; costs time in proportion
// to the connections.
bool ConnectionIsOpen(absl::string_view peer);

}  // namespace kiln::server
