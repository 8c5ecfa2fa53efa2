// Random modules: chains of kernels that read windows of each other, in one or two dimensions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kiln {

struct WindowChain {
  std::string text;              // of a module
  std::vector<int64_t> symbols;  // its values
};

// Convolutions (blocked and by channel), poolings and elementwise kernels with strides, dilation
// and borders that may differ at both ends, over a batch; some results are read twice or are
// outputs, some sizes symbolic. The same for the same seed.
WindowChain MakeWindowChain(uint64_t seed);

}  // namespace kiln
