// Takes from a compile worker, and from its tasks, what they do not need. Three steps, because the
// toolchain's start needs more than a compile does, and a worker more than a task: the first before
// any work, the second after the warm-up, the third in each task's process. That is before the
// first byte that came from a client: the worker itself never gets one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kiln::server {

struct SandboxLimits {
  int64_t memory_bytes = 0;
};

// First thing in the worker, one thread: closes what was inherited but descriptors 0 to 3, leaves
// the server's folder, gives up the way to new privileges and, where the server is root, root
// itself (the process becomes nobody), and limits memory, address space, file sizes, open files and
// core files.
// Returns what this system did not allow, each as a few words for a log line.
std::vector<std::string> LimitProcess(const SandboxLimits& limits);

// Once the worker is warm: no file of any file system (Landlock), no system call but a compile's
// (server/workers/system_call_filter.h) and those that make a task's process. Memory files and
// descriptors that are open stay usable. Returns what this system did not allow.
std::vector<std::string> SealWorker();

// Last thing before work, in the task's process, which has inherited the rest: no further process,
// no thread, no new memory file. Returns what this system did not allow.
std::vector<std::string> SealTask();

// Instead of both, in a worker that runs another program, and in all processes that it makes: what
// a dynamic loader reads can be read (Landlock), and a program be executed only from `program_fd`.
// That descriptor is open, closed on exec, and above all that such a process may open, so it stays
// the one program. Returns what this system did not allow.
std::vector<std::string> SealAssembler(int program_fd);

// The largest memory file that a worker can make; it counts beside the limit on memory.
int64_t MaxFileBytes(const SandboxLimits& limits);

}  // namespace kiln::server
