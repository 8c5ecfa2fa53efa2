// Times launches on a GPU.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/runtime/cuda/memory.h"

namespace kiln::cuda {

// Of one stream, which no capture may have begun on; captures elsewhere in the process stay as they
// are. Every call is made with the GPU's context current, the destructor's among them.
class LaunchTimer {
 public:
  static absl::StatusOr<std::unique_ptr<LaunchTimer>> Make(const Gpu& gpu, Stream stream);
  ~LaunchTimer();
  LaunchTimer(const LaunchTimer&) = delete;
  LaunchTimer& operator=(const LaunchTimer&) = delete;

  // Microseconds from the GPU's beginning with what `launch` puts into the stream to its end, with
  // nothing of what that reads in the caches. Waits for it.
  absl::StatusOr<double> Time(absl::FunctionRef<absl::Status()> launch);

 private:
  LaunchTimer(const Gpu& gpu, Stream stream) : gpu_(gpu), stream_(stream) {}

  const Gpu& gpu_;
  const Stream stream_;
  Event begin_ = nullptr, end_ = nullptr;
  DevicePointer others_ = 0;  // what fills the caches
  size_t others_bytes_ = 0;
};

}  // namespace kiln::cuda
