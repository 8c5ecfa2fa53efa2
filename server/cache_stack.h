// The caches of a server as they are stacked: memory over verified disk, over a tier that servers
// share where there is one, each tier counted.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cache/remote/remote_tier.h"
#include "cache/store.h"
#include "proto/base/signing.h"
#include "server/config.h"
#include "server/observe/metrics.h"

namespace kiln::server {

// Memory holds only what was verified when it was read or made. Stores are thread-safe.
class CacheStack {
 public:
  // Opens DATA-DIR/cache. `signing_key` and `metrics` must outlive the result.
  static absl::StatusOr<std::unique_ptr<CacheStack>> Open(const Config& config,
                                                          const SigningKey* signing_key,
                                                          Metrics& metrics);

  cache::Store& all() { return *all_; }              // what jobs use
  cache::Store& unmetered() { return *unmetered_; }  // the same, for second looks
  cache::Store& local() { return *local_; }          // memory over disk
  cache::Store* shared() { return shared_.get(); }   // for what `local` lacks; null: none is shared
  cache::Store& memory() { return *memory_; }        // not counted
  cache::Store& verified_disk() { return *verified_disk_; }
  cache::PinningStore& disk() { return *disk_; }
  cache::RemoteTier* remote() { return remote_.get(); }  // null where none is shared

 private:
  CacheStack() = default;
  void AddShared(Metrics& metrics);

  std::unique_ptr<cache::Store> memory_;
  std::unique_ptr<cache::PinningStore> disk_;
  std::unique_ptr<cache::Store> verified_disk_;
  std::unique_ptr<cache::Store> metered_memory_;
  std::unique_ptr<cache::Store> metered_disk_;
  std::unique_ptr<cache::RemoteTier> remote_;  // under the disk
  std::unique_ptr<cache::Store> metered_remote_;
  std::unique_ptr<cache::Store> durable_;            // disk over remote, counted
  std::unique_ptr<cache::Store> unmetered_durable_;  // the same, for second looks
  std::unique_ptr<cache::Store> local_;
  std::unique_ptr<cache::Store> shared_durable_;  // disk over remote, of which remote is counted
  std::unique_ptr<cache::Store> shared_;          // memory over it
  std::unique_ptr<cache::Store> all_;
  std::unique_ptr<cache::Store> unmetered_;
};

}  // namespace kiln::server
