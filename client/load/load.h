// Generates load on a server and measures it: what `kiln load` runs.
//
// A closed loop keeps a number of requests under way. An open loop sends at random times of a given
// rate, whether or not the server keeps up, and counts each latency from the time at which the
// request was due: a server that stalls cannot hide what it makes wait.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/load/histogram.h"
#include "client/remote.h"

namespace kiln {
class Credentials;
namespace v1 {
class CompileRequest;
}

namespace load {

struct LoadOptions {
  std::string server;         // HOST:PORT
  int connections = 8;        // each a TCP connection of its own
  int concurrency = 32;       // of the closed loop
  double requests_per_s = 0;  // > 0: an open loop
  int max_under_way = 20000;  // of the open loop; requests due beyond it count as unsent
  absl::Duration warmup = absl::Seconds(1);  // not counted
  absl::Duration duration = absl::Seconds(10);
  absl::Duration timeout = absl::Seconds(60);  // of a request
  int64_t keys = 1000;
  double zipf = 0;  // the exponent of the keys' popularity; 0: all alike
  CallHeaders headers;
  std::shared_ptr<const Credentials> credentials;  // never null
  uint64_t seed = 1;
};

struct LoadResult {
  absl::Duration took;
  int64_t bytes = 0;                       // of artifacts
  int64_t unsent = 0;                      // the open loop's, for want of room
  Histogram latency;                       // of requests that ended well
  Histogram failed;                        // of the others
  std::map<std::string, int64_t> by_code;  // "OK", "RESOURCE_EXHAUSTED", ...
};

// Entries of one size that requests can fetch.
struct Entries {
  int64_t count = 1000;
  int64_t bytes = 64 << 10;  // of each
};

// The key of entry `number`; what PutEntries makes has it.
std::string EntryKey(const Entries& entries, int64_t number);
// Sees to it that the server has the entries, by ImportCache, which takes the role admin.
absl::Status PutEntries(const LoadOptions& options, const Entries& entries);

// Fetches entries.
absl::StatusOr<LoadResult> RunFetches(const LoadOptions& options, const Entries& entries);
// Compiles `request` under as many different artifact keys as options.keys says. They differ in the
// device's memory size, so their kernels are the same.
absl::StatusOr<LoadResult> RunCompiles(const LoadOptions& options,
                                       const v1::CompileRequest& request);

}  // namespace load
}  // namespace kiln
