// A program's machine code on one GPU.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/runtime/archive.h"
#include "client/runtime/cuda/driver.h"

namespace kiln::cuda {

// Thread-safe. Every call is made with the GPU's context current, the destructor's among them: it
// unloads.
class Modules {
 public:
  // Of archives with the same kernels, the first that the driver loads, whatever it has against
  // those before. With its words for each: RESOURCE_EXHAUSTED at once where memory is out, else the
  // code of the last one's error.
  static absl::StatusOr<std::unique_ptr<Modules>> Load(
      const Driver& driver, absl::Span<const std::unique_ptr<const runtime::Archive>> archives);
  ~Modules();
  Modules(const Modules&) = delete;
  Modules& operator=(const Modules&) = delete;

  // The function of a kernel by its number in the archive, which may be launched with so much
  // dynamic shared memory.
  absl::StatusOr<Function> Find(int kernel, uint32_t shared_bytes) const;

 private:
  struct Loaded {
    Module module = nullptr;
    Function function = nullptr;
  };
  explicit Modules(const Driver& driver) : driver_(driver) {}
  absl::Status LoadAll(const runtime::Archive& archive);
  void UnloadAll();
  absl::StatusOr<Module> LoadOne(const runtime::ArchivedKernel& kernel) const;

  const Driver& driver_;
  const runtime::Archive* archive_ = nullptr;  // for names; outlives this
  std::vector<Loaded> loaded_;
  mutable absl::Mutex mutex_;
  // What each function was allowed so far, where that is more than any may have.
  mutable std::vector<uint32_t> shared_bytes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln::cuda
