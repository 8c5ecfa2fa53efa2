// What a process holds, through /proc, and whether that is more than it held before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kiln::soak {

struct ProcessUse {
  std::map<std::string, int> descriptors;  // outside of the caches, by kind: "socket", "pipe", ...
  int cache_files = 0;                     // descriptors of files below `data_dir`
  int tier_connections = 0;                // sockets to the shared tier's port
  int threads = 0;                         // its own
  int grpc_threads = 0;                    // by their names
  int64_t memory_bytes = 0;  // of its own: pages of programs and of files are the system's to drop
  int children = 0;
  int zombies = 0;

  int descriptor_count() const;
};

// `data_dir` may be empty, `tier_port` 0.
ProcessUse ReadProcessUse(pid_t pid, const std::string& data_dir, int tier_port);

struct UseBounds {
  // More than before by as much at most.
  int64_t memory_bytes = 0;
  int grpc_threads = 0;
  // At most.
  int cache_files = 0;
  int tier_connections = 0;
};

// A sentence for each bound that is broken, beginning with `who`. Descriptors, its own threads and
// children have no slack: there may be no more than before, and no zombie.
std::vector<std::string> Excesses(const std::string& who, const ProcessUse& before,
                                  const ProcessUse& after, const UseBounds& bounds);

std::string Describe(const ProcessUse& use);

}  // namespace kiln::soak
