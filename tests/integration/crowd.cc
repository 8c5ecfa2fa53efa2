#include "tests/integration/crowd.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace kiln::integration {

class Crowd::Member final : public grpc::ClientReadReactor<v1::CompileEvent> {
 public:
  void Begin(v1::CompileService::Stub& stub, const v1::CompileRequest& request,
             absl::Duration deadline, const std::string& tenant, const std::string& priority) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
    if (!tenant.empty()) context_.AddMetadata("kiln-tenant", tenant);
    if (!priority.empty()) context_.AddMetadata("kiln-priority", priority);
    stub.async()->Compile(&context_, &request, this);
    StartRead(&event_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (event_.has_chunk()) {
      if (answer_.digest.empty()) {
        answer_.digest = event_.chunk().digest();
        answer_.source = event_.chunk().source();
      }
      answer_.bytes += static_cast<int64_t>(event_.chunk().data().size());
    }
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    answer_.done = absl::Now();
    answer_.status = status;
    const auto& trailers = context_.GetServerTrailingMetadata();
    if (auto it = trailers.find("kiln-error-bin"); it != trailers.end()) {
      answer_.detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()));
    }
    over_.Notify();
  }
  void Cancel() { context_.TryCancel(); }
  CrowdAnswer Wait() {
    over_.WaitForNotification();
    return answer_;
  }

 private:
  grpc::ClientContext context_;
  v1::CompileEvent event_;
  CrowdAnswer answer_;
  absl::Notification over_;
};

Crowd::Crowd(std::vector<v1::CompileService::Stub*> stubs) : stubs_(std::move(stubs)) {}

Crowd::~Crowd() {
  Wait();
}

void Crowd::Start(const v1::CompileRequest& request, absl::Duration deadline,
                  const std::string& tenant, const std::string& priority) {
  members_.push_back(std::make_unique<Member>());
  v1::CompileService::Stub& stub = *stubs_[members_.size() % stubs_.size()];
  members_.back()->Begin(stub, request, deadline, tenant, priority);
}

std::vector<CrowdAnswer> Crowd::Wait() {
  std::vector<CrowdAnswer> answers;
  for (auto& member : members_) answers.push_back(member->Wait());
  return answers;
}

void Crowd::Cancel(size_t call) {
  members_[call]->Cancel();
}

}  // namespace kiln::integration
