// How a server ends without anybody noticing.
#pragma once

#include <functional>

#include "absl/time/time.h"

namespace grpc {
class Server;
}

namespace kiln::server {

class Admission;
class Broker;

struct DrainLimits {
  absl::Duration work = absl::Minutes(5);        // for compiles to finish
  absl::Duration last_calls = absl::Seconds(5);  // for answers to reach their clients
};

// Lets no new compile in, finishes those that are there while hits go on, then sends every call
// away (UNAVAILABLE, then GOAWAY) so that clients turn to another server, lets the calls under way
// end, and closes the connections: at once where nothing runs, however many clients are connected
// and idle. `stop_accepting` is called once, when no further connection is wanted. `hurry` is asked
// every now and then: true ends the wait for compiles. Health is the caller's to set before.
void Drain(grpc::Server& server, Broker& broker, Admission& admission,
           const std::function<void()>& stop_accepting, const std::function<bool()>& hurry,
           const DrainLimits& limits = {});

}  // namespace kiln::server
