#include "tests/unit/cache/entries.h"

#include "absl/strings/str_cat.h"

namespace kiln::cache {

Key ArtifactKeyOf(int64_t number) {
  return {EntryKind::kArtifact, Sha256(absl::StrCat("artifact ", number))};
}

Key KernelKeyOf(int64_t number) {
  return {EntryKind::kKernel, Sha256(absl::StrCat("kernel ", number))};
}

std::string BytesOf(int64_t number, size_t size_bytes) {
  std::string bytes = absl::StrCat("value ", number, " ");
  // SplitMix64: does not compress, so that sizes on disk are real.
  uint64_t state = static_cast<uint64_t>(number);
  while (bytes.size() < size_bytes) {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    bytes.append(reinterpret_cast<const char*>(&z), sizeof(z));
  }
  bytes.resize(size_bytes);
  return bytes;
}

std::string CrashBytesOf(int64_t number) {
  return BytesOf(number, 100 + static_cast<size_t>(number * 7919 % (64 << 10)));
}

namespace {

template <typename Field>
int64_t Sum(Store& store, Field field, const EntryKind* kind) {
  int64_t sum = 0;
  for (const Usage& usage : store.Usages()) {
    if (kind == nullptr || usage.kind == *kind) sum += usage.*field;
  }
  return sum;
}

}  // namespace

int64_t SizeBytes(Store& store) {
  return Sum(store, &Usage::size_bytes, nullptr);
}
int64_t SizeBytes(Store& store, EntryKind kind) {
  return Sum(store, &Usage::size_bytes, &kind);
}
int64_t Entries(Store& store) {
  return Sum(store, &Usage::entries, nullptr);
}
int64_t Entries(Store& store, EntryKind kind) {
  return Sum(store, &Usage::entries, &kind);
}

Usage UsageOf(Store& store, EntryKind kind) {
  for (const Usage& usage : store.Usages()) {
    if (usage.kind == kind) return usage;
  }
  return {};
}

std::vector<Key> Keys(Store& store) {
  std::vector<EntryInfo> infos;
  store.ForEach([&](const EntryInfo& info) { infos.push_back(info); });
  SortByUse(infos);
  std::vector<Key> keys;
  for (const EntryInfo& info : infos) keys.push_back(info.key);
  return keys;
}

}  // namespace kiln::cache
