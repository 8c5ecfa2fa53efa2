// The guards of a run: are these the tensors that the program was compiled for?
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/runtime/plan.h"
#include "kiln/kiln.h"

namespace kiln::runtime {

// As many inputs and outputs as the program has, and sizes where symbols are read from. These and
// what follows are INVALID_ARGUMENT with the input's name.
absl::Status CheckCounts(const v1::Program& program, absl::Span<const kiln_tensor> inputs,
                         size_t num_outputs);

// That every tensor has the plan's dtype, sizes and strides and is on a device of that kind
// (inputs that are sizes are read here, so they are the CPU's), all of them on the same one.
// REQUIRES: CheckCounts passed.
absl::Status CheckInputs(const v1::Program& program, const Plan& plan,
                         absl::Span<const kiln_tensor> inputs, kiln_device_type device);

// That no input that the program stores into (`written`, by input) has an element in common with
// another one: a device that works on copies would not see there what is stored here.
// REQUIRES: CheckInputs passed.
absl::Status CheckUpdatesAreAlone(const v1::Program& program, const Plan& plan,
                                  absl::Span<const kiln_tensor> inputs,
                                  const std::vector<bool>& written);

}  // namespace kiln::runtime
