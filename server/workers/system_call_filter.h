// The system calls that a compile worker may make once it has warmed up.
#pragma once

#include "absl/status/status.h"

namespace kiln::server {

// Installs a seccomp filter in this process, for good. What a compile needs goes on: memory,
// clocks, its socket, memory files that are open already, opening for reading. Three answers to the
// rest:
//   - what no compile has a reason to do (another process or program, a socket, a file opened for
//     writing, tracing, mounts, namespaces, signals to others) ends the process with SIGSYS;
//   - a thread fails with EAGAIN, executable memory with EPERM;
//   - any other call fails with EPERM, so that a C library that tries something new still works.
// REQUIRES: one thread, and no_new_privs set. UNIMPLEMENTED where the kernel or the processor is
// not one that this knows.
absl::Status FilterSystemCalls();

}  // namespace kiln::server
