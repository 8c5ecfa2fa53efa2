// Calls that look after single entries of the cache: pin and remove, by prefix of the key.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/store.h"
#include "kiln/v1/compile_service.pb.h"

namespace kiln::server {

inline constexpr size_t kLeastPrefixDigits = 4;

// Whether a key begins with one of some prefixes.
using KeyFilter = std::function<bool(const Digest& key)>;

// INVALID_ARGUMENT, naming it, for a prefix that is not 4 to 64 hexadecimal digits.
absl::StatusOr<KeyFilter> ParseKeyPrefixes(const std::vector<std::string>& prefixes);

// Kinds called `name`; empty: all. INVALID_ARGUMENT where there is none.
absl::StatusOr<std::vector<cache::EntryKind>> ParseKinds(absl::string_view name);

// NOT_FOUND where no entry's key begins so. An error leaves what was changed before it.
absl::Status PinEntries(cache::PinningStore& store, const v1::PinCacheRequest& request,
                        v1::PinCacheResponse& response);
absl::Status RemoveEntries(cache::Store& store, const v1::RemoveCacheRequest& request,
                           v1::RemoveCacheResponse& response);

}  // namespace kiln::server
