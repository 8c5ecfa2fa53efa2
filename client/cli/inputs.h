// The inputs of `kiln run`: of .npz and .safetensors files, and random ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/client.h"
#include "kiln/kiln.h"
#include "proto/base/random_inputs.h"

namespace kiln {
namespace v1 {
class Graph;
class InterpretRequest;
}  // namespace v1

namespace cli {

struct RunInputs {
  uint64_t seed = 0;
  bool random = true;               // all of them are of the seed
  std::vector<kiln_tensor> all;     // every input in order; points into what follows
  std::vector<HostTensor> tensors;  // by input, of those that are tensors and no weights
  std::vector<int64_t> sizes;       // by input, of those that are sizes
  std::unique_ptr<Weights> weights;
  std::vector<std::string> notes;  // sentences on what was given and is not used, and the reverse
};

// `spec` is "random", "random:SEED" or the path of an .npz file whose arrays are named as the
// graph's inputs or as its module names them, or arr_0, arr_1, ... for the tensors in order. Inputs
// that are sizes take the symbols' hints, or what the files say: its shapes, or a single int64
// under the input's name. `weights` are .safetensors files (Weights::Bind). What no file has is
// random. INVALID_ARGUMENT also for files that have none of the graph's inputs.
absl::StatusOr<RunInputs> MakeInputs(const v1::Graph& graph, const std::string& spec,
                                     const std::vector<std::string>& weights = {});

// Hands the same inputs to the reference interpreter; an error where they are too many for a call.
absl::Status AddInputs(const v1::Graph& graph, const RunInputs& inputs,
                       v1::InterpretRequest& request);

// A line for each input: its name, role, type, and what the module calls it.
std::string DescribeInputs(const v1::Graph& graph);

absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace cli
}  // namespace kiln
