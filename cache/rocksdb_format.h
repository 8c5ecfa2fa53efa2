// Encoding of keys and records on disk. FORMAT.md describes it; a change raises kFormatVersion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cache/store.h"

namespace kiln::cache {

inline constexpr absl::string_view kFormatKey = "format";
inline constexpr absl::string_view kFormatVersion = "kiln-cache 1";
inline constexpr char kIndexFamily[] = "index";
inline constexpr char kValuesFamily[] = "values";
inline constexpr size_t kDigestBytes = 32;

// Kind (one byte), then the digest.
std::string EncodeKey(const Key& key);
std::optional<Key> DecodeKey(absl::string_view raw);

// Size and last use, eight bytes each, little endian.
std::string EncodeIndexRecord(const EntryInfo& info);
// Nothing where either is malformed.
std::optional<EntryInfo> DecodeIndexRecord(absl::string_view raw_key, absl::string_view raw);

}  // namespace kiln::cache
