// Random inputs for a saved graph: the client that runs it and the interpreter that checks it make
// the same ones from one seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/base/dtype.h"

namespace kiln {
namespace v1 {
class Graph;
class SymInt;
}  // namespace v1

struct HostTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;    // elements
  std::vector<int64_t> strides;  // elements
  std::string data;              // covers the largest reachable element
};

// The value of `size` where `symbols` holds each symbol's value. INVALID_ARGUMENT on a division by
// zero, an overflow or a symbol out of range.
absl::StatusOr<int64_t> EvaluateSymInt(const v1::SymInt& size, absl::Span<const int64_t> symbols);

// Each symbol's hint, clamped into its range.
std::vector<int64_t> HintSymbols(const v1::Graph& graph);

// One tensor for each tensor input, in order (inputs that are sizes are left out), with the graph's
// strides. Floating values are normal with deviation 1/sqrt(fan-in) for parameters (fan-in:
// elements after the first dimension; 1-dimensional parameters are 1 + 0.02 n) and deviation 1 for
// users' inputs; variances must be positive, so 1-dimensional values are made positive; integers
// are uniform in {0, 1}, bools are true, so that they are legal indices and masks wherever they are
// used. Generator: SplitMix64 (Steele, Lea, Flood 2014) seeded by `seed` and the input's number.
absl::StatusOr<std::vector<HostTensor>> RandomInputs(const v1::Graph& graph, uint64_t seed);
// One of them: input number `input`, which is a tensor, where `symbols` holds each symbol's value.
absl::StatusOr<HostTensor> RandomInput(const v1::Graph& graph, int input, uint64_t seed,
                                       absl::Span<const int64_t> symbols);

}  // namespace kiln
