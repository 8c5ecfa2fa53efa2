#include "cache/rocksdb_format.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln::cache {
namespace {

constexpr size_t kWordBytes = 8;
constexpr uint8_t kPinnedFlag = 1;
constexpr uint8_t kOwnFileFlag = 2;
constexpr int64_t kBlockBytes = 4096;
// A folder's entry of 80 bytes in half-full blocks, the index record.
constexpr int64_t kFileOverheadBytes = 320;
// Key and digest or index record twice.
constexpr int64_t kInlineOverheadBytes = 160;

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
  raw += static_cast<char>((info.pinned ? kPinnedFlag : 0) | (info.own_file ? kOwnFileFlag : 0));
  return raw;
}

std::optional<EntryInfo> DecodeIndexRecord(absl::string_view raw_key, absl::string_view raw) {
  std::optional<Key> key = DecodeKey(raw_key);
  if (!key || raw.size() != 2 * kWordBytes + 1) return std::nullopt;
  EntryInfo info{*key, ReadWord(raw), ReadWord(raw.substr(kWordBytes))};
  auto flags = static_cast<uint8_t>(raw.back());
  if (info.size_bytes < 0 || info.last_used_unix_ms < 0 || flags > (kPinnedFlag | kOwnFileFlag)) {
    return std::nullopt;
  }
  info.pinned = (flags & kPinnedFlag) != 0;
  info.own_file = (flags & kOwnFileFlag) != 0;
  return info;
}

std::string FileNameOf(const Key& key) {
  return absl::StrCat(static_cast<int>(key.kind), "-", key.digest.ToHex());
}

std::optional<Key> KeyOfFileName(absl::string_view name) {
  for (EntryKind kind : kEntryKinds) {
    absl::string_view hex = name;
    if (!absl::ConsumePrefix(&hex, absl::StrCat(static_cast<int>(kind), "-"))) continue;
    auto digest = Digest::FromHex(hex);
    if (digest.ok()) return Key{kind, *digest};
  }
  return std::nullopt;
}

int64_t SizeOnDisk(size_t value_bytes) {
  auto bytes = static_cast<int64_t>(value_bytes + kDigestBytes);
  if (value_bytes < kLeastFileValueBytes) return (bytes + kInlineOverheadBytes) * 3 / 2;
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes + kFileOverheadBytes;
}

}  // namespace kiln::cache
