#include "client/device.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/runtime/cuda/device.h"
#include "client/runtime/gcu/runtime.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/device_cpu.h"
#include "proto/base/target_name.h"

namespace kiln {
namespace {

// compiler/codegen/null: nothing that runs, so any machine is one.
absl::StatusOr<v1::Device> DescribeNull(absl::string_view arch, int threads) {
  constexpr absl::string_view kArch = "loop-ir";
  if (!arch.empty() && arch != "native" && arch != kArch) {
    return absl::InvalidArgumentError(
        absl::StrCat("target null has no architecture '", arch, "'; known are native, ", kArch));
  }
  v1::Device device;
  device.set_target(v1::TARGET_NULL);
  device.set_arch(std::string(kArch));
  device.set_processors(threads > 0 ? threads : PhysicalProcessors());
  return device;
}

struct KnownTarget {
  v1::Target target;
  absl::StatusOr<v1::Device> (*describe)(absl::string_view arch, int threads);
};
constexpr KnownTarget kTargets[] = {
    {v1::TARGET_CPP, &DescribeCpu},
    {v1::TARGET_PTX, &cuda::DescribeGpuOrNative},
    {v1::TARGET_GCU, &gcu::DescribeGcuOrNative},
    {v1::TARGET_NULL, &DescribeNull},
};

}  // namespace

absl::StatusOr<v1::Device> DescribeDevice(absl::string_view target, absl::string_view arch,
                                          int threads) {
  const int number = target.empty() ? static_cast<int>(v1::TARGET_CPP) : TargetNumber(target);
  for (const KnownTarget& known : kTargets) {
    if (known.target == number) return known.describe(arch, threads);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown target '", target, "'; known are ",
                                                 absl::StrJoin(KnownTargets(), ", ")));
}

std::vector<absl::string_view> KnownTargets() {
  std::vector<absl::string_view> names;
  for (const KnownTarget& known : kTargets) names.push_back(TargetName(known.target));
  return names;
}

}  // namespace kiln
