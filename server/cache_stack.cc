#include "server/cache_stack.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cache/memory_store.h"
#include "cache/metered_store.h"
#include "cache/rocksdb_store.h"
#include "cache/tiered_store.h"
#include "cache/verifying_store.h"
#include "proto/base/status_macros.h"
#include "server/remote_settings.h"

namespace kiln::server {
namespace {

cache::GetObserver Observe(Metrics& metrics, absl::string_view tier) {
  return [&metrics, tier](cache::EntryKind kind, cache::GetResult result) {
    metrics.CacheRequest(kind, tier, result);
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<CacheStack>> CacheStack::Open(const Config& config,
                                                             const SigningKey* signing_key,
                                                             Metrics& metrics) {
  std::unique_ptr<CacheStack> stack(new CacheStack());
  cache::RocksDbOptions options;
  options.path = absl::StrCat(config.data_dir, "/cache");
  options.max_bytes = config.cache_max_size_bytes;
  options.max_age = config.cache_max_age;
  KILN_ASSIGN_OR_RETURN(stack->disk_, cache::OpenRocksDbStore(options));
  stack->memory_ = cache::MakeMemoryStore(config.cache_memory_size_bytes);
  stack->verified_disk_ = cache::MakeVerifyingStore(stack->disk_.get());
  stack->metered_memory_ =
      cache::MakeMeteredStore(stack->memory_.get(), Observe(metrics, "memory"));
  stack->metered_disk_ = cache::MakeMeteredStore(
      stack->verified_disk_.get(), Observe(metrics, "disk"),
      [&metrics](cache::EntryKind kind) { metrics.CachePutFailed(kind, "disk"); });
  stack->local_ = cache::MakeTieredStore(stack->metered_memory_.get(), stack->metered_disk_.get());
  KILN_ASSIGN_OR_RETURN(
      stack->remote_, OpenRemoteTier(config.remote, signing_key, *stack->verified_disk_, metrics));
  if (stack->remote_ != nullptr) stack->AddShared(metrics);
  const bool shared = stack->durable_ != nullptr;
  stack->all_ = cache::MakeTieredStore(stack->metered_memory_.get(),
                                       shared ? stack->durable_.get() : stack->metered_disk_.get());
  stack->unmetered_ = cache::MakeTieredStore(
      stack->memory_.get(), shared ? stack->unmetered_durable_.get() : stack->verified_disk_.get());
  return stack;
}

void CacheStack::AddShared(Metrics& metrics) {
  cache::Store* remote = &remote_->store();
  metered_remote_ = cache::MakeMeteredStore(remote, Observe(metrics, "remote"));
  durable_ = cache::MakeTieredStore(metered_disk_.get(), metered_remote_.get());
  unmetered_durable_ = cache::MakeTieredStore(verified_disk_.get(), remote);
  shared_durable_ = cache::MakeTieredStore(verified_disk_.get(), metered_remote_.get());
  shared_ = cache::MakeTieredStore(memory_.get(), shared_durable_.get());
}

}  // namespace kiln::server
