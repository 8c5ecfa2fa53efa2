// Signatures of the artifacts that calls send.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/digest.h"
#include "proto/base/signing.h"

namespace kiln::server {

// Signs an entry once for as long as it is asked for: a signature costs tens of microseconds, about
// as much as all the rest of a hit. Thread-safe.
class ArtifactSigner {
 public:
  // Remembers between `kept` and twice as many signatures. `key` must outlive this.
  explicit ArtifactSigner(const SigningKey* key, size_t kept = 32768) : key_(*key), kept_(kept) {}

  const std::string& public_key() const { return key_.public_key(); }
  std::string Sign(const Digest& key, const Digest& digest);
  // Of any kind, and not remembered.
  std::string SignOnce(uint8_t kind, const Digest& key, const Digest& digest) const {
    return key_.Sign(kind, key, digest);
  }

 private:
  using Signatures = absl::flat_hash_map<std::pair<Digest, Digest>, std::string>;

  const SigningKey& key_;
  const size_t kept_;
  absl::Mutex mu_;
  // Two generations: the old one goes when the young one is full, what is used moves to the young.
  Signatures young_ ABSL_GUARDED_BY(mu_);
  Signatures old_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::server
