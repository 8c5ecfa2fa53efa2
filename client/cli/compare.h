// Are a run's outputs right? The rules of `kiln run --check`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kiln/kiln.h"
#include "proto/base/random_inputs.h"

namespace kiln {
namespace v1 {
class TensorData;
}

namespace cli {

struct Comparison {
  bool same = false;
  double rmse = 0;   // root of the mean squared difference, over floating values
  double limit = 0;  // that rmse may reach
  std::string why;   // where not the same: a sentence
};

// Compares an output with the reference interpreter's, computed in float64. As torch's
// `torch._dynamo.utils.same` does it against a float64 reference: floating values by the root of
// the mean squared error, limited to a tolerance of the type times the root mean square of the
// reference plus a tenth of that tolerance (1e-4 for float32; where torch compares with eager's own
// error, no eager is at hand here); infinities and NaNs must stand in the same places; other types
// must be equal. INVALID_ARGUMENT where the reference has another shape than its data.
absl::StatusOr<Comparison> Compare(const kiln_output& output, const v1::TensorData& reference);

// Compares an output with what another program gave in the same type: `kiln run --expect`. Type and
// sizes must be the same. Each floating element may be off by t * (1 + |expected|), where t is 1e-8
// for float64, 1e-4 for float32, 1e-3 for float16 and 1e-2 for bfloat16; NaN and infinities stand
// in the same places. All else is equal. `rmse` is the largest part of what is allowed, `limit` 1.
Comparison CompareElements(const kiln_output& output, const HostTensor& expected);

// The element number `index`, counted row-major, as a double.
double ElementAt(const kiln_output& output, int64_t index);
int64_t NumElements(const kiln_output& output);

}  // namespace cli
}  // namespace kiln
