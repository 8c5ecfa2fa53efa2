// Graphs for the server's tests, and their answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/compile_service.pb.h"

namespace kiln::integration {

using Sizes = std::vector<int64_t>;

// Builds a graph value by value. Types are float32 and contiguous.
class GraphBuilder {
 public:
  GraphBuilder();
  // Inputs first, then constants, then nodes. Each returns its value's number.
  uint32_t Input(const Sizes& sizes);
  uint32_t Constant(const std::vector<float>& values);
  uint32_t Node(const std::string& name, const std::string& op, const std::vector<uint32_t>& values,
                const Sizes& sizes);
  void Output(uint32_t value);
  v1::Graph& graph() { return graph_; }

  // For every x86-64 processor, no library at hand.
  v1::CompileRequest Request() const;

 private:
  v1::Graph graph_;
  uint32_t values_ = 0;
};

// y = relu(x) + x * x over `elements` elements: one kernel, compiled in a moment.
v1::CompileRequest QuickRequest(int64_t elements);
std::vector<float> QuickAnswer(const std::vector<float>& x);

// A chain of `count` matrix products, no two of the same sizes: `count` kernels, each of which
// takes Clang a while. Another `seed`, other sizes.
v1::CompileRequest SlowRequest(int count, int seed);

// Loads the artifact as a client does, and runs it on one input. The first output.
absl::StatusOr<std::vector<float>> RunArtifact(absl::string_view artifact_bytes,
                                               const std::vector<float>& x);

// -1, -0.5, 0, 0.5, ... in steps of a half, then again from -1, up to 8.
std::vector<float> SampleInput(int64_t elements);

}  // namespace kiln::integration
