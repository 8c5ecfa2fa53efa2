// Keys and values for tests of the stores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/store.h"

namespace kiln::cache {

Key ArtifactKeyOf(int64_t number);
Key KernelKeyOf(int64_t number);

// `size_bytes` bytes that depend on `number`, so that no two numbers share a value.
std::string BytesOf(int64_t number, size_t size_bytes);

// What the process that crash_test.cc kills writes under ArtifactKeyOf(number): 100 bytes to 64
// KiB, so that both inline values and blob files are met.
std::string CrashBytesOf(int64_t number);

// The sums of Usages over the rows that match.
int64_t SizeBytes(Store& store);
int64_t SizeBytes(Store& store, EntryKind kind);
int64_t Entries(Store& store);
int64_t Entries(Store& store, EntryKind kind);
// The row of a store of one tier.
Usage UsageOf(Store& store, EntryKind kind);
// Least recently used first, as far as the tier knows.
std::vector<Key> Keys(Store& store);

}  // namespace kiln::cache
