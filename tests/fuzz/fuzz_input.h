// What every fuzzer here is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/string_view.h"

namespace kiln::fuzz {

inline absl::string_view AsText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Ends the process, which is how a fuzzer reports that a property does not hold.
inline void Require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property broken: %s\n", property);
  std::abort();
}

}  // namespace kiln::fuzz

// libFuzzer calls it, or replay_main.cc. Returns 0, or -1 to keep the input out of the corpus.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
