// One module with a repeat passes; each test breaks exactly one rule of it.
#include <string>

#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "gmock/gmock.h"

namespace kiln::ir {
namespace {

using ::testing::HasSubstr;

constexpr absl::string_view kGood = R"(module {
  symbol s0 [2, 512] hint 16
  buffer @x f32[4,s0,8] strides[8*s0,8,1] input(0)
  buffer @t f32[4,s0,8] strides[8*s0,8,1] tile
  buffer @u f32[4,s0] strides[s0,1] temp
  buffer @y f32[4,s0,8] strides[8*s0,8,1] output
  repeat @both steps(1, 48) {
    kernel @first (d0: 4, d1: s0, d2: 8) from "a" {
      phase () {
        %0 = load f32 @x[d0, d1, d2]
        %1 = exp f32 %0
        store f32 @t[d0, d1, d2], %1
      }
    }
    kernel @second (d0: 4, d1: s0) {
      phase (r0: 8) {
        %0 = load f32 @t[d0, d1, r0]
        %1 = reduce.sum f32 %0
      }
      phase () {
        store f32 @u[d0, d1], %1
      }
      phase (r0: 8) {
        %2 = load f32 @t[d0, d1, r0]
        %3 = div f32 %2, %1
        store f32 @y[d0, d1, r0], %3
      }
    }
  }
  output @y sizes[4,s0,8] strides[8*s0,8,1] offset 0
}
)";

using Changes = std::vector<std::pair<absl::string_view, absl::string_view>>;

absl::Status VerifyChanged(const Changes& changes) {
  std::string text(kGood);
  for (const auto& [from, to] : changes) {
    EXPECT_THAT(text, HasSubstr(std::string(from)));
    text = absl::StrReplaceAll(text, {{from, to}});
  }
  absl::StatusOr<Module> module = Parse(text);
  EXPECT_TRUE(module.ok()) << module.status();
  return module.ok() ? Verify(*module) : module.status();
}

void ExpectWrong(const Changes& changes, absl::string_view message) {
  const absl::Status status = VerifyChanged(changes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(message)));
}

TEST(VerifyRepeat, GoodOnePassesAndPrintsAsItWasRead) {
  EXPECT_EQ(VerifyChanged({}), absl::OkStatus());
  EXPECT_EQ(Print(*Parse(kGood)), kGood);
}

TEST(VerifyRepeat, Steps) {
  ExpectWrong({{"steps(1, 48)", "steps(1, 0)"}}, "repeat @both has a step of 0");
  ExpectWrong({{"steps(1, 48)", "steps(1, 48, 2)"}}, "kernel @second of fewer loops than steps");
}

TEST(VerifyRepeat, LoopsOfDifferentLengths) {
  ExpectWrong({{"kernel @second (d0: 4, d1: s0)", "kernel @second (d0: 4, d1: 2)"}},
              "kernel @second whose loop 1 is not as long");
}

TEST(VerifyRepeat, ReachesOutsideOfItsTile) {
  ExpectWrong({{"%0 = load f32 @t[d0, d1, r0]", "%0 = load f32 @t[3 - d0, d1, r0]"}},
              "kernel @second that reaches @t outside of its tile");
  ExpectWrong({{"%2 = load f32 @t[d0, d1, r0]", "%2 = load f32 @t[d0, 0, r0]"}},
              "kernel @second that reaches @t outside of its tile");
  // So does what outlives the repeat, where it is handed on in it.
  ExpectWrong({{"tile", "temp"}, {"%2 = load f32 @t[d0, d1, r0]", "%2 = load f32 @t[d0, 0, r0]"}},
              "kernel @second that reaches @t outside of its tile");
}

TEST(VerifyRepeat, StoresToAnInput) {
  ExpectWrong({{"store f32 @u[d0, d1], %1", "store f32 @x[d0, d1, 0], %1"}},
              "kernel @second that stores to an input");
}

TEST(VerifyRepeat, TilesOfOthers) {
  ExpectWrong({{"output @y sizes", "output @t sizes"}}, "never lies in memory whole");
  ExpectWrong({{"  output @y", R"(  kernel @later (d0: 4, d1: s0) {
    phase () {
      %0 = load f32 @t[d0, d1, 0]
    }
  }
  output @y)"}},
              "kernel @later uses @t, a tile of another operation");
}

}  // namespace
}  // namespace kiln::ir
