// What an artifact's key is made of, in words, and in which of it two keys differ.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class CompileOptions;
class Device;
class Graph;
class KeyDescription;
}  // namespace v1

// Describes exactly what ArtifactKey (key.h) hashes. No text is longer than about 300 bytes: the
// rest of a longer one counts by its hash.
v1::KeyDescription DescribeKey(const v1::Graph& graph, const v1::Device& device,
                               const v1::CompileOptions& options, absl::string_view compiler_build);

struct KeyDifferenceText {
  std::string component;  // "device.arch", "node 17", "input 2"
  std::string asked;      // empty: is only in the other
  std::string nearest;
};

// At most `limit` differences, the components first. Nodes that one side has more are matched by
// operator and types, so that an inserted node is one difference and not all after it.
std::vector<KeyDifferenceText> CompareKeys(const v1::KeyDescription& asked,
                                           const v1::KeyDescription& nearest, size_t limit);

// How far apart two keys are: 0 for equal ones. Components weigh more than nodes.
double KeyDistance(const v1::KeyDescription& a, const v1::KeyDescription& b);

}  // namespace kiln
