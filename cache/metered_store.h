// Reports the outcome of every read, and every failed write, to observers.
#pragma once

#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "cache/store.h"

namespace kiln::cache {

enum class GetResult { kHit, kMiss, kCorrupt, kUntrusted, kError };

// "hit", "miss", "corrupt", "untrusted", "error": metric labels.
absl::string_view GetResultName(GetResult result);

// Thread-safe and quick: called in every read.
using GetObserver = std::function<void(EntryKind kind, GetResult result)>;

// Thread-safe and quick: called in every write that fails.
using PutFailureObserver = std::function<void(EntryKind kind)>;

// `inner` must outlive the result.
std::unique_ptr<Store> MakeMeteredStore(Store* inner, GetObserver observer,
                                        PutFailureObserver put_failed = nullptr);

}  // namespace kiln::cache
