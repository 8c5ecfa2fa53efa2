// The runtime of a GCU, libgcu_runtime.so, found at run time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gcu/gcu_runtime.h"

namespace kiln {
namespace v1 {
class Device;
}
}  // namespace kiln

namespace kiln::gcu {

// X(name) of each function that is used.
#define KILN_GCU_FUNCTIONS(X)    \
  X(error_name)                  \
  X(get_last_error)              \
  X(get_device_count)            \
  X(get_device_properties)       \
  X(context_create)              \
  X(stream_create)               \
  X(stream_destroy)              \
  X(stream_synchronize)          \
  X(stream_wait_event)           \
  X(event_create)                \
  X(event_destroy)               \
  X(event_record)                \
  X(event_get_report)            \
  X(malloc)                      \
  X(free)                        \
  X(memcpy)                      \
  X(memcpy_async)                \
  X(module_load)                 \
  X(module_unload)               \
  X(module_get_function)         \
  X(function_get_argument_count) \
  X(function_get_argument)       \
  X(function_get_l2_bytes)       \
  X(launch_kernel)               \
  X(set_tracing)                 \
  X(write_trace)

struct Runtime {
#define KILN_GCU_MEMBER(name) decltype(&gcu_##name) name = nullptr;
  KILN_GCU_FUNCTIONS(KILN_GCU_MEMBER)
#undef KILN_GCU_MEMBER

  gcu_context_t context = nullptr;  // the process's, of device 0
  gcu_device_properties properties{};
  std::string trace_path;  // $KILN_GCU_TRACE when the runtime was loaded; "": nothing is traced

  // Loaded once: what $KILN_LIBGCU names, else libgcu_runtime.so where the loader looks, beside
  // this library or program, or in lib beside its folder. FAILED_PRECONDITION where there is none,
  // or it lacks a function, or has no device; INVALID_ARGUMENT where $KILN_GCU_TRACE cannot be
  // written.
  static absl::StatusOr<const Runtime*> Get();
  // `code` as a status: "WHAT: the runtime's text".
  absl::Status Check(int code, absl::string_view what) const;
};

// "" and "native": the profile of the runtime's device, where there is one; else the first profile.
absl::StatusOr<v1::Device> DescribeGcuOrNative(absl::string_view arch, int threads);

// FAILED_PRECONDITION unless the runtime's device is of that profile.
absl::Status CheckRunsOnGcu(const Runtime& runtime, absl::string_view profile);

}  // namespace kiln::gcu
