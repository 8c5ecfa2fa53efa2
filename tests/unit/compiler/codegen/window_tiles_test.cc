// Kernels that read windows of each other, run in tiles that overlap, against the reference
// interpreter, which runs them one after another.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/window_chains.h"

namespace kiln::codegen {
namespace {

TEST(WindowTilesTest, RandomChainsAreInterpretedAlike) {
  int repeats = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const WindowChain chain = MakeWindowChain(seed);
    for (const int64_t bytes : {300, 1500, 8000}) {
      CheckOptions options{.symbols = chain.symbols, .seed = seed + 1};
      options.window_bytes = bytes;
      repeats += CheckWindows(chain.text, options);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(repeats, 200);
}

TEST(WindowTilesTest, RandomChainsRunAlike) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const WindowChain chain = MakeWindowChain(seed);
    CheckOptions options{.symbols = chain.symbols, .seed = seed + 1, .tolerance = 1e-4};
    options.window_bytes = 1500;
    options.repeats = CheckWindows(chain.text, options);
    CheckModule(chain.text, options);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kiln::codegen
