// The layout in which a contraction reads its panel operand, made by a kernel of its own: for
// operands that stay the same over many runs of the contraction.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"

namespace kiln::schedule::cpu {

// Where what `kernel` would pack into panels in every run is fixed (compiler/ir/fixed_values.h) and
// the panels take at most `most_bytes`: a kernel that makes them, in a new prepared buffer, the
// module's last one, which `kernel` then reads in place. Nothing otherwise, and for kernels that
// pack nothing. Planes (winograd_plan.h) lie behind the panels where those pay and take at most
// `spare_bytes`.
absl::StatusOr<std::optional<ir::Kernel>> PackOperand(ir::Module& module, ir::Kernel& kernel,
                                                      int64_t most_bytes, int64_t spare_bytes,
                                                      const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
