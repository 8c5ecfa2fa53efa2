// Encoding of keys and records on disk. FORMAT.md describes it; a change raises kFormatVersion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cache/store.h"

namespace kiln::cache {

// Of the file FORMAT; "kiln-cache 1" had none, and the database where that file is now.
inline constexpr absl::string_view kFormatVersion = "kiln-cache 2";
inline constexpr char kFormatFile[] = "FORMAT";
inline constexpr char kDatabaseFolder[] = "db";
inline constexpr char kFilesFolder[] = "files";
inline constexpr char kMovingFolder[] = "moving";
inline constexpr char kIndexFamily[] = "index";
inline constexpr char kValuesFamily[] = "values";
inline constexpr size_t kDigestBytes = 32;
// The least value that gets a file of its own: it fills a block of the file system.
inline constexpr size_t kLeastFileValueBytes = 4096 - kDigestBytes;

// Kind (one byte), then the digest.
std::string EncodeKey(const Key& key);
std::optional<Key> DecodeKey(absl::string_view raw);

// Size and last use, eight bytes each, little endian; one byte of flags.
std::string EncodeIndexRecord(const EntryInfo& info);
// Nothing where either is malformed.
std::optional<EntryInfo> DecodeIndexRecord(absl::string_view raw_key, absl::string_view raw);

// "1-<64 hex digits>": kind and digest, and back.
std::string FileNameOf(const Key& key);
std::optional<Key> KeyOfFileName(absl::string_view name);

// What a value takes on disk with its records and its place in a folder, and the database's spare
// room for what it rewrites.
int64_t SizeOnDisk(size_t value_bytes);

}  // namespace kiln::cache
