#include "client/runtime/gcu/runtime.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/device_gcu.h"
#include "proto/base/status_macros.h"

namespace kiln::gcu {
namespace {

constexpr char kLibrary[] = "libgcu_runtime.so";

// Where the library may be, best first.
std::vector<std::string> Places() {
  const char* named = std::getenv("KILN_LIBGCU");
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> places = {kLibrary};
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&Places), &info) == 0) return places;
  const std::string self = info.dli_fname == nullptr ? "" : info.dli_fname;
  const size_t slash = self.rfind('/');
  if (slash == std::string::npos) return places;
  const std::string folder = self.substr(0, slash);
  for (const char* relative : {"/", "/../lib/"}) {
    places.push_back(absl::StrCat(folder, relative, kLibrary));
  }
  return places;
}

absl::StatusOr<std::unique_ptr<const Runtime>> Load() {
  void* handle = nullptr;
  std::string tried, library;
  for (const std::string& place : Places()) {
    // Never closed: what it made may be in use until the process ends.
    handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    library = place;
    if (handle != nullptr) break;
    if (tried.empty()) tried = dlerror();
  }
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("there is no runtime of a GCU here: ", tried,
                                                      "; KILN_LIBGCU names one elsewhere"));
  }
  auto runtime = std::make_unique<Runtime>();
#define KILN_GCU_FIND(name)                                                                     \
  runtime->name = reinterpret_cast<decltype(runtime->name)>(dlsym(handle, "gcu_" #name));       \
  if (runtime->name == nullptr) {                                                               \
    return absl::FailedPreconditionError(absl::StrCat(library, " has no function gcu_" #name)); \
  }
  KILN_GCU_FUNCTIONS(KILN_GCU_FIND)
#undef KILN_GCU_FIND
  int count = 0;
  KILN_RETURN_IF_ERROR(runtime->Check(runtime->get_device_count(&count), "cannot count GCUs"));
  if (count == 0) return absl::FailedPreconditionError("this machine has no GCU");
  absl::Status status = runtime->Check(runtime->get_device_properties(0, &runtime->properties),
                                       "cannot describe GCU 0");
  if (status.ok()) {
    status = runtime->Check(runtime->context_create(0, &runtime->context), "cannot use GCU 0");
  }
  if (!status.ok()) return absl::FailedPreconditionError(status.message());
  const char* trace = std::getenv("KILN_GCU_TRACE");
  if (trace == nullptr || *trace == '\0') return runtime;
  runtime->trace_path = trace;
  if (runtime->set_tracing(runtime->context, 1) != GCU_OK ||
      runtime->write_trace(runtime->context, trace) != GCU_OK) {
    return absl::InvalidArgumentError(absl::StrCat("KILN_GCU_TRACE: cannot write ", trace));
  }
  return runtime;
}

absl::StatusCode CodeOf(int code) {
  switch (code) {
    case GCU_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case GCU_BAD_BINARY:
    case GCU_NOT_FOUND:  // a kernel in its module
      return absl::StatusCode::kDataLoss;
    case GCU_WRONG_PROFILE:
      return absl::StatusCode::kFailedPrecondition;
    case GCU_INDEX:
      return absl::StatusCode::kOutOfRange;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<const Runtime*> Runtime::Get() {
  static const auto* runtime = new absl::StatusOr<std::unique_ptr<const Runtime>>(Load());
  KILN_RETURN_IF_ERROR(runtime->status());
  return (*runtime)->get();
}

absl::Status Runtime::Check(int code, absl::string_view what) const {
  if (code == GCU_OK) return absl::OkStatus();
  return absl::Status(CodeOf(code),
                      absl::StrCat(what, ": ", error_name(code), ": ", get_last_error()));
}

absl::StatusOr<v1::Device> DescribeGcuOrNative(absl::string_view arch, int threads) {
  if (!arch.empty() && arch != "native") return DescribeGcu(arch, threads);
  const absl::StatusOr<const Runtime*> runtime = Runtime::Get();
  return DescribeGcu(runtime.ok() ? (*runtime)->properties.name : KnownGcuNames().front(), threads);
}

absl::Status CheckRunsOnGcu(const Runtime& runtime, absl::string_view profile) {
  if (profile == runtime.properties.name) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the program is for a ", profile, "; the device here is a ", runtime.properties.name));
}

}  // namespace kiln::gcu
