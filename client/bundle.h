// Bundles: entries of a server's cache in one file, to warm another server with.
//
//   "KILNBNDL", version (4 bytes, little endian: 2)
//   for each entry:
//     "KREC", kind's name (16 bytes, padded with zeros), key (32), SHA-256 of the bytes (32),
//     Ed25519 public key of the server that exported it (32), its signature over kind, key and
//     SHA-256 (64, proto/base/signing.h), count of the bytes (8, little endian), check (8): the
//     first bytes of the SHA-256 of this header;
//     the bytes
//   "KEND", count of entries (8, little endian), check (8) as above
//
// A header has a check of its own, so that a reader finds the next entry after a damaged one. That
// is against damage; against forgery there are the signatures, which CheckSigner compares: what is
// imported is code that clients run.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/digest.h"

namespace kiln {

namespace v1 {
class CacheRecord;
}

struct BundleEntry {
  std::string kind;  // "artifact"
  std::string key;   // 32 bytes
  Digest digest;
  std::string public_key;
  std::string signature;
  std::string bytes;
};

// UNAUTHENTICATED, naming the key, where the entry is signed by none of `keys` (32 bytes each);
// DATA_LOSS where the signature is wrong.
absl::Status CheckSigner(const BundleEntry& entry, const std::vector<std::string>& keys);

// Writes beside the file and gives it its name at the end, so that no half bundle has it. Not
// thread-safe.
class BundleWriter {
 public:
  static absl::StatusOr<std::unique_ptr<BundleWriter>> Create(const std::string& path);
  // Deletes what was written where Finish was not called or failed.
  ~BundleWriter();

  // The records of ExportCache in their order. DATA_LOSS where they do not fit together.
  absl::Status Add(const v1::CacheRecord& record);
  absl::Status Finish();
  int64_t entries() const { return entries_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  explicit BundleWriter(std::string path);
  void Write(const std::string& bytes);
  absl::Status Check();

  const std::string path_;
  const std::string draft_;
  std::ofstream out_;
  int64_t entries_ = 0;
  int64_t size_bytes_ = 0;
  int64_t missing_bytes_ = 0;  // of the entry being written
  bool finished_ = false;
};

// Not thread-safe.
class BundleReader {
 public:
  // Told what is damaged, in a sentence that names the entry or its place.
  using OnDamage = std::function<void(const std::string&)>;

  // NOT_FOUND where the file cannot be read; INVALID_ARGUMENT for one that is no bundle, or one of
  // a version that this build does not know.
  static absl::StatusOr<std::unique_ptr<BundleReader>> Open(const std::string& path,
                                                            OnDamage on_damage);
  // The next entry that is whole; nothing at the end.
  std::optional<BundleEntry> Next();

 private:
  struct Header;
  BundleReader(std::ifstream in, int64_t size_bytes, OnDamage on_damage)
      : in_(std::move(in)), size_bytes_(size_bytes), on_damage_(std::move(on_damage)) {}
  // Up to `count` bytes from `offset`.
  std::string ReadAt(int64_t offset, int64_t count);
  // The first place from `offset` on that holds a header or the end.
  std::optional<int64_t> FindHeader(int64_t offset);
  void AtTheEnd(int64_t promised);

  std::ifstream in_;
  const int64_t size_bytes_;
  const OnDamage on_damage_;
  int64_t offset_ = 0;
  int64_t seen_ = 0;  // entries, damaged ones too
  bool ended_ = false;
};

}  // namespace kiln
