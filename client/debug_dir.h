// The files of KILN_DEBUG_DIR: what a person needs to see what became of a graph.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace kiln {
namespace v1 {
class Artifact;
class Graph;
}  // namespace v1

// Writes DIR/<graph's name>-<key's first 12 digits>/ with
//   graph.kgraph, graph.json    the graph
//   program.json                header and program, without machine code
//   ir/NN-STAGE.kir             the IR after each stage
//   kernels/SYMBOL.cc, .s       source and assembly of each kernel
//   decisions.txt, times.txt    fusion decisions with their reasons; stages and kernels with times
// Existing files are replaced. An error names the path.
absl::Status WriteDebugFiles(const std::string& dir, const v1::Graph& graph,
                             const v1::Artifact& artifact);

// `artifact` as text for people: stages, kernels, steps, launches with their times where a device
// tells, how each kernel runs and why, decisions.
std::string ExplainArtifact(const v1::Artifact& artifact);
// Its parts: decisions one a line; times one a line.
std::string DecisionsText(const v1::Artifact& artifact);
std::string TimesText(const v1::Artifact& artifact);

}  // namespace kiln
