// How much calls may hold at once: what is refused here costs nothing further.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/observe/metrics.h"

namespace kiln::server {

enum class CallKind { kFetch, kCompile, kInterpret };

struct AdmissionOptions {
  int max_calls = 8192;                          // of Fetch, and as many of the others
  int tenant_max_interprets = 8;                 // they keep a worker for long
  int64_t max_request_bytes = int64_t{1} << 29;  // of graphs and tensors that wait or are worked on
};

// Thread-safe. What it hands out must be gone before it.
class Admission {
 public:
  // Counts while it lives.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept;
    ~Place() { Leave(); }
    void Leave();

   private:
    friend class Admission;
    Admission* owner_ = nullptr;
    CallKind kind_ = CallKind::kFetch;
    int64_t bytes_ = 0;
    std::string interpreting_tenant_;
  };

  Admission(AdmissionOptions options, Metrics* metrics) : options_(options), metrics_(*metrics) {}

  // A call, until its end. RESOURCE_EXHAUSTED with a hint where there are too many.
  absl::StatusOr<Place> Enter(CallKind kind, absl::string_view tenant);
  // A request's bytes, for as long as it is in memory. As Enter.
  absl::StatusOr<Place> Hold(int64_t bytes, absl::string_view tenant);

  // From now on nothing is interpreted; the broker refuses compiles by itself.
  void StartDrain();
  // From now on every call is turned away with UNAVAILABLE, so that its client goes elsewhere.
  void Close();
  // True once that has sent nobody away for `quiet`; false after `timeout`.
  bool WaitUntilQuiet(absl::Duration quiet, absl::Duration timeout);
  // True once no Compile and no Interpret is under way; false after `timeout`.
  bool WaitUntilWorkDone(absl::Duration timeout);
  // The same for every call.
  bool WaitUntilEmpty(absl::Duration timeout);

 private:
  static constexpr size_t kKinds = 3;
  int Working() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return calls_[static_cast<size_t>(CallKind::kCompile)] +
           calls_[static_cast<size_t>(CallKind::kInterpret)];
  }
  int Fetching() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return calls_[static_cast<size_t>(CallKind::kFetch)];
  }
  bool IsWorkDone() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Working() == 0; }
  bool IsEmpty() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Working() + Fetching() == 0; }

  const AdmissionOptions options_;
  Metrics& metrics_;
  absl::Mutex mu_;
  std::array<int, kKinds> calls_ ABSL_GUARDED_BY(mu_) = {};
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, int, std::less<>> interprets_ ABSL_GUARDED_BY(mu_);  // of each tenant
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_sent_away_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::server
