#include "server/security/artifact_signer.h"

namespace kiln::server {

std::string ArtifactSigner::Sign(const Digest& key, const Digest& digest) {
  const std::pair<Digest, Digest> name(key, digest);
  std::string signature;
  {
    absl::ReaderMutexLock lock(&mu_);  // hits do not wait for each other
    if (auto it = young_.find(name); it != young_.end()) return it->second;
    if (auto it = old_.find(name); it != old_.end()) signature = it->second;
  }
  // Outside of the lock: callers that meet here make the same bytes, as Ed25519 does.
  if (signature.empty()) signature = key_.Sign(kArtifactKind, key, digest);
  absl::MutexLock lock(&mu_);
  if (young_.size() >= kept_) {
    old_ = std::move(young_);
    young_.clear();
  }
  young_.emplace(name, signature);
  return signature;
}

}  // namespace kiln::server
