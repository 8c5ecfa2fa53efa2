#include "tests/unit/client/gcu/watched_runtime.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

#include "client/include/gcu/gcu_runtime.h"

namespace {

std::atomic<int64_t> blocks, streams, events, modules, calls, bytes_to_device, bytes_to_host,
    copies_to_device, copies_to_host, waits, fails_at{-1};
std::atomic<int> code_of_failure;
std::atomic<bool> drops_waits;
thread_local bool has_failed = false;  // the thread's last call is the one that was made to fail

void* Library() {
  static void* library = [] {
    void* opened = dlopen(KILN_GCU_RUNTIME, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) std::abort();
    return opened;
  }();
  return library;
}

template <typename Function>
Function Real(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(Library(), name));
}
#define REAL(name) Real(&name, #name)

bool Fails() {
  has_failed = calls++ == fails_at;
  return has_failed;
}

// The call's code, and `live` one more where it did something.
int Made(int code, std::atomic<int64_t>& live) {
  if (code == GCU_OK) ++live;
  return code;
}

void Count(uint64_t bytes, int kind) {
  (kind == GCU_HOST_TO_DEVICE ? bytes_to_device : bytes_to_host) += static_cast<int64_t>(bytes);
  ++(kind == GCU_HOST_TO_DEVICE ? copies_to_device : copies_to_host);
}

int Gone(int code, std::atomic<int64_t>& live) {
  if (code == GCU_OK) --live;
  return code;
}

}  // namespace

#define WATCHED(name, ...) Fails() ? code_of_failure.load() : REAL(name)(__VA_ARGS__)

void gcu_watch_reset(int64_t new_fails_at, int code) {
  calls = bytes_to_device = bytes_to_host = copies_to_device = copies_to_host = waits = 0;
  fails_at = new_fails_at;
  code_of_failure = code;
}

void gcu_watch_drop_waits(int drop) {
  drops_waits = drop != 0;
}

void gcu_watch_read(GcuWatch* watch) {
  *watch = {blocks,          streams,       events,           modules,        calls,
            bytes_to_device, bytes_to_host, copies_to_device, copies_to_host, waits};
}

const char* gcu_get_last_error() {
  return has_failed ? "the test wants it" : REAL(gcu_get_last_error)();
}

int gcu_stream_create(gcu_context_t context, gcu_stream_t* stream) {
  return Made(WATCHED(gcu_stream_create, context, stream), streams);
}
int gcu_stream_destroy(gcu_stream_t stream) {
  return Gone(REAL(gcu_stream_destroy)(stream), streams);
}
int gcu_malloc(gcu_context_t context, uint64_t size, int memory_type, gcu_address_t* address) {
  return Made(WATCHED(gcu_malloc, context, size, memory_type, address), blocks);
}
int gcu_free(gcu_context_t context, gcu_address_t address, int memory_type) {
  return Gone(REAL(gcu_free)(context, address, memory_type), blocks);
}
int gcu_memcpy(gcu_context_t context, uint64_t to, uint64_t from, uint64_t size, int kind) {
  Count(size, kind);
  return WATCHED(gcu_memcpy, context, to, from, size, kind);
}
int gcu_memcpy_async(gcu_stream_t stream, uint64_t to, uint64_t from, uint64_t size, int kind) {
  Count(size, kind);
  return WATCHED(gcu_memcpy_async, stream, to, from, size, kind);
}
int gcu_module_load(gcu_context_t context, const void* binary, size_t size, gcu_module_t* module) {
  return Made(WATCHED(gcu_module_load, context, binary, size, module), modules);
}
int gcu_module_unload(gcu_module_t module) {
  return Gone(REAL(gcu_module_unload)(module), modules);
}
int gcu_module_get_function(gcu_module_t module, const char* name, gcu_function_t* function) {
  return WATCHED(gcu_module_get_function, module, name, function);
}
int gcu_function_get_argument_count(gcu_function_t function, uint32_t* count) {
  return WATCHED(gcu_function_get_argument_count, function, count);
}
int gcu_function_get_argument(gcu_function_t function, uint32_t number, gcu_argument_info* info) {
  return WATCHED(gcu_function_get_argument, function, number, info);
}
int gcu_function_get_l2_bytes(gcu_function_t function, uint64_t* bytes) {
  return WATCHED(gcu_function_get_l2_bytes, function, bytes);
}
int gcu_launch_kernel(gcu_function_t function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                      uint32_t block_x, uint32_t block_y, uint32_t block_z, void** args,
                      uint64_t shared_mem, gcu_stream_t stream) {
  return WATCHED(gcu_launch_kernel, function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                 args, shared_mem, stream);
}
int gcu_stream_synchronize(gcu_stream_t stream) {
  return WATCHED(gcu_stream_synchronize, stream);
}
int gcu_stream_wait_event(gcu_stream_t stream, gcu_event_t event) {
  ++waits;
  if (drops_waits) return GCU_OK;
  return WATCHED(gcu_stream_wait_event, stream, event);
}
int gcu_event_create(gcu_context_t context, gcu_event_t* event) {
  return Made(WATCHED(gcu_event_create, context, event), events);
}
int gcu_event_destroy(gcu_event_t event) {
  return Gone(REAL(gcu_event_destroy)(event), events);
}
int gcu_event_record(gcu_event_t event, gcu_stream_t stream) {
  return WATCHED(gcu_event_record, event, stream);
}
int gcu_event_get_report(gcu_event_t event, gcu_launch_report* report) {
  return WATCHED(gcu_event_get_report, event, report);
}

// What needs no watch.
const char* gcu_error_name(int status) {
  return REAL(gcu_error_name)(status);
}
int gcu_get_device_count(int* count) {
  return REAL(gcu_get_device_count)(count);
}
int gcu_get_device_properties(int device, gcu_device_properties* properties) {
  return REAL(gcu_get_device_properties)(device, properties);
}
int gcu_context_create(int device, gcu_context_t* context) {
  return REAL(gcu_context_create)(device, context);
}
int gcu_set_tracing(gcu_context_t context, int on) {
  return REAL(gcu_set_tracing)(context, on);
}
int gcu_write_trace(gcu_context_t context, const char* path) {
  return REAL(gcu_write_trace)(context, path);
}
