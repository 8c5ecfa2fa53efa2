// Compiles single kernels on workers: each key once at a time, however many jobs want it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/store.h"
#include "proto/base/digest.h"
#include "server/workers/worker_backend.h"

namespace kiln::server {

struct CompiledKernel {
  std::shared_ptr<const v1::WorkerResponse> response;  // holds a CompileKernelResponse
  int64_t compile_ns = 0;                        // on the worker, waiting for one not included
  absl::Time compiled = absl::InfiniteFuture();  // when that ended, where it was compiled now
  // When a worker began to make machine code of it; later than any time where none did.
  absl::Time assembling = absl::InfiniteFuture();
};

struct KernelOutcome {
  absl::StatusOr<CompiledKernel> kernel;
  int worker_deaths = 0;  // that this kernel caused
  bool joined = false;    // it served, or was compiled for, another job too
};

struct KernelRequest {
  Digest key;
  std::shared_ptr<const v1::WorkerRequest> request;
  int64_t job = 0;
  int64_t weight = 0;
  std::function<bool()> stopped;  // true once the job that asks has no waiter left
  // Once, on a worker's thread or before Compile returns.
  std::function<void(const KernelOutcome&)> done;
};

// What makes machine code of kernels' objects, where the server has such a program.
struct KernelAssembler {
  WorkerBackend* workers = nullptr;           // started with --ptxas; null where there is none
  std::function<void(bool ok)> on_assembled;  // thread-safe; for each kernel
};

// Thread-safe. A worker's crash is retried once. What was compiled is put into `store` before
// anyone hears of it; `memory` is that store's fastest tier. Must outlive every compile that it
// started.
class KernelCompiler {
 public:
  KernelCompiler(WorkerBackend* workers, cache::Store* store, cache::Store* memory,
                 KernelAssembler assembler = {})
      : workers_(*workers), store_(*store), memory_(*memory), assembler_(std::move(assembler)) {}

  void Compile(KernelRequest request);

 private:
  struct Flight;

  // What another job's compile left since this one looked; null where there is none.
  std::shared_ptr<const v1::WorkerResponse> FindInMemory(const Digest& key);
  void Submit(const std::shared_ptr<Flight>& flight);
  void Finish(const std::shared_ptr<Flight>& flight, absl::StatusOr<v1::WorkerResponse> response);
  // Where the kernel's client can load a cubin, adds one to the response; no failure of that is one
  // of the kernel's.
  bool WantsCubin(const Flight& flight) const;
  void SubmitAssembly(const std::shared_ptr<Flight>& flight, v1::WorkerResponse response,
                      CompiledKernel kernel);
  // `kernel` but for its response. `whole`: it may be stored.
  void StoreAndLand(const std::shared_ptr<Flight>& flight, v1::WorkerResponse response,
                    CompiledKernel kernel, bool whole);
  // Tells all who wait, or tries again for one who came after the others had left.
  void Land(const std::shared_ptr<Flight>& flight, KernelOutcome outcome);

  WorkerBackend& workers_;
  cache::Store& store_;
  cache::Store& memory_;
  const KernelAssembler assembler_;
  absl::Mutex mu_;
  absl::flat_hash_map<Digest, std::shared_ptr<Flight>> flights_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::server
