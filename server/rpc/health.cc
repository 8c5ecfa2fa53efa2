#include "server/rpc/health.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "server/rpc/messages.h"

namespace kiln::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

namespace {

grpc::ByteBuffer Answer(HealthCheckResponse::ServingStatus status) {
  HealthCheckResponse response;
  response.set_status(status);
  return SerializeMessage(response);
}

}  // namespace

class HealthService::Check final : public Reactor {
 public:
  Check(HealthService& health, grpc::ByteBuffer& request)
      : health_(health), parsed_(ParseMessage(request, request_)) {}

  void Start() override {
    if (!parsed_.ok()) return Finish(ToGrpc(parsed_));
    absl::MutexLock lock(&health_.mu_);
    const Status status = health_.StatusOf(request_.service());
    if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
      return Finish({grpc::StatusCode::NOT_FOUND,
                     absl::StrCat("this server has no service ", request_.service())});
    }
    StartWriteAndFinish(Answer(status), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  HealthService& health_;
  HealthCheckRequest request_;
  const absl::Status parsed_;
};

class HealthService::Watcher final : public Reactor {
 public:
  Watcher(HealthService& health, grpc::ByteBuffer& request)
      : health_(health), parsed_(ParseMessage(request, request_)) {}

  void Start() override {
    absl::MutexLock lock(&health_.mu_);
    if (!parsed_.ok()) return End(ToGrpc(parsed_));
    health_.watchers_.insert(this);
    Tell();
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&health_.mu_);
    writing_ = false;
    if (!ok || cancelled_) return End(grpc::Status::CANCELLED);
    Tell();
  }
  void OnCancel() override {
    absl::MutexLock lock(&health_.mu_);
    cancelled_ = true;
    if (!writing_) End(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  // Writes the status unless the client has it; one write at a time, so a slow client sees the
  // latest only.
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_.mu_) {
    const Status status = health_.StatusOf(request_.service());
    if (writing_ || status == told_) return;
    told_ = status;
    writing_ = true;
    StartWrite(Answer(status));
  }

 private:
  void End(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_.mu_) {
    if (ended_) return;
    ended_ = true;
    health_.watchers_.erase(this);
    Finish(status);
  }

  HealthService& health_;
  HealthCheckRequest request_;
  const absl::Status parsed_;
  std::optional<Status> told_ ABSL_GUARDED_BY(health_.mu_);
  bool writing_ ABSL_GUARDED_BY(health_.mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(health_.mu_) = false;
  bool ended_ ABSL_GUARDED_BY(health_.mu_) = false;
};

HealthService::Status HealthService::StatusOf(const std::string& service) const {
  auto found = statuses_.find(service);
  return found == statuses_.end() ? HealthCheckResponse::SERVICE_UNKNOWN : found->second;
}

void HealthService::SetServing(absl::string_view service, bool serving) {
  absl::MutexLock lock(&mu_);
  statuses_[service] = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  for (Watcher* watcher : watchers_) watcher->Tell();
}

void HealthService::AddMethods(Methods& methods) {
  const std::string service = absl::StrCat("/", kHealthServiceName, "/");
  methods[service + "Check"].make = [this](grpc::ServerContextBase&, grpc::ByteBuffer& request) {
    return new Check(*this, request);
  };
  methods[service + "Watch"].make = [this](grpc::ServerContextBase&, grpc::ByteBuffer& request) {
    return new Watcher(*this, request);
  };
}

}  // namespace kiln::server
