#include "cache/remote/remote_tier.h"

#include <utility>

#include "cache/remote/resolver.h"
#include "cache/remote/socket.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

class RedisTier final : public RemoteTier {
 public:
  RedisTier(const RemoteTierOptions& options, std::unique_ptr<TlsClient> tls)
      : tls_(std::move(tls)),
        client_(MakeRedisClient({.seeds = options.url.seeds, .make_node = Factory(options)})),
        queue_(std::make_unique<WriteQueue>(
            options.queue,
            [this, options](const Key& key, const Entry& entry) {
              return WriteRemoteEntry(*client_, options, key, entry);
            },
            options.read_back, options.observer.written)),
        store_(MakeRemoteStore(client_.get(), options, queue_.get())),
        leases_(MakeRedisLeases(client_.get(), options, queue_.get())) {}
  ~RedisTier() override { queue_.reset(); }  // first: its last writes and releases use the rest

  Store& store() override { return *store_; }
  Leases& leases() override { return *leases_; }
  RemoteCounts Counts() override {
    return {client_->Nodes(), queue_->entries(), queue_->deferred(), queue_->size_bytes()};
  }

 private:
  NodeFactory Factory(const RemoteTierOptions& options) {
    NodeOptions node;
    node.connection = {options.url.user, options.url.password, options.url.database, tls_.get(),
                       &resolver_};
    node.connect_timeout = options.connect_timeout;
    node.breaker = options.breaker;
    return [node](const Endpoint& endpoint) { return MakeNode(endpoint, node); };
  }

  Resolver resolver_;
  const std::unique_ptr<TlsClient> tls_;
  const std::unique_ptr<RedisClient> client_;
  std::unique_ptr<WriteQueue> queue_;
  const std::unique_ptr<Store> store_;
  const std::unique_ptr<Leases> leases_;
};

}  // namespace

absl::Status CheckRemoteTls(const RemoteUrl& url, const std::string& ca_file) {
  return url.tls ? TlsClient::Create(ca_file).status() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RemoteTier>> OpenRemoteTier(const RemoteTierOptions& options) {
  std::unique_ptr<TlsClient> tls;
  if (options.url.tls) {
    KILN_ASSIGN_OR_RETURN(tls, TlsClient::Create(options.ca_file));
  }
  return std::make_unique<RedisTier>(options, std::move(tls));
}

}  // namespace kiln::cache
