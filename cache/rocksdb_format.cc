#include "cache/rocksdb_format.h"

namespace kiln::cache {
namespace {

constexpr size_t kWordBytes = 8;

void AppendWord(std::string& out, int64_t value) {
  for (size_t i = 0; i < kWordBytes; ++i) {
    out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

int64_t ReadWord(absl::string_view raw) {
  uint64_t value = 0;
  for (size_t i = 0; i < kWordBytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(raw[i])) << (8 * i);
  }
  return static_cast<int64_t>(value);
}

}  // namespace

std::string EncodeKey(const Key& key) {
  std::string raw(1, static_cast<char>(key.kind));
  raw.append(key.digest.view().data(), key.digest.view().size());
  return raw;
}

std::optional<Key> DecodeKey(absl::string_view raw) {
  if (raw.size() != 1 + kDigestBytes) return std::nullopt;
  auto digest = Digest::FromBytes(raw.substr(1));
  if (!digest.ok()) return std::nullopt;
  for (EntryKind kind : kEntryKinds) {
    if (static_cast<uint8_t>(raw[0]) == static_cast<uint8_t>(kind)) return Key{kind, *digest};
  }
  return std::nullopt;
}

std::string EncodeIndexRecord(const EntryInfo& info) {
  std::string raw;
  AppendWord(raw, info.size_bytes);
  AppendWord(raw, info.last_used_unix_ms);
  return raw;
}

std::optional<EntryInfo> DecodeIndexRecord(absl::string_view raw_key, absl::string_view raw) {
  std::optional<Key> key = DecodeKey(raw_key);
  if (!key || raw.size() != 2 * kWordBytes) return std::nullopt;
  EntryInfo info{*key, ReadWord(raw), ReadWord(raw.substr(kWordBytes))};
  if (info.size_bytes < 0) return std::nullopt;
  return info;
}

}  // namespace kiln::cache
