// `kiln_soak client`: a program that uses Kiln's library as anybody's does, and checks what it
// gets.
#pragma once

#include <cstdint>

namespace kiln::soak {

// Asks for programs, runs them and compares, until SIGTERM; says on standard output, a line each:
//   answer SOURCE MICROSECONDS     right; an artifact that was there took so long to come
//   wrong TEXT
//   error CODE REASON TEXT         REASON is "-" where there was none
//   paused                         after SIGUSR1: it holds no connection, until SIGUSR2
// Servers, identity and cache come from the environment. Returns the exit code.
int RunClientProcess(uint64_t seed);

}  // namespace kiln::soak
