#include "client/runtime/cuda/memory.h"

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/status_macros.h"

namespace kiln::cuda {
namespace {

// That the pool keeps when nothing uses it.
constexpr uint64_t kKeptBytes = uint64_t{256} << 20;

std::string What(int64_t bytes, const Gpu& gpu) {
  return absl::StrCat("cannot allocate ", bytes, " bytes on GPU ", gpu.ordinal);
}

// Null where the GPU or its driver has no pools.
Pool MakePool(const Driver& driver, Device device) {
  const absl::StatusOr<int> supported = driver.Get(Attribute::kMemoryPools, device);
  if (!supported.ok() || *supported == 0) return nullptr;
  PoolProperties properties{};
  properties.allocation_type = 1;
  properties.location_type = 1;
  properties.location_id = device;
  Pool pool = nullptr;
  if (driver.make_pool(&pool, &properties) != kSuccess) return nullptr;
  uint64_t kept = kKeptBytes;
  driver.set_pool_attribute(pool, kPoolReleaseThreshold, &kept);  // a failure costs speed alone
  return pool;
}

absl::StatusOr<std::unique_ptr<Gpu>> Make(const Driver& driver, int ordinal) {
  Device device = 0;
  KILN_RETURN_IF_ERROR(
      driver.Check(driver.device_get(&device, ordinal), absl::StrCat("there is no GPU ", ordinal)));
  Context context = nullptr;
  KILN_RETURN_IF_ERROR(driver.Check(driver.primary_context(&context, device),
                                    absl::StrCat("cannot use GPU ", ordinal)));
  return std::unique_ptr<Gpu>(new Gpu{driver, ordinal, context, MakePool(driver, device)});
}

struct SharedDeviceMemory : runtime::SharedMemory {
  SharedDeviceMemory(const Gpu& on, Stream in)
      : SharedMemory([](SharedMemory* memory) {
          auto* shared = static_cast<SharedDeviceMemory*>(memory);
          const Driver& driver = shared->gpu.driver;
          const ContextScope scope(driver, shared->gpu.context);
          // Nothing can be done about a failure, after which the memory stays.
          if (shared->data != nullptr && scope.status().ok()) {
            driver.free_async(reinterpret_cast<DevicePointer>(shared->data), shared->stream);
          }
          delete shared;
        }),
        gpu(on),
        stream(in) {}
  const Gpu& gpu;
  const Stream stream;
};

}  // namespace

absl::StatusOr<const Gpu*> Gpu::Get(int ordinal) {
  struct Known {
    absl::Mutex mutex;
    std::map<int, std::unique_ptr<Gpu>> gpus ABSL_GUARDED_BY(mutex);
  };
  static auto* known = new Known;
  KILN_ASSIGN_OR_RETURN(const Driver* driver, Driver::Get());
  absl::MutexLock lock(&known->mutex);
  std::unique_ptr<Gpu>& gpu = known->gpus[ordinal];
  if (gpu == nullptr) {
    KILN_ASSIGN_OR_RETURN(gpu, Make(*driver, ordinal));
  }
  return gpu.get();
}

absl::StatusOr<DevicePointer> Gpu::Allocate(int64_t bytes, Stream stream) const {
  if (pool == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", ordinal,
                     " has no memory pools: a run needs the callbacks allocate_output and "
                     "allocate_scratch"));
  }
  DevicePointer data = 0;
  KILN_RETURN_IF_ERROR(driver.Check(
      driver.allocate_async(&data, static_cast<size_t>(bytes), pool, stream), What(bytes, *this)));
  return data;
}

absl::StatusOr<runtime::SharedMemory*> Gpu::AllocateShared(int64_t bytes, Stream stream) const {
  DevicePointer data = 0;
  if (bytes > 0) {
    KILN_ASSIGN_OR_RETURN(data, Allocate(bytes, stream));
  }
  auto* shared = new SharedDeviceMemory(*this, stream);
  shared->data = reinterpret_cast<void*>(data);
  return shared;
}

DeviceBlock::~DeviceBlock() {
  if (gpu_ == nullptr || data_ == 0) return;
  const ContextScope scope(gpu_->driver, gpu_->context);
  const RelaxedCaptureScope relaxed(gpu_->driver);
  if (scope.status().ok()) gpu_->driver.free(data_);  // which waits for the device
}

absl::StatusOr<DeviceBlock> DeviceBlock::Allocate(const Gpu& gpu, int64_t bytes) {
  DeviceBlock block;
  if (bytes == 0) return block;
  const RelaxedCaptureScope relaxed(gpu.driver);
  KILN_RETURN_IF_ERROR(gpu.driver.Check(
      gpu.driver.allocate(&block.data_, static_cast<size_t>(bytes)), What(bytes, gpu)));
  block.gpu_ = &gpu;
  return block;
}

OwnStream::~OwnStream() {
  if (stream_ != nullptr) driver_.destroy_stream(stream_);
}

absl::StatusOr<std::unique_ptr<OwnStream>> OwnStream::Make(const Driver& driver) {
  auto out = std::make_unique<OwnStream>(driver);
  KILN_RETURN_IF_ERROR(
      driver.Check(driver.make_stream(&out->stream_, kStreamNonBlocking), "cannot make a stream"));
  return out;
}

absl::Status OwnStream::Synchronize() const {
  return driver_.Check(driver_.synchronize_stream(stream_), "cannot wait for the GPU");
}

}  // namespace kiln::cuda
