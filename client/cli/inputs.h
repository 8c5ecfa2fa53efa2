// The inputs of `kiln run`: random ones or those of an .npz file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kiln/kiln.h"
#include "proto/base/random_inputs.h"

namespace kiln {
namespace v1 {
class Graph;
class InterpretRequest;
class TensorType;
}  // namespace v1

namespace cli {

struct RunInputs {
  uint64_t seed = 0;
  bool random = true;
  std::vector<HostTensor> tensors;  // of the inputs that are tensors, in order
  std::vector<int64_t> sizes;       // of the inputs that are sizes, in order
  std::vector<kiln_tensor> all;     // every input in order; points into the above
};

// `spec` is "random", "random:SEED" or the path of an .npz file whose arrays are named as the
// graph's inputs, or arr_0, arr_1, ... for the tensors in order. Inputs that are sizes take the
// symbols' hints, or what the file says: its shapes, or a single int64 under the input's name.
absl::StatusOr<RunInputs> MakeInputs(const v1::Graph& graph, const std::string& spec);

// Hands the same inputs to the reference interpreter.
absl::Status AddInputs(const RunInputs& inputs, v1::InterpretRequest& request);

absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace cli
}  // namespace kiln
