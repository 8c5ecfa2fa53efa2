// Code in huge pages, for a process that forks many others. Code that is mapped from a file costs
// each of them a fault for every few pages that it touches, and time to let go of all of them at
// its end: of a kernel's compile a tenth. Huge pages of the process's own memory are handed to a
// child as they are, 2 MiB an entry.
#pragma once

#include <cstdint>

namespace kiln::server {

// Of `kilnd worker`: has it do that.
inline constexpr char kHugeCodeFlag[] = "--huge-code";

// Replaces what this process has used so far of its program's and libraries' code and constants by
// copies in huge pages at the same addresses. A huge page of which nothing has been used stays in
// the file. Of kilnd's workers that is some 140 MB. Returns how many bytes: none where the system
// gives no huge pages (Linux before 6.1, memory in pieces), does not say what is used, or makes no
// memory executable that was written (systemd's MemoryDenyWriteExecute).
// REQUIRES: one thread. A process that runs out of memory in the very last step, where a page that
// is to be replaced has gone already, ends.
int64_t MoveCodeToHugePages();

// Whether that of so many processes, which share none of it, is at most a sixteenth of the memory.
bool HasRoomForHugeCode(int processes, int64_t memory_bytes);

// What this process may use: the machine's memory, or less where a control group (version 2) that
// it is in has a limit.
int64_t MemoryForProcesses();

}  // namespace kiln::server
