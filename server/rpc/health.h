// gRPC's health checking service (grpc.health.v1): Check and Watch.
// https://github.com/grpc/grpc/blob/master/doc/health-checking.md
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.pb.h"
#include "server/rpc/reactor.h"

namespace kiln::server {

inline constexpr char kHealthServiceName[] = "grpc.health.v1.Health";

// Thread-safe; must outlive the calls of its methods.
class HealthService {
 public:
  // What is known of `service`, a full name, or of the server as a whole if empty, and tells those
  // who watch it.
  void SetServing(absl::string_view service, bool serving);
  void AddMethods(Methods& methods);

 private:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;
  class Check;
  class Watcher;

  Status StatusOf(const std::string& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Status> statuses_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<Watcher*> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::server
