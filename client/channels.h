// Connections to servers, shared by all clients of the process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/patience.h"

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

// Waits, unless `patience` ends that, until the channel has connected again after a failure. gRPC
// takes note of what a connection does only while somebody waits: to calls that do not, a server
// that has come back stays away for seconds. OK after `limit` as well.
absl::Status AwaitReconnection(grpc::Channel& channel, absl::Duration limit,
                               const Patience& patience);

// FAILED_PRECONDITION in a child of fork whose parent had made a channel: gRPC's threads are the
// parent's, and calls would wait for them for ever or answer the parent's. Also in exit(), once
// ChannelHolders have let go.
absl::Status CheckChannelsHere();

// A member of what holds channels from call to call, declared after them, since `let_go` drops
// them. exit() calls it unless this is destroyed before, and waits, 1 s at most, until those with
// TLS are gone: one whose server is away connects again and again, and a thread that sets up a
// connection while OpenSSL, in exit() as well, frees its tables crashes the process.
class ChannelHolder {
 public:
  explicit ChannelHolder(std::function<void()> let_go);
  ~ChannelHolder();
  ChannelHolder(const ChannelHolder&) = delete;
  ChannelHolder& operator=(const ChannelHolder&) = delete;

 private:
  friend void LetGoOfChannels();
  std::function<void()> let_go_;
};

// gRPC's own objects that belong to channels with TLS, connections of dropped ones included, which
// end in threads of gRPC.
int LiveChannelObjects();

}  // namespace kiln
