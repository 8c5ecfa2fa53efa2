#include "tests/unit/client/cuda/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "client/runtime/cuda/driver.h"

namespace {

using kiln::cuda::Copy2D;
using kiln::cuda::DevicePointer;
using kiln::cuda::LaunchConfig;
using kiln::testing::FakeCuda;
using kiln::testing::FakeTensorMap;

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidImage = 200, kInvalidContext = 201,
              kNoBinary = 209;
constexpr int kNotFound = 500, kCaptureUnsupported = 900;

struct FakeModule {
  std::string text;
  int device;
};
struct FakeFunction {
  std::string name;
  int device;
  int most_shared = 48 << 10;
};
struct FakeObject {
  void* data;
  void (*end)(void* data);
};
struct Allocation {
  size_t bytes;
  int device;
  bool pooled;
};

struct State {
  std::recursive_mutex mutex;
  FakeCuda control;
  std::map<uintptr_t, Allocation> memory;
  std::deque<std::function<int()>> queue;
  int fault = 0;  // for ever after
  std::deque<FakeFunction> functions;
  std::map<void*, std::unique_ptr<FakeModule>> modules;
  std::deque<FakeObject> objects;
  std::vector<FakeObject*> kept;  // by graphs that were captured
};
State& S() {
  static auto* state = new State;
  return *state;
}

thread_local std::vector<int*> contexts;
thread_local int capture_mode = 0;
thread_local bool ending_objects = false;
int context_of[8] = {0, 1, 2, 3, 4, 5, 6, 7};

int Current() {
  return contexts.empty() || contexts.back() == nullptr ? -1 : *contexts.back();
}

void Misuse(const std::string& what) {
  if (S().control.misuse.empty()) S().control.misuse = what;
}

// Counts a call; what a capture forbids, and what needs a context, fails.
int Enter(const char* name, bool needs_context = true, bool unsafe = false) {
  ++S().control.calls[name];
  if (ending_objects) Misuse(std::string(name) + " where an object ends");
  if (S().fault != 0) return S().fault;
  if (needs_context && Current() < 0) {
    Misuse(std::string(name) + " without a context");
    return kInvalidContext;
  }
  if (unsafe && S().control.capturing && capture_mode != kiln::cuda::kCaptureRelaxed) {
    Misuse(std::string(name) + " in a capture");
    return kCaptureUnsupported;
  }
  return 0;
}
#define ENTER(...)                                             \
  const std::lock_guard<std::recursive_mutex> lock(S().mutex); \
  if (const int refused = Enter(__VA_ARGS__)) return refused

int Drain() {
  while (!S().queue.empty()) {
    const std::function<int()> work = std::move(S().queue.front());
    S().queue.pop_front();
    if (S().fault == 0) S().fault = work();
  }
  return S().fault;
}

int Enqueue(std::function<int()> work) {
  S().queue.push_back(std::move(work));
  return 0;
}

// Whether the bytes lie in one allocation of the current device.
bool IsMemory(DevicePointer at, size_t bytes) {
  auto it = S().memory.upper_bound(static_cast<uintptr_t>(at));
  if (it == S().memory.begin()) return false;
  --it;
  return at + bytes <= it->first + it->second.bytes && it->second.device == Current();
}

int Allocate(DevicePointer* out, size_t bytes, bool pooled) {
  FakeCuda& control = S().control;
  if (bytes == 0) return kInvalidValue;
  if (control.used_bytes + static_cast<int64_t>(bytes) > control.memory_bytes) return kOutOfMemory;
  void* data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(data, 0xee, bytes);
  S().memory[reinterpret_cast<uintptr_t>(data)] = {bytes, Current(), pooled};
  control.used_bytes += static_cast<int64_t>(bytes);
  ++control.allocations;
  *out = reinterpret_cast<DevicePointer>(data);
  return 0;
}

int Free(DevicePointer data) {
  const auto it = S().memory.find(static_cast<uintptr_t>(data));
  if (it == S().memory.end()) {
    Misuse("a free of what is no allocation");
    return kInvalidValue;
  }
  S().control.used_bytes -= static_cast<int64_t>(it->second.bytes);
  --S().control.allocations;
  std::memset(reinterpret_cast<void*>(data), 0xdd, it->second.bytes);
  std::free(reinterpret_cast<void*>(data));
  S().memory.erase(it);
  return 0;
}

}  // namespace

extern "C" {

FakeCuda* fake_cuda() {
  S().control.drain = [] {
    const std::lock_guard<std::recursive_mutex> lock(S().mutex);
    Drain();
  };
  S().control.end_graphs = [] {
    std::thread([] {
      const std::lock_guard<std::recursive_mutex> lock(S().mutex);
      ending_objects = true;
      for (FakeObject* object : std::exchange(S().kept, {})) object->end(object->data);
    }).join();
  };
  return &S().control;
}

int cuInit(unsigned) {
  ENTER("cuInit", false);
  return S().control.devices == 0 ? 100 : 0;
}
int cuDriverGetVersion(int* version) {
  ENTER("cuDriverGetVersion", false);
  *version = S().control.version;
  return 0;
}
int cuGetErrorName(int result, const char** text) {
  *text = result == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == 100 ? "CUDA_ERROR_NO_DEVICE"
                          : "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int result, const char** text) {
  *text = result == 2 ? "out of memory" : result == 100 ? "no device" : "something else";
  return 0;
}
int cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount", false);
  *count = S().control.devices;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  ENTER("cuDeviceGet", false);
  if (ordinal < 0 || ordinal >= S().control.devices) return 101;
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  ENTER("cuDeviceGetName", false);
  std::strncpy(name, "Fake H100", static_cast<size_t>(size));
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER("cuDeviceGetAttribute", false);
  const std::map<int, int> values = {{1, 1024},
                                     {13, 1980000},
                                     {16, 132},
                                     {36, 2619000},
                                     {37, 5120},
                                     {38, 50 << 20},
                                     {75, S().control.major},
                                     {76, S().control.minor},
                                     {81, 228 << 10},
                                     {82, 65536},
                                     {97, 227 << 10},
                                     {115, S().control.pools ? 1 : 0}};
  const auto found = values.find(attribute);
  if (found == values.end()) return kInvalidValue;
  *value = found->second;
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  ENTER("cuDeviceTotalMem", false);
  *bytes = size_t{80} << 30;
  return 0;
}
int cuDevicePrimaryCtxRetain(int** context, int device) {
  ENTER("cuDevicePrimaryCtxRetain", false);
  *context = &context_of[device];
  return 0;
}
int cuCtxPushCurrent_v2(int* context) {
  ENTER("cuCtxPushCurrent", false);
  contexts.push_back(context);
  return 0;
}
int cuCtxPopCurrent_v2(int** context) {
  ENTER("cuCtxPopCurrent", false);
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
int cuCtxGetCurrent(int** context) {
  ENTER("cuCtxGetCurrent", false);
  *context = contexts.empty() ? nullptr : contexts.back();
  return 0;
}
int cuCtxSetCurrent(int* context) {
  ENTER("cuCtxSetCurrent", false);
  if (!contexts.empty()) contexts.pop_back();
  if (context != nullptr) contexts.push_back(context);
  return 0;
}
int cuCtxGetDevice(int* device) {
  ENTER("cuCtxGetDevice", false);
  if (Current() < 0) return kInvalidContext;
  *device = Current();
  return 0;
}
int cuCtxSynchronize() {
  ENTER("cuCtxSynchronize");
  if (S().control.capturing) {
    Misuse("cuCtxSynchronize in a capture");  // which it ends, in whatever mode
    return kCaptureUnsupported;
  }
  return Drain();
}

int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  ENTER("cuModuleLoadDataEx", true, true);
  const std::string text = static_cast<const char*>(image);
  if (S().control.refuses_ptx && text.rfind("//", 0) == 0) return kNoBinary;
  if (S().control.refuses_cubins && text.rfind("ELF", 0) == 0) return kInvalidImage;
  auto made = std::make_unique<FakeModule>(FakeModule{text, Current()});
  *module = made.get();
  S().modules[*module] = std::move(made);
  ++S().control.modules;
  return 0;
}
int cuModuleUnload(void* module) {
  ENTER("cuModuleUnload", true, true);
  Drain();
  if (S().modules.erase(module) == 0) Misuse("an unload of what is no module");
  --S().control.modules;
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER("cuModuleGetFunction");
  const FakeModule& in = *S().modules.at(module);
  if (in.text.find(std::string(".entry ") + name + "(") == std::string::npos) return kNotFound;
  *function = &S().functions.emplace_back(FakeFunction{name, in.device});
  return 0;
}
int cuFuncGetAttribute(int* value, int, void*) {
  ENTER("cuFuncGetAttribute");
  *value = 1024;
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  ENTER("cuFuncSetAttribute");
  if (attribute != 8 || value > 227 << 10) return kInvalidValue;
  static_cast<FakeFunction*>(function)->most_shared = value;
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* data, const uint64_t* sizes,
                           const uint64_t* stride_bytes, const uint32_t* box,
                           const uint32_t* element_steps, int, int, int, int) {
  ENTER("cuTensorMapEncodeTiled", false);
  FakeTensorMap made{reinterpret_cast<uint64_t>(data), type, rank, {}, {}, {}};
  if (made.data % 16 != 0 || rank < 2 || rank > 5) return kInvalidValue;
  for (unsigned i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || box[i] == 0 || box[i] > 256 || element_steps[i] != 1) return kInvalidValue;
    made.sizes[i] = sizes[i];
    made.box[i] = box[i];
    if (i + 1 == rank) break;
    if (stride_bytes[i] % 16 != 0) return kInvalidValue;
    made.stride_bytes[i] = stride_bytes[i];
  }
  S().control.maps.push_back(made);
  const uint64_t number = S().control.maps.size() - 1;
  std::memcpy(map, &number, sizeof(number));
  return 0;
}
int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void**) {
  ENTER("cuLaunchKernelEx");
  const auto& of = *static_cast<FakeFunction*>(function);
  if (of.device != Current()) Misuse("a launch on another device than the module's");
  const auto& [bx, by, bz] = config->blocks;
  const auto& [tx, ty, tz] = config->threads;
  if (bx * by * bz == 0 || tx * ty * tz == 0 || tx * ty * tz > 1024 ||
      static_cast<int>(config->shared_bytes) > of.most_shared) {
    return kInvalidValue;
  }
  const bool begins_early = config->num_attributes == 1;
  if (begins_early && (config->attributes->kind != 6 || config->attributes->value[0] != 1)) {
    return kInvalidValue;
  }
  S().control.launches.push_back({of.name,
                                  {bx, by, bz},
                                  {tx, ty, tz},
                                  config->shared_bytes,
                                  config->stream,
                                  of.device,
                                  begins_early});
  const auto known = S().control.kernels.find(of.name);
  if (known == S().control.kernels.end()) return kNotFound;
  std::vector<uint64_t> values(known->second.arguments);
  for (size_t i = 0; i < values.size(); ++i) std::memcpy(&values[i], arguments[i], 8);
  return Enqueue([values = std::move(values), body = known->second.body] { return body(values); });
}

int cuMemAlloc_v2(DevicePointer* data, size_t bytes) {
  ENTER("cuMemAlloc", true, true);
  return Allocate(data, bytes, false);
}
int cuMemFree_v2(DevicePointer data) {
  ENTER("cuMemFree", true, true);
  const auto it = S().memory.find(static_cast<uintptr_t>(data));
  if (it != S().memory.end() && it->second.pooled) Misuse("a free that does not wait");
  Drain();  // as the driver waits for the device
  return Free(data);
}
int cuMemHostAlloc(void** data, size_t bytes, unsigned flags) {
  ENTER("cuMemHostAlloc", true, true);
  if (flags != 3) Misuse("host memory that not all devices see");
  *data = std::calloc(1, bytes);
  return 0;
}
int cuMemFreeHost(void* data) {
  ENTER("cuMemFreeHost", false, true);
  Drain();
  std::free(data);
  return 0;
}
int cuMemHostGetDevicePointer_v2(DevicePointer* device, void* host, unsigned) {
  ENTER("cuMemHostGetDevicePointer");
  *device = reinterpret_cast<DevicePointer>(host);
  return 0;
}
int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, void*) {
  ENTER("cuMemcpyHtoDAsync");
  if (!IsMemory(to, bytes)) Misuse("an upload outside of memory");
  return Enqueue([=] {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return 0;
  });
}
int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, void*) {
  ENTER("cuMemcpyDtoHAsync");
  if (!IsMemory(from, bytes)) Misuse("a download from outside of memory");
  return Enqueue([=] {
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return 0;
  });
}
int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void*) {
  ENTER("cuMemcpyDtoDAsync");
  if (!IsMemory(to, bytes) || !IsMemory(from, bytes)) Misuse("a copy outside of memory");
  return Enqueue([=] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return 0;
  });
}
int cuMemcpy2DAsync_v2(const Copy2D* given, void*) {
  ENTER("cuMemcpy2DAsync");
  const Copy2D copy = *given;
  if (copy.from_pitch < copy.width_bytes || copy.to_pitch < copy.width_bytes) return kInvalidValue;
  if (!IsMemory(copy.to_device, (copy.height - 1) * copy.to_pitch + copy.width_bytes) ||
      !IsMemory(copy.from_device, (copy.height - 1) * copy.from_pitch + copy.width_bytes)) {
    Misuse("a copy of rows outside of memory");
  }
  return Enqueue([copy] {
    for (size_t row = 0; row < copy.height; ++row) {
      std::memcpy(reinterpret_cast<char*>(copy.to_device) + row * copy.to_pitch,
                  reinterpret_cast<char*>(copy.from_device) + row * copy.from_pitch,
                  copy.width_bytes);
    }
    return 0;
  });
}

int cuMemPoolCreate(void** pool, const void*) {
  ENTER("cuMemPoolCreate", false);
  *pool = &S();
  return 0;
}
int cuMemPoolSetAttribute(void*, int, void*) {
  ENTER("cuMemPoolSetAttribute", false);
  return 0;
}
int cuMemAllocFromPoolAsync(DevicePointer* data, size_t bytes, void*, void*) {
  ENTER("cuMemAllocFromPoolAsync");
  return Allocate(data, bytes, true);
}
int cuMemFreeAsync(DevicePointer data, void*) {
  ENTER("cuMemFreeAsync");
  return Enqueue([data] { return Free(data); });
}
int cuStreamCreate(void** stream, unsigned flags) {
  ENTER("cuStreamCreate");
  if (flags != 1) Misuse("a stream that waits for the legacy one");
  *stream = new int(0);
  return 0;
}
int cuStreamDestroy_v2(void* stream) {
  ENTER("cuStreamDestroy", false);
  delete static_cast<int*>(stream);
  return 0;
}
// The fake's clock counts what it has run.
int cuEventCreate(void** event, unsigned) {
  ENTER("cuEventCreate");
  *event = new float(-1);
  return 0;
}
int cuEventDestroy_v2(void* event) {
  ENTER("cuEventDestroy");
  return Enqueue([event] {
    delete static_cast<float*>(event);
    return 0;
  });
}
int cuEventRecord(void* event, void*) {
  ENTER("cuEventRecord");
  return Enqueue([event] {
    static float clock = 0;
    *static_cast<float*>(event) = clock++;
    return 0;
  });
}
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  ENTER("cuEventElapsedTime");
  const float begin = *static_cast<float*>(from), end = *static_cast<float*>(to);
  if (begin < 0 || end <= begin) Misuse("a time between events that have not come");
  *milliseconds = end - begin;
  return 0;
}
int cuMemsetD8Async(DevicePointer to, unsigned char value, size_t bytes, void*) {
  ENTER("cuMemsetD8Async");
  if (!IsMemory(to, bytes)) Misuse("a fill outside of memory");
  return Enqueue([=] {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return 0;
  });
}
int cuStreamSynchronize(void*) {
  ENTER("cuStreamSynchronize", true, true);
  return Drain();
}
int cuStreamGetCaptureInfo_v2(void*, int* status, uint64_t*, void** graph, const void**, size_t*) {
  ENTER("cuStreamGetCaptureInfo");
  *status = S().control.capturing ? 1 : 0;
  if (S().control.capturing) *graph = &S().kept;
  return 0;
}
int cuUserObjectCreate(void** object, void* data, void (*end)(void*), unsigned references,
                       unsigned flags) {
  ENTER("cuUserObjectCreate", false);
  if (references != 1 || flags != 1) return kInvalidValue;
  *object = &S().objects.emplace_back(FakeObject{data, end});
  return 0;
}
int cuGraphRetainUserObject(void* graph, void* object, unsigned references, unsigned flags) {
  ENTER("cuGraphRetainUserObject", false);
  if (graph != &S().kept || references != 1 || flags != 1) return kInvalidValue;
  S().kept.push_back(static_cast<FakeObject*>(object));
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER("cuThreadExchangeStreamCaptureMode", false);
  std::swap(*mode, capture_mode);
  return 0;
}

}  // extern "C"
