#include "server/jobs/assemble_ahead.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "kiln/v1/worker.pb.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

bool HasCubin(const absl::StatusOr<cache::Found>& found) {
  v1::CompileKernelResponse kernel;
  return found.ok() && kernel.ParseFromString(found->entry->bytes) && !kernel.cubin().empty();
}

}  // namespace

AssembleAhead::AssembleAhead(std::vector<Kernel> kernels, WorkerBackend* assemblers,
                             cache::Store* store, Options options)
    : assemblers_(*assemblers),
      store_(*store),
      options_(std::move(options)),
      kernels_(std::move(kernels)) {
  std::reverse(kernels_.begin(), kernels_.end());
}

AssembleAhead::~AssembleAhead() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  mu_.Await(absl::Condition(this, &AssembleAhead::HasEnded));
}

void AssembleAhead::Start() {
  std::vector<cache::Key> keys;
  {
    absl::MutexLock lock(&mu_);
    for (const Kernel& kernel : kernels_) keys.push_back({cache::EntryKind::kKernel, kernel.key});
  }
  const std::vector<absl::StatusOr<cache::Found>> found = store_.GetMany(keys);
  {
    absl::MutexLock lock(&mu_);
    std::vector<Kernel> missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!HasCubin(found[i])) missing.push_back(kernels_[i]);
    }
    kernels_ = std::move(missing);
    running_ = options_.at_a_time;
  }
  for (int i = 0; i < options_.at_a_time; ++i) Next();
}

void AssembleAhead::Next() {
  Kernel kernel;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_ || kernels_.empty()) {
      --running_;
      return;
    }
    kernel = kernels_.back();
    kernels_.pop_back();
  }
  auto request = std::make_shared<v1::WorkerRequest>();
  request->mutable_assemble()->set_ptx(std::string(kernel.ptx));
  request->mutable_assemble()->set_arch(kernel.arch);
  WorkerTask task;
  task.request = std::move(request);
  task.job = std::numeric_limits<int64_t>::max();
  task.stopped = [this] {
    absl::MutexLock lock(&mu_);
    return stopping_;
  };
  task.done = [this, kernel](absl::StatusOr<v1::WorkerResponse> response) {
    const absl::Status stored = StoreCubin(kernel, std::move(response));
    if (!stored.ok()) {
      absl::MutexLock lock(&mu_);
      kernels_.clear();
    }
    if (!stored.ok() && !absl::IsCancelled(stored)) {
      Log(LogLevel::kWarning, "no more cubins are made ahead",
          {{"kernel", kernel.key.ShortHex()}, {"why", std::string(stored.message())}});
    }
    Next();
  };
  assemblers_.Submit(std::move(task));
}

absl::Status AssembleAhead::StoreCubin(const Kernel& kernel,
                                       absl::StatusOr<v1::WorkerResponse> response) {
  if (options_.on_assembled && !absl::IsCancelled(response.status())) {
    options_.on_assembled(response.ok());
  }
  KILN_RETURN_IF_ERROR(response.status());
  v1::CompileKernelResponse made;
  made.set_object(std::string(kernel.ptx));
  made.set_cubin(std::move(*response->mutable_assemble()->mutable_cubin()));
  made.set_assembler(response->assemble().assembler());
  return store_.Put({cache::EntryKind::kKernel, kernel.key},
                    cache::MakeEntry(made.SerializeAsString()));
}

}  // namespace kiln::server
