#include "client/runtime/cuda/device.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "client/runtime/cuda/driver.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/device_cpu.h"
#include "proto/base/device_gpu.h"
#include "proto/base/status_macros.h"

namespace kiln::cuda {
namespace {

struct Capability {
  int major = 0, minor = 0;
};

absl::StatusOr<Device> DeviceNumber(const Driver& driver, int ordinal) {
  Device device = 0;
  KILN_RETURN_IF_ERROR(
      driver.Check(driver.device_get(&device, ordinal), absl::StrCat("there is no GPU ", ordinal)));
  return device;
}

absl::StatusOr<Capability> CapabilityOf(const Driver& driver, Device device) {
  Capability out;
  KILN_ASSIGN_OR_RETURN(out.major, driver.Get(Attribute::kComputeMajor, device));
  KILN_ASSIGN_OR_RETURN(out.minor, driver.Get(Attribute::kComputeMinor, device));
  return out;
}

std::string NameOf(const Driver& driver, Device device) {
  char name[256] = {};
  if (driver.device_name(name, sizeof(name) - 1, device) != kSuccess) return "a GPU";
  return name;
}

absl::Status SetMemories(const Driver& driver, Device gpu, v1::Device& device) {
  for (v1::MemorySpace& space : *device.mutable_memory_spaces()) {
    switch (space.kind()) {
      case v1::MemorySpace::KIND_GLOBAL: {
        size_t bytes = 0;
        KILN_RETURN_IF_ERROR(
            driver.Check(driver.device_memory(&bytes, gpu), "cannot read the GPU's memory size"));
        space.set_bytes(static_cast<int64_t>(bytes));
        device.set_memory_bytes(static_cast<int64_t>(bytes));
        KILN_ASSIGN_OR_RETURN(const int64_t khz, driver.Get(Attribute::kMemoryClockKhz, gpu));
        KILN_ASSIGN_OR_RETURN(const int64_t bits, driver.Get(Attribute::kMemoryBusBits, gpu));
        space.set_bytes_per_second(2 * khz * 1000 * bits / 8);  // both edges of the clock
        break;
      }
      case v1::MemorySpace::KIND_L2: {
        KILN_ASSIGN_OR_RETURN(const int bytes, driver.Get(Attribute::kL2Bytes, gpu));
        space.set_bytes(bytes);
        break;
      }
      case v1::MemorySpace::KIND_SHARED: {
        KILN_ASSIGN_OR_RETURN(const int bytes,
                              driver.Get(Attribute::kSharedBytesPerMultiprocessor, gpu));
        space.set_bytes(bytes);
        break;
      }
      case v1::MemorySpace::KIND_REGISTERS: {
        KILN_ASSIGN_OR_RETURN(const int registers,
                              driver.Get(Attribute::kRegistersPerMultiprocessor, gpu));
        space.set_bytes(int64_t{4} * registers);
        device.set_registers(registers);
        break;
      }
      default:  // the driver does not say
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Device> DescribeGpuNumber(const Driver& driver, int ordinal) {
  KILN_ASSIGN_OR_RETURN(const Device gpu, DeviceNumber(driver, ordinal));
  KILN_ASSIGN_OR_RETURN(const Capability capability, CapabilityOf(driver, gpu));
  const std::string name = NameOf(driver, gpu);
  const std::string arch = GpuNameOfCapability(capability.major, capability.minor);
  if (arch.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", ordinal, " (", name, ") has compute capability ", capability.major,
                     ".", capability.minor, "; expected 8.0 or newer"));
  }
  KILN_ASSIGN_OR_RETURN(v1::Device device, DescribeGpu(arch));
  KILN_RETURN_IF_ERROR(SetMemories(driver, gpu, device));
  KILN_ASSIGN_OR_RETURN(const int units, driver.Get(Attribute::kMultiprocessors, gpu));
  device.set_compute_units(units);
  KILN_ASSIGN_OR_RETURN(const int khz, driver.Get(Attribute::kClockKhz, gpu));
  device.set_clock_mhz(khz / 1000);
  device.set_model_name(name);
  device.set_index(ordinal);
  device.set_driver_version(
      absl::StrCat("CUDA ", driver.version / 1000, ".", driver.version % 1000 / 10));
  return device;
}

absl::StatusOr<v1::Device> DescribeGpuOrNative(absl::string_view arch, int threads) {
  v1::Device device;
  if (arch.empty() || arch == "native") {
    KILN_ASSIGN_OR_RETURN(const Driver* driver, Driver::Get());
    KILN_RETURN_IF_ERROR(driver->DeviceCount().status());
    KILN_ASSIGN_OR_RETURN(device, DescribeGpuNumber(*driver, 0));
  } else {
    KILN_ASSIGN_OR_RETURN(device, DescribeGpu(arch));
  }
  device.set_processors(threads > 0 ? threads : PhysicalProcessors());
  return device;
}

absl::Status CheckRunsOnGpu(const Driver& driver, absl::string_view arch, int ordinal) {
  KILN_ASSIGN_OR_RETURN(const Device gpu, DeviceNumber(driver, ordinal));
  KILN_ASSIGN_OR_RETURN(const Capability capability, CapabilityOf(driver, gpu));
  if (RunsOnCapability(arch, capability.major, capability.minor)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the program is for ", arch, "; GPU ", ordinal, " (", NameOf(driver, gpu),
                   ") has compute capability ", capability.major, ".", capability.minor));
}

absl::StatusOr<int> FindGpuFor(const Driver& driver, absl::string_view arch) {
  KILN_ASSIGN_OR_RETURN(const int count, driver.DeviceCount());
  absl::Status first;
  for (int i = 0; i < count; ++i) {
    absl::Status status = CheckRunsOnGpu(driver, arch, i);
    if (status.ok()) return i;
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace kiln::cuda
