// GPUs as this process uses them, and memory on them.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/runtime/cuda/driver.h"
#include "client/runtime/memory.h"

namespace kiln::cuda {

// A GPU whose primary context, the one that CUDA's runtime library uses too, the process has taken.
// Lives as long as the process.
struct Gpu {
  // FAILED_PRECONDITION or RESOURCE_EXHAUSTED in a sentence. Thread-safe.
  static absl::StatusOr<const Gpu*> Get(int ordinal);

  // In the stream's order. With the context current, as those below.
  absl::StatusOr<DevicePointer> Allocate(int64_t bytes, Stream stream) const;
  // For an output: freed in the order of that stream, which must still be there then.
  absl::StatusOr<runtime::SharedMemory*> AllocateShared(int64_t bytes, Stream stream) const;

  const Driver& driver;
  int ordinal = 0;
  Context context = nullptr;
  Pool pool = nullptr;  // null where the GPU has none
};

// A block for as long as the object lives; movable. Its end waits for the device, and disturbs no
// stream capture.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  ~DeviceBlock();
  DeviceBlock(DeviceBlock&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)), data_(std::exchange(other.data_, 0)) {}
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(data_, other.data_);
    return *this;
  }
  // Aligned to 256 bytes. RESOURCE_EXHAUSTED with the size where there is no memory. A size of 0
  // gives none. Not for runs.
  static absl::StatusOr<DeviceBlock> Allocate(const Gpu& gpu, int64_t bytes);

  char* data() const { return reinterpret_cast<char*>(data_); }

 private:
  const Gpu* gpu_ = nullptr;
  DevicePointer data_ = 0;
};

// A stream of our own, apart from all others, for what is not part of a run.
class OwnStream {
 public:
  explicit OwnStream(const Driver& driver) : driver_(driver) {}
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  static absl::StatusOr<std::unique_ptr<OwnStream>> Make(const Driver& driver);
  absl::Status Synchronize() const;
  Stream get() const { return stream_; }

 private:
  const Driver& driver_;
  Stream stream_ = nullptr;
};

}  // namespace kiln::cuda
