// Kernels that read windows of each other, run in tiles that overlap, against the reference
// interpreter, which runs them one after another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "compiler/schedule/windowed.h"
#include "tests/unit/compiler/codegen/check_module.h"
#include "tests/unit/compiler/codegen/window_chains.h"

namespace kiln::codegen {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Every second row of 64, with its neighbours, of 2 by 4 planes of 8 columns: 32 bytes a row.
constexpr char kPooled[] = R"(module {
  buffer @x f32[2,4,64,8] strides[2048,512,8,1] input(0)
  buffer @t f32[2,4,64,8] strides[2048,512,8,1] temp
  buffer @y f32[2,4,32,8] strides[1024,256,8,1] output
  kernel @exp (d0: 2, d1: 4, d2: 64, d3: 8) {
    phase () {
      %0 = load f32 @x[d0, d1, d2, d3]
      %1 = exp f32 %0
      store f32 @t[d0, d1, d2, d3], %1
    }
  }
  kernel @pool (d0: 2, d1: 4, d2: 32, d3: 8) {
    phase (r0: 3) {
      %0 = index i64 2*d2 + r0 - 1
      %1 = const i64 0
      %2 = ge bool %0, %1
      %3 = load f32 @t[d0, d1, 2*d2 + r0 - 1, d3] if %2 else -inf
      %4 = reduce.max f32 %3
    }
    phase () {
      store f32 @y[d0, d1, d2, d3], %4
    }
  }
  output @y sizes[2,4,32,8] strides[1024,256,8,1] offset 0
}
)";

std::string TiledText(int64_t capacity_bytes) {
  absl::StatusOr<ir::Module> module = ir::Parse(kPooled);
  EXPECT_TRUE(module.ok()) << module.status();
  schedule::TileByWindows(*module, capacity_bytes);
  return ir::Print(*module);
}

TEST(WindowTilesTest, TilesAreAsLongAsFit) {
  EXPECT_THAT(TiledText(32 * 17), HasSubstr(R"(repeat @pool_tiles steps(1, 1, 8) {
    window(1 from 0 to 0, 1 from 0 to 0, 2 from -1 to 1)
    kernel @exp (d0: 4, d1: 2, d2: 64, d3: 8) {)"));
  EXPECT_THAT(TiledText(32 * 9), HasSubstr("repeat @pool_tiles steps(1, 1, 4) {"));
  EXPECT_THAT(TiledText(32 * 3), HasSubstr("repeat @pool_tiles steps(1, 1, 1) {"));
  // Not even one row.
  EXPECT_THAT(TiledText(32 * 3 - 1), Not(HasSubstr("repeat")));
}

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
