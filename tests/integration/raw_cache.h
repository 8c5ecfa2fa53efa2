// Damage to a stopped server's cache, done behind its back; cache/FORMAT.md says what is there.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cache/store.h"

namespace kiln::integration {

// Flips one bit in the middle of every stored value of `kind`; returns how many there were.
absl::StatusOr<int> FlipStoredValues(const std::string& cache_path, cache::EntryKind kind);

// Flips one bit in the middle of every file under `folder` whose name ends in `extension` (".sst",
// or "" for none); returns how many there were.
absl::StatusOr<int> FlipFiles(const std::string& folder, const std::string& extension);

}  // namespace kiln::integration
