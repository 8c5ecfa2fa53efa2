// What a graph says of its inputs, for people and for those who look one up by name.
#pragma once

#include <cstddef>
#include <string>

#include "kiln/v1/graph.pb.h"

namespace kiln {

// The input's own name (`which` 0) or one that its module has for it (1, 2, ...); null beyond them.
const std::string* InputName(const v1::Graph& graph, size_t input, size_t which);

// "f32[s0, 768]": sizes that are no number or symbol as "?".
std::string TypeText(const v1::TensorType& type, const v1::Graph& graph);

}  // namespace kiln
