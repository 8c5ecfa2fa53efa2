// Sound programs with their graphs, for a fuzzer to change.
#pragma once

#include <string>
#include <vector>

#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/random_inputs.h"

namespace kiln::fuzz {

struct Subject {
  std::string name;
  v1::Graph graph;
  v1::Artifact artifact;
  std::vector<HostTensor> inputs;  // of the graph's tensors, at the symbols' hints
  std::vector<int64_t> sizes;      // the symbols' hints
};

// Programs over the kernels of tests/unit/client: through workspace and scratch, with symbols, with
// library steps, with outputs in inputs and constants, with an input that is written in place.
std::vector<Subject> MadeSubjects();

// A graph and its artifact as `kiln compile -o` writes it. NOT_FOUND or DATA_LOSS for bad files.
absl::StatusOr<Subject> ReadSubject(const std::string& graph, const std::string& artifact);

}  // namespace kiln::fuzz
