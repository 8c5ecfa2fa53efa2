// How long threads wait for processors and for each other: hits first, compiles last.
#pragma once

namespace kiln {

// The calling thread, and those that it starts from now on, take a processor as soon as they wake
// from all who do not call this. Linux 6.12 and later; nothing happens on earlier ones.
void GoFirst();

// The calling thread gives way to every other, and those that it starts from now on too. Where that
// is not allowed, nothing happens.
void StandBack();

// The calling thread alone: `niceness`, 0 to 19, in getpriority's sense.
void StandBackBy(int niceness);

// Of the whole process, from now on. Debian's Abseil looks for deadlocks at every lock, gRPC's
// among them, which takes a sixth of a server's throughput; tests keep it.
void SkipDeadlockChecks();

}  // namespace kiln
