// Division of integers, rounded to a side. REQUIRES: b is not 0, and no a / b beyond 64 bits.
#pragma once

#include <cstdint>

namespace kiln::gcu_simulator {

inline int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// Of numbers that are not negative.
inline int64_t CeilDivide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace kiln::gcu_simulator
