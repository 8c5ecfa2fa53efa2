// The part of NVIDIA's driver that programs for GPUs need, found with dlopen: there is no toolkit
// at build time and nothing but libcuda.so.1 at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::cuda {

// The driver's numbers and shapes of things, under names of our own.
using Result = int;
using Device = int;
using DevicePointer = unsigned long long;
using Context = struct OpaqueContext*;
using Module = struct OpaqueModule*;
using Function = struct OpaqueFunction*;
using Stream = struct OpaqueStream*;  // null: the legacy default stream
using Event = struct OpaqueEvent*;
using Pool = struct OpaquePool*;
using Graph = struct OpaqueGraph*;
using UserObject = struct OpaqueUserObject*;  // counts references to memory of the user's

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoBinaryForGpu = 209;

enum class Attribute : int {
  kMaxThreadsPerBlock = 1,
  kClockKhz = 13,
  kMultiprocessors = 16,
  kMemoryClockKhz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kSharedBytesPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kMostSharedBytesPerBlock = 97,  // that a kernel may opt in to
  kMemoryPools = 115,
};

enum class FunctionAttribute : int {
  kMaxThreadsPerBlock = 0,
  kStaticSharedBytes = 1,
  kMostDynamicSharedBytes = 8,  // may be set
};

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostPortable = 1;     // every context sees it
inline constexpr unsigned kHostDeviceMap = 2;    // devices see it
inline constexpr int kCaptureRelaxed = 2;        // a capture in this thread forbids no call
inline constexpr int kCaptureActive = 1;         // of a stream
inline constexpr unsigned kEndWithoutOrder = 1;  // a user object may end whenever nothing runs it
inline constexpr unsigned kGiveReference = 1;  // of a user object: the caller's becomes the graph's
inline constexpr int kPoolReleaseThreshold = 4;
inline constexpr int kJitErrorLog = 5;
inline constexpr int kJitErrorLogBytes = 6;
inline constexpr int kMemoryTypeDevice = 2;

// Of the tensor memory accelerator: which bytes are which boxes of a tensor.
struct alignas(64) TensorMap {
  uint64_t words[16];
};
enum class TensorMapType : int { kBytes = 0, kWords = 3, kF16 = 6, kF32 = 7, kBF16 = 9 };
inline constexpr int kInterleaveNone = 0;
inline constexpr int kSwizzle128Bytes = 3;
inline constexpr int kPromote128Bytes = 2;  // what the second-level cache reads at least
inline constexpr int kFillZeros = 0;

// Of a launch; kMayBeginEarly with a value of 1: it need not wait for the launch before it, as far
// as the kernel waits itself.
struct LaunchAttribute {
  int kind;
  int padding;
  int value[16];
};
inline constexpr int kMayBeginEarly = 6;
inline constexpr int kVersionOfEarlyLaunches = 12030;
struct LaunchConfig {
  unsigned blocks[3], threads[3], shared_bytes;
  Stream stream;
  const LaunchAttribute* attributes;
  unsigned num_attributes;
};

// A window of `height` rows of `width_bytes`, copied between two places.
struct Copy2D {
  size_t from_x_bytes, from_y;
  int from_memory_type;
  const void* from_host;
  DevicePointer from_device;
  void* from_array;
  size_t from_pitch;  // bytes between rows
  size_t to_x_bytes, to_y;
  int to_memory_type;
  void* to_host;
  DevicePointer to_device;
  void* to_array;
  size_t to_pitch;
  size_t width_bytes, height;
};

struct PoolProperties {
  int allocation_type;  // 1: pinned, the only one
  int handle_types;     // 0: not shared with other processes
  int location_type;    // 1: a device
  int location_id;
  void* security;
  size_t max_bytes;  // 0: no limit
  unsigned char reserved[56];
};

// name in the library, member, arguments. Names with a version are those of CUDA 12.
#define KILN_CUDA_FUNCTIONS(F)                                                                    \
  F("cuInit", init, (unsigned flags))                                                             \
  F("cuDriverGetVersion", driver_version, (int* version))                                         \
  F("cuGetErrorName", error_name, (Result, const char** text))                                    \
  F("cuGetErrorString", error_text, (Result, const char** text))                                  \
  F("cuDeviceGetCount", device_count, (int* count))                                               \
  F("cuDeviceGet", device_get, (Device*, int ordinal))                                            \
  F("cuDeviceGetName", device_name, (char* name, int size, Device))                               \
  F("cuDeviceGetAttribute", device_attribute, (int* value, Attribute, Device))                    \
  F("cuDeviceTotalMem_v2", device_memory, (size_t* bytes, Device))                                \
  F("cuDevicePrimaryCtxRetain", primary_context, (Context*, Device))                              \
  F("cuCtxPushCurrent_v2", push_context, (Context))                                               \
  F("cuCtxPopCurrent_v2", pop_context, (Context*))                                                \
  F("cuCtxGetCurrent", current_context, (Context*))                                               \
  F("cuCtxSetCurrent", set_context, (Context))                                                    \
  F("cuCtxGetDevice", current_device, (Device*))                                                  \
  F("cuCtxSynchronize", synchronize, ())                                                          \
  F("cuModuleLoadDataEx", load_module,                                                            \
    (Module*, const void* image, unsigned count, int* options, void** values))                    \
  F("cuModuleUnload", unload_module, (Module))                                                    \
  F("cuModuleGetFunction", find_function, (Function*, Module, const char* name))                  \
  F("cuFuncGetAttribute", function_attribute, (int* value, FunctionAttribute, Function))          \
  F("cuFuncSetAttribute", set_function_attribute, (Function, FunctionAttribute, int value))       \
  F("cuLaunchKernelEx", launch, (const LaunchConfig*, Function, void** arguments, void** extra))  \
  F("cuTensorMapEncodeTiled", encode_tensor_map,                                                  \
    (TensorMap*, TensorMapType, unsigned rank, void* data, const uint64_t* sizes,                 \
     const uint64_t* stride_bytes, const uint32_t* box, const uint32_t* element_steps,            \
     int interleave, int swizzle, int promotion, int fill))                                       \
  F("cuMemAlloc_v2", allocate, (DevicePointer*, size_t bytes))                                    \
  F("cuMemFree_v2", free, (DevicePointer))                                                        \
  F("cuMemHostAlloc", allocate_host, (void** data, size_t bytes, unsigned flags))                 \
  F("cuMemFreeHost", free_host, (void* data))                                                     \
  F("cuMemHostGetDevicePointer_v2", host_device_pointer, (DevicePointer*, void*, unsigned flags)) \
  F("cuMemcpyHtoDAsync_v2", copy_to_device, (DevicePointer, const void*, size_t bytes, Stream))   \
  F("cuMemcpyDtoHAsync_v2", copy_to_host, (void*, DevicePointer, size_t bytes, Stream))           \
  F("cuMemcpyDtoDAsync_v2", copy, (DevicePointer to, DevicePointer from, size_t bytes, Stream))   \
  F("cuMemcpy2DAsync_v2", copy_2d, (const Copy2D*, Stream))                                       \
  F("cuMemPoolCreate", make_pool, (Pool*, const PoolProperties*))                                 \
  F("cuMemPoolSetAttribute", set_pool_attribute, (Pool, int attribute, void* value))              \
  F("cuMemAllocFromPoolAsync", allocate_async, (DevicePointer*, size_t bytes, Pool, Stream))      \
  F("cuMemFreeAsync", free_async, (DevicePointer, Stream))                                        \
  F("cuStreamCreate", make_stream, (Stream*, unsigned flags))                                     \
  F("cuStreamDestroy_v2", destroy_stream, (Stream))                                               \
  F("cuStreamSynchronize", synchronize_stream, (Stream))                                          \
  F("cuEventCreate", make_event, (Event*, unsigned flags))                                        \
  F("cuEventDestroy_v2", destroy_event, (Event))                                                  \
  F("cuEventRecord", record_event, (Event, Stream))                                               \
  F("cuEventElapsedTime", elapsed_time, (float* milliseconds, Event from, Event to))              \
  F("cuMemsetD8Async", fill_bytes, (DevicePointer, unsigned char value, size_t bytes, Stream))    \
  F("cuStreamGetCaptureInfo_v2", stream_capture,                                                  \
    (Stream, int* status, uint64_t* id, Graph*, const void** nodes, size_t* num_nodes))           \
  F("cuUserObjectCreate", make_user_object,                                                       \
    (UserObject*, void* data, void (*end)(void* data), unsigned references, unsigned flags))      \
  F("cuGraphRetainUserObject", keep_user_object,                                                  \
    (Graph, UserObject, unsigned references, unsigned flags))                                     \
  F("cuThreadExchangeStreamCaptureMode", exchange_capture_mode, (int* mode))

// Thread-safe and immutable. Its functions are called with a context current unless the driver
// wants none.
struct Driver {
  // The process's driver, loaded and initialized by the first call and kept; a failure is kept too.
  // FAILED_PRECONDITION in a sentence where there is no driver, one too old, or one that does not
  // start. KILN_LIBCUDA names another library, for tests.
  static absl::StatusOr<const Driver*> Get();
  // As Get, from that library and not kept.
  static absl::StatusOr<std::unique_ptr<const Driver>> Load(const std::string& library);

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  std::string Describe(Result result) const;
  // OK, or an error that begins with `what`: RESOURCE_EXHAUSTED where there is no memory left,
  // FAILED_PRECONDITION for what the machine or a stream capture does not allow, else INTERNAL,
  // which says where a kernel has faulted and the process's context is lost.
  absl::Status Check(Result result, absl::string_view what) const;

  absl::StatusOr<int> DeviceCount() const;  // FAILED_PRECONDITION where it is 0
  absl::StatusOr<int> Get(Attribute attribute, Device device) const;

  int version = 0;  // of CUDA: 12040 is 12.4
#define KILN_CUDA_MEMBER(name, member, arguments) Result(*member) arguments = nullptr;
  KILN_CUDA_FUNCTIONS(KILN_CUDA_MEMBER)
#undef KILN_CUDA_MEMBER
};

// Makes a context current for a scope.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  const absl::Status& status() const { return status_; }
  // Makes it current again where somebody called meanwhile has made another so.
  absl::Status Renew() const;

 private:
  const Driver& driver_;
  const Context context_;
  bool pushed_ = false;
  absl::Status status_;
};

// Lets calls in a scope do what a stream capture elsewhere in the process would forbid: they use
// no stream of the user's.
class RelaxedCaptureScope {
 public:
  explicit RelaxedCaptureScope(const Driver& driver);
  ~RelaxedCaptureScope();
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
};

}  // namespace kiln::cuda
