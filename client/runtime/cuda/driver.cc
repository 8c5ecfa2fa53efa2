#include "client/runtime/cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
// The first that takes PTX 8.0, which has what sm_90a needs.
constexpr int kOldestVersion = 12000;

// The driver's numbers for what more than one call can meet.
constexpr Result kDeinitialized = 4, kNotInitialized = 3, kStubLibrary = 34, kNoDevice = 100;
constexpr Result kInvalidImage = 200, kJitCompilerNotFound = 221;
constexpr Result kUnsupportedPtx = 222, kNotPermitted = 800, kNotSupported = 801;
constexpr Result kNotReady = 802, kMismatch = 803;
constexpr Result kFirstOfCapture = 900, kLastOfCapture = 908;

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// After these no call of the process succeeds: the context is lost.
bool IsFault(Result result) {
  constexpr Result kIllegalAddress = 700, kTimeout = 702;
  constexpr Result kFirstHardware = 714, kLastHardware = 719;
  return result == kIllegalAddress || result == kTimeout ||
         (result >= kFirstHardware && result <= kLastHardware);
}

absl::StatusCode CodeOf(Result result) {
  switch (result) {
    case kOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case kNotInitialized:
    case kDeinitialized:
    case kStubLibrary:
    case kNoDevice:
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kJitCompilerNotFound:
    case kUnsupportedPtx:
    case kNotPermitted:
    case kNotSupported:
    case kNotReady:
    case kMismatch:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return result >= kFirstOfCapture && result <= kLastOfCapture
                 ? absl::StatusCode::kFailedPrecondition
                 : absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<const Driver*> Driver::Get() {
  static const auto* driver = [] {
    const char* other = std::getenv("KILN_LIBCUDA");
    return new absl::StatusOr<std::unique_ptr<const Driver>>(
        Load(other != nullptr && *other != '\0' ? other : kLibrary));
  }();
  KILN_RETURN_IF_ERROR(driver->status());
  return (*driver)->get();
}

absl::StatusOr<std::unique_ptr<const Driver>> Driver::Load(const std::string& library) {
  // Never closed: the driver has threads of its own.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no driver for NVIDIA GPUs here: ", dlerror()));
  }
  auto driver = std::make_unique<Driver>();
  // First the version: an older driver lacks functions, and that is not what to say of it.
  driver->driver_version =
      reinterpret_cast<decltype(driver->driver_version)>(dlsym(handle, "cuDriverGetVersion"));
  if (driver->driver_version == nullptr || driver->driver_version(&driver->version) != kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, " is no driver for NVIDIA GPUs: it does not tell its version"));
  }
  if (driver->version < kOldestVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the driver for NVIDIA GPUs is for CUDA ", VersionText(driver->version), "; expected CUDA ",
        VersionText(kOldestVersion), " or newer (driver 525.60 or newer)"));
  }
#define KILN_CUDA_FIND(name, member, arguments)                                             \
  driver->member = reinterpret_cast<decltype(driver->member)>(dlsym(handle, name));         \
  if (driver->member == nullptr) {                                                          \
    return absl::FailedPreconditionError(absl::StrCat(library, " has no function ", name)); \
  }
  KILN_CUDA_FUNCTIONS(KILN_CUDA_FIND)
#undef KILN_CUDA_FIND
  KILN_RETURN_IF_ERROR(driver->Check(driver->init(0), "the driver for NVIDIA GPUs does not start"));
  return driver;
}

std::string Driver::Describe(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(result, &name) != kSuccess || name == nullptr) {
    return absl::StrCat("error ", result);
  }
  if (error_text(result, &text) != kSuccess || text == nullptr) return name;
  return absl::StrCat(name, " (", text, ")");
}

absl::Status Driver::Check(Result result, absl::string_view what) const {
  if (result == kSuccess) return absl::OkStatus();
  return absl::Status(
      CodeOf(result),
      absl::StrCat(what, ": ", Describe(result),
                   IsFault(result) ? "; a kernel has faulted, in this call or in an earlier one of "
                                     "the process, which cannot use the GPU any more"
                                   : ""));
}

absl::StatusOr<int> Driver::DeviceCount() const {
  int count = 0;
  KILN_RETURN_IF_ERROR(Check(device_count(&count), "cannot count NVIDIA GPUs"));
  if (count == 0) return absl::FailedPreconditionError("this machine has no NVIDIA GPU");
  return count;
}

absl::StatusOr<int> Driver::Get(Attribute attribute, Device device) const {
  int value = 0;
  KILN_RETURN_IF_ERROR(Check(
      device_attribute(&value, attribute, device),
      absl::StrCat("cannot read property ", static_cast<int>(attribute), " of GPU ", device)));
  return value;
}

ContextScope::ContextScope(const Driver& driver, Context context)
    : driver_(driver), context_(context) {
  Context current = nullptr;
  if (driver.current_context(&current) == kSuccess && current == context) return;
  status_ = driver.Check(driver.push_context(context), "cannot use the GPU's context");
  pushed_ = status_.ok();
}

ContextScope::~ContextScope() {
  Context popped = nullptr;
  if (pushed_) driver_.pop_context(&popped);
}

absl::Status ContextScope::Renew() const {
  Context current = nullptr;
  if (driver_.current_context(&current) == kSuccess && current == context_) return absl::OkStatus();
  return driver_.Check(driver_.set_context(context_), "cannot use the GPU's context");
}

RelaxedCaptureScope::RelaxedCaptureScope(const Driver& driver) : driver_(driver) {
  driver.exchange_capture_mode(&mode_);
}

RelaxedCaptureScope::~RelaxedCaptureScope() {
  driver_.exchange_capture_mode(&mode_);
}

}  // namespace kiln::cuda
