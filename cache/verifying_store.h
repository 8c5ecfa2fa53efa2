// Checks every value that is read against the digest that it was stored with.
#pragma once

#include <memory>

#include "cache/store.h"

namespace kiln::cache {

// A value that does not match, or that the inner store itself finds damaged (DATA_LOSS), is removed
// from the inner store, logged, and reported as DATA_LOSS, which callers treat as a miss. `inner`
// must outlive the result.
std::unique_ptr<Store> MakeVerifyingStore(Store* inner);

}  // namespace kiln::cache
