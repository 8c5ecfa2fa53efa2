// The process's loaded programs by artifact key and the threads that they run on, of which no key
// is made; for "local" answers.
#pragma once

#include <memory>
#include <string>

#include "kiln/client.h"
#include "proto/base/digest.h"

namespace kiln {

// Thread-safe. Keeps the 256 programs used last alive.
std::shared_ptr<const Program> FindProgram(const Digest& key, int threads);
// Returns the program kept for these: `program`, or one that another thread kept before.
std::shared_ptr<const Program> KeepProgram(const Digest& key, int threads,
                                           std::shared_ptr<const Program> program);

}  // namespace kiln
