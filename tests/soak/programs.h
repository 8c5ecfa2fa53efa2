// Graphs whose answers are known to the last bit, so that whoever runs one can tell a wrong one.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/integration/graphs.h"

namespace kiln::soak {

struct KnownProgram {
  v1::CompileRequest request;
  std::vector<integration::Sizes> sizes;   // of the inputs
  std::vector<std::vector<float>> inputs;  // row by row
  std::vector<float> answer;
};

// The same for the same number, and another graph for another. Values are small multiples of a half
// and integers, and so few are multiplied that float32 has every sum and product exactly.
KnownProgram MakeProgram(uint64_t number);

}  // namespace kiln::soak
