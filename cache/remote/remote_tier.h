// The shared tier: entries and leases in a server that speaks the Redis protocol (Redis, Redis
// Cluster, Valkey, Kvrocks), for all the servers that are told of it.
//
// It may be away, slow or hostile: then it is a miss, within the time limit. Whatever it returns is
// an entry that a trusted key signed for exactly the key that was asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache/lease.h"
#include "cache/remote/endpoint.h"
#include "cache/remote/redis_client.h"
#include "cache/remote/write_queue.h"
#include "cache/store.h"
#include "proto/base/signing.h"

namespace kiln::cache {

// Called often and on any thread; quick.
struct RemoteObserver {
  // `operation`: "get", "put", "remove", "lease". `ok`: the tier answered in time and in sense;
  // that it has no such entry is an answer.
  std::function<void(absl::string_view operation, bool ok, absl::Duration duration)> done;
  // What became of an entry that was put.
  std::function<void(WriteResult)> written;
};

struct RemoteTierOptions {
  RemoteUrl url;
  std::string ca_file;  // whom rediss:// trusts; empty: the system's certificates
  absl::Duration connect_timeout = absl::Milliseconds(50);
  absl::Duration read_timeout =
      absl::Milliseconds(100);                       // of a read as a whole, connecting included
  absl::Duration write_timeout = absl::Seconds(2);   // in the background
  int64_t max_entry_bytes = int64_t{256} << 20;      // larger ones are neither put nor read
  absl::Duration expiry = absl::InfiniteDuration();  // of entries in the tier
  WriteQueueOptions queue;
  WriteQueue::ReadBack read_back;  // where entries are that had to be deferred; may be null
  BreakerOptions breaker;
  const SigningKey* signing_key = nullptr;  // signs what is put; must outlive the tier
  std::vector<std::string> trusted_keys;  // public keys of 32 bytes; that of signing_key always is
  RemoteObserver observer;
};

struct RemoteCounts {
  NodeCounts nodes;
  int64_t queued_writes = 0;
  int64_t deferred_writes = 0;
  int64_t queued_bytes = 0;
};

// Thread-safe.
class RemoteTier {
 public:
  virtual ~RemoteTier() = default;

  // Tier "remote". Get errs as Store has it. Put only queues: RESOURCE_EXHAUSTED where the entry is
  // over the limit or dropped. Remove waits for the tier, and a tier that fails is
  // no error. Lists nothing: what is in the tier is the tier's own affair.
  virtual Store& store() = 0;
  // SET NX PX with a random token; renewed and released by EVAL of a script with one key, which
  // Redis since 2.6, Valkey, Kvrocks and their clusters have.
  virtual Leases& leases() = 0;
  virtual RemoteCounts Counts() = 0;
};

// INVALID_ARGUMENT where `url` asks for TLS and `ca_file` holds no certificates.
absl::Status CheckRemoteTls(const RemoteUrl& url, const std::string& ca_file);

// Connects to nobody yet. INVALID_ARGUMENT as CheckRemoteTls.
absl::StatusOr<std::unique_ptr<RemoteTier>> OpenRemoteTier(const RemoteTierOptions& options);

// The parts over another client: for tests. `client` must outlive the results; `queue` must end
// before they do, as releases that wait in it refer to them.
std::unique_ptr<Store> MakeRemoteStore(RedisClient* client, const RemoteTierOptions& options,
                                       WriteQueue* queue);
std::unique_ptr<Leases> MakeRedisLeases(RedisClient* client, const RemoteTierOptions& options,
                                        WriteQueue* queue);
// Writes one entry to the tier, at once.
absl::Status WriteRemoteEntry(RedisClient& client, const RemoteTierOptions& options, const Key& key,
                              const Entry& entry);

}  // namespace kiln::cache
