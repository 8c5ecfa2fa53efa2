// Machine code of the kernels that a build has compiled, made before anybody asks for one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cache/store.h"
#include "proto/base/digest.h"
#include "server/workers/worker_backend.h"

namespace kiln::server {

// Thread-safe. Any job's task goes first. The first kernel that cannot be assembled or stored ends
// it: others would not be either.
class AssembleAhead {
 public:
  struct Kernel {
    Digest key;
    std::string arch;
    absl::string_view ptx;  // lives as long as the process
  };
  struct Options {
    int at_a_time = 1;
    std::function<void(bool ok)> on_assembled;  // thread-safe; for each kernel
  };
  // `assemblers` were started with --ptxas; `store` is where jobs look for kernels.
  AssembleAhead(std::vector<Kernel> kernels, WorkerBackend* assemblers, cache::Store* store,
                Options options);
  // Drops what has not begun, ends the rest and waits for that.
  ~AssembleAhead();

  // Once. Kernels that the store has with machine code are left out.
  void Start();

 private:
  void Next();
  absl::Status StoreCubin(const Kernel& kernel, absl::StatusOr<v1::WorkerResponse> response);
  bool HasEnded() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return running_ == 0; }

  WorkerBackend& assemblers_;
  cache::Store& store_;
  const Options options_;
  absl::Mutex mu_;
  std::vector<Kernel> kernels_ ABSL_GUARDED_BY(mu_);  // that wait, the last one first
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kiln::server
