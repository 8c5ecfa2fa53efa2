// What the kernel says about this process and its children, as Prometheus' client libraries
// report it.
#pragma once

#include <cstdint>

namespace kiln::server {

struct ProcessStats {
  double cpu_seconds = 0;
  double start_unix_seconds = 0;
  int64_t virtual_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
  int64_t threads = 0;
  int64_t children_resident_bytes = 0;  // compile workers: the processes that this one started
};

// Reads /proc; what cannot be read is 0. Takes well under a millisecond.
ProcessStats ReadProcessStats();

}  // namespace kiln::server
