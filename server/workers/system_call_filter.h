// The system calls that a compile worker may make once it has warmed up, and those of a task.
#pragma once

#include "absl/status/status.h"

namespace kiln::server {

enum class Filtered {
  kWorker,     // the warm process: also makes processes for tasks, and memory files and filters in
               // them
  kAssembler,  // a worker whose tasks run one other program, and that program
  kTask,       // a task's process: what runs the compiler on what a client sent
};

// Installs a seccomp filter in this process, for good; a task's lies on top of its worker's. What a
// compile needs goes on: memory, clocks, its socket, memory files that are open already, opening
// for reading. Three answers to the rest:
//   - what no compile has a reason to do (another process or program, a socket, a file opened for
//     writing, tracing, mounts, namespaces, signals to others) ends the process with SIGSYS;
//   - a thread fails with EAGAIN, executable memory with EPERM;
//   - any other call fails with EPERM, so that a C library that tries something new still works.
// To kAssembler a program may be executed from `program_fd` alone; it may map code and open files
// for writing, which Landlock forbids it where that is there.
// REQUIRES: one thread, and no_new_privs set. UNIMPLEMENTED where the kernel or the processor is
// not one that this knows.
absl::Status FilterSystemCalls(Filtered who, int program_fd = -1);

}  // namespace kiln::server
