// Numbers that look random, the same on every machine.
#pragma once

#include <cstdint>

namespace kiln {

// The last step of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", 2014), whose state grows by kScrambleStep from number to number.
inline constexpr uint64_t kScrambleStep = 0x9E3779B97F4A7C15u;
constexpr uint64_t Scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace kiln
