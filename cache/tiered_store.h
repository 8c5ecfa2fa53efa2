// A fast store over a slow one.
#pragma once

#include <memory>

#include "cache/store.h"

namespace kiln::cache {

// Reads the upper store first; what only the lower one has is put into the upper one too. Writes go
// to both and succeed where either took the value. A tier's failure is a miss, never an error.
// Both must outlive the result.
std::unique_ptr<Store> MakeTieredStore(Store* upper, Store* lower);

}  // namespace kiln::cache
