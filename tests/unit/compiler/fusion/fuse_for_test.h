// Fuses modules given as text and checks that they still compute the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/fusion/fuse.h"
#include "compiler/ir/module.h"

namespace kiln::fusion {

struct FusedModule {
  ir::Module module;
  std::vector<Decision> decisions;

  int NumKernels() const;
  std::string Text() const;
};

struct FuseCheck {
  FuseOptions options;
  std::vector<int64_t> symbols;
  int64_t int_max = 2;        // integer inputs are uniform in [0, int_max)
  bool interpretable = true;  // false: only verified, for modules with library steps
};

// Parses, verifies, fuses, verifies; then interprets both on equal random inputs and fails the
// current test where outputs differ.
FusedModule FuseAndCheck(const std::string& text, const FuseCheck& check = {});

// The same once with every pass and once without each single one. Returns the former.
FusedModule FuseEveryWay(const std::string& text, const FuseCheck& check = {});

}  // namespace kiln::fusion
