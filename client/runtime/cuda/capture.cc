#include "client/runtime/cuda/capture.h"

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kiln::cuda {
namespace {

using Kept = std::shared_ptr<const void>;

struct Released {
  absl::Mutex mutex;
  std::vector<std::unique_ptr<Kept>> all ABSL_GUARDED_BY(mutex);
};

// Never destroyed: the driver's threads may outlive whatever is.
Released& AllReleased() {
  static auto* released = new Released;
  return *released;
}

void Release(void* data) {
  Released& released = AllReleased();
  absl::MutexLock lock(&released.mutex);
  released.all.emplace_back(static_cast<Kept*>(data));
}

}  // namespace

Graph CapturedInto(const Driver& driver, Stream stream) {
  int status = 0;
  Graph graph = nullptr;
  const Result result = driver.stream_capture(stream, &status, nullptr, &graph, nullptr, nullptr);
  return result == kSuccess && status == kCaptureActive ? graph : nullptr;
}

void KeepFor(const Driver& driver, Graph graph, std::shared_ptr<const void> what) {
  auto* kept = new Kept(std::move(what));
  UserObject object = nullptr;
  if (driver.make_user_object(&object, kept, Release, 1, kEndWithoutOrder) != kSuccess) return;
  driver.keep_user_object(graph, object, 1, kGiveReference);  // a failure keeps it for good
}

void EndReleased() {
  std::vector<std::unique_ptr<Kept>> ended;
  Released& released = AllReleased();
  absl::MutexLock lock(&released.mutex);
  ended.swap(released.all);
}

}  // namespace kiln::cuda
