#include "tests/integration/crowd.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "proto/base/scheduling.h"

namespace kiln::integration {

class Crowd::Member {
 public:
  void Begin(v1::CompileService::Stub& stub, const v1::CompileRequest& request,
             absl::Duration deadline, const std::string& tenant, const std::string& priority,
             grpc::CompletionQueue& queue) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
    if (!tenant.empty()) context_.AddMetadata("kiln-tenant", tenant);
    if (!priority.empty()) context_.AddMetadata("kiln-priority", priority);
    reader_ = stub.PrepareAsyncCompile(&context_, request, &queue);
    reader_->StartCall(this);
  }

  // The queue says that what was begun last has ended.
  void Proceed(bool ok) {
    if (finishing_) return End();
    if (reading_ && ok) TakeEvent();
    reading_ = ok;
    if (ok) return reader_->Read(&event_, this);
    finishing_ = true;
    reader_->Finish(&answer_.status, this);
  }
  void Cancel() { context_.TryCancel(); }
  CrowdAnswer Wait() {
    over_.WaitForNotification();
    return answer_;
  }

 private:
  void TakeEvent() {
    if (!event_.has_chunk()) return;
    if (answer_.digest.empty()) {
      answer_.digest = event_.chunk().digest();
      answer_.source = event_.chunk().source();
    }
    answer_.bytes += static_cast<int64_t>(event_.chunk().data().size());
    event_ = {};  // the next one's memory
  }

  void End() {
    answer_.done = absl::Now();
    const auto& trailers = context_.GetServerTrailingMetadata();
    if (auto it = trailers.find("kiln-error-bin"); it != trailers.end()) {
      answer_.detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()));
    }
    over_.Notify();
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::CompileEvent>> reader_;
  v1::CompileEvent event_;
  bool reading_ = false;
  bool finishing_ = false;
  CrowdAnswer answer_;
  absl::Notification over_;
};

Crowd::Crowd(std::vector<v1::CompileService::Stub*> stubs) : stubs_(std::move(stubs)) {
  SkipDeadlockChecks();
  thread_ = std::thread([this] { TakeEvents(); });
}

Crowd::~Crowd() {
  Wait();
  queue_.Shutdown();
  thread_.join();
}

void Crowd::TakeEvents() {
  void* member = nullptr;
  bool ok = false;
  while (queue_.Next(&member, &ok)) static_cast<Member*>(member)->Proceed(ok);
}

void Crowd::Start(const v1::CompileRequest& request, absl::Duration deadline,
                  const std::string& tenant, const std::string& priority) {
  members_.push_back(std::make_unique<Member>());
  v1::CompileService::Stub& stub = *stubs_[members_.size() % stubs_.size()];
  members_.back()->Begin(stub, request, deadline, tenant, priority, queue_);
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
