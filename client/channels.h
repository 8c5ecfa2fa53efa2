// Connections to servers, shared by all clients of the process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class Channel;
}

namespace kiln {

class Credentials;

// One connection an address and set of certificates, for as long as somebody holds it. It connects
// with the first call, gives a server 3 s to accept and to say hello, and notices within 15 s when
// the other end is gone without a word while a call runs. Thread-safe.
std::shared_ptr<grpc::Channel> SharedChannel(const std::string& server,
                                             const Credentials& credentials);

// The same, shared with nobody.
std::shared_ptr<grpc::Channel> OwnChannel(const std::string& server,
                                          const Credentials& credentials);

// FAILED_PRECONDITION in a child of fork whose parent had made a channel: gRPC's threads are the
// parent's, and calls would wait for them for ever or answer the parent's.
absl::Status CheckChannelsHere();

}  // namespace kiln
