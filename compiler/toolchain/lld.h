// lld in process: objects in, shared object out.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kiln::toolchain {

// Links ELF x86-64 objects to one shared object that exports its global symbols and needs only libc
// and libm of the process that loads it. INTERNAL with lld's message. One call at a time in a
// process (lld has global state); calls wait for one another. Creates no file and no thread, but
// the process's standard output leads elsewhere during a call: no other thread may write to it
// then.
absl::StatusOr<std::string> LinkSharedObject(absl::Span<const std::string> objects);

// Makes the memory files of later calls anew: for a process that was just forked, which would share
// them, down to their offsets and flags, with the process that it came from.
void MakeOwnMemoryFiles();

}  // namespace kiln::toolchain
