// What the cost models of target ptx share.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace kiln::schedule::ptx {

// Shared memory of a block, and of all blocks of a multiprocessor, of sm_90: the most there is.
inline constexpr int64_t kMostShared = 227 << 10;

inline int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// For a tree's reasons: "12.3 us expected".
inline std::string ExpectedText(double microseconds) {
  const auto tenths = static_cast<int64_t>(microseconds * 10 + 0.5);
  return absl::StrCat(tenths / 10, ".", tenths % 10, " us expected");
}

}  // namespace kiln::schedule::ptx
