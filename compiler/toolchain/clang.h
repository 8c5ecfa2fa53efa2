// Clang and LLVM in process: C++ text in, x86-64 object out, no files and no headers but the text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::toolchain {

struct ClangJob {
  absl::string_view source;
  // How many bytes at the start of `source` many jobs have in common: whole declarations. They are
  // parsed once in a process for each arch, features and flags, and the result is kept.
  size_t prelude_bytes = 0;
  std::string arch;                   // LLVM CPU name; an unknown one falls back to "x86-64"
  std::vector<std::string> features;  // each switched on; every other optional one of the CPU's
                                      // vector extensions that the client lacks is switched off
  int optimization_level = 3;         // 1 to 3
  bool fast_math = false;             // reassociation, reciprocals; never "no NaN" or "no inf"
  bool want_assembly = false;
};

struct ClangOutput {
  std::string object;    // ELF, position independent
  std::string assembly;  // where asked for
};

// INTERNAL with the first diagnostics for source that does not compile (it is our own).
// Thread-safe; the first call in a process initializes LLVM.
absl::StatusOr<ClangOutput> CompileCpp(const ClangJob& job);

// "clang 19.1.7, lld 19.1.7": part of every key.
std::string ToolchainVersion();

}  // namespace kiln::toolchain
