// Artifacts on this machine's disk, so that a restarted process needs no server. One folder serves
// any number of processes.
//
// An entry is a file FOLDER/ab/abcdef....kiln, named by its key in hex:
//   "KILNLOC1"  digest of the artifact (32 bytes)  signature (64 bytes, zeros where there is none)
//   the artifact
// It is written under another name, synced and renamed, so readers see all of it or nothing. The
// time of a file's last change is that of its last use; the longest unused go first. A folder that
// Kiln made has a file KILN_LOCAL_CACHE; only files of the names above are ever deleted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/digest.h"

namespace kiln {

struct LocalEntry {
  std::string bytes;      // of the serialized artifact
  Digest digest;          // theirs
  std::string signature;  // the server's over key and digest (proto/base/signing.h), or empty
};

struct LocalCacheOptions {
  std::string folder;
  int64_t max_bytes = int64_t{4} << 30;
};

// "DIR" or "DIR:SIZE", SIZE as in 512MiB or 20GiB. INVALID_ARGUMENT otherwise.
absl::StatusOr<LocalCacheOptions> ParseLocalCache(absl::string_view text);

// Thread-safe.
class LocalCache {
 public:
  // Makes the folder, for its owner only, or takes an empty one. FAILED_PRECONDITION where it has
  // files in it and no mark of Kiln's: they are somebody's. Since code is loaded from it,
  // PERMISSION_DENIED where others than its owner may write there, or where it is neither this
  // user's nor root's. A disk that is full, read-only or away is no error: a warning, and nothing
  // is kept until it takes the folder.
  static absl::StatusOr<std::unique_ptr<LocalCache>> Open(LocalCacheOptions options);

  // Digest checked. NOT_FOUND where there is none; DATA_LOSS, and the file gone, where it is
  // damaged.
  absl::StatusOr<LocalEntry> Get(const Digest& key);
  // Leaves at most max_bytes in the folder, however many processes write; RESOURCE_EXHAUSTED for an
  // entry larger than that. UNAVAILABLE where another process keeps the folder locked for a second.
  absl::Status Put(const Digest& key, const LocalEntry& entry);
  void Remove(const Digest& key);

 private:
  explicit LocalCache(LocalCacheOptions options);
  std::string PathOf(const Digest& key) const;
  // Of all processes one at a time; the descriptor holds the lock. UNAVAILABLE where it takes long.
  absl::StatusOr<int> Lock() const;
  // Removes the longest unused files until `more` bytes have room.
  void MakeRoom(int64_t more) const;

  const LocalCacheOptions options_;
  std::atomic<bool> ready_{false};  // the folder is there, and ours
  absl::Mutex mu_;                  // one writer of this process at a time
};

}  // namespace kiln
