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

absl::Status VerifyChanged(const Changes& changes, absl::string_view good = kGood) {
  std::string text(good);
  for (const auto& [from, to] : changes) {
    EXPECT_THAT(text, HasSubstr(std::string(from)));
    text = absl::StrReplaceAll(text, {{from, to}});
  }
  absl::StatusOr<Module> module = Parse(text);
  EXPECT_TRUE(module.ok()) << module.status();
  return module.ok() ? Verify(*module) : module.status();
}

void ExpectWrong(const Changes& changes, absl::string_view message,
                 absl::string_view good = kGood) {
  const absl::Status status = VerifyChanged(changes, good);
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

// @t is kept in one version, @u in both; the second kernel's loops stand in another order.
constexpr absl::string_view kVersions = R"(module {
  symbol s0 [2, 512] hint 16
  symbol s1 [1, 64] hint 8
  buffer @x f32[s1,s0] strides[s0,1] input(0)
  buffer @t f32[s1,s0] strides[s0,1] temp
  buffer @u f32[s1,s0] strides[s0,1] tile
  buffer @y f32[s1,s0] strides[s0,1] output
  repeat @all by(s1, s0) {
    version most(8, 64) keeps(@t, @u)
    version step 4 loops(0, 1, 0) keeps(@u)
    kernel @first (d0: s1, d1: s0) {
      phase () {
        %0 = load f32 @x[d0, d1]
        %1 = exp f32 %0
        store f32 @t[d0, d1], %1
      }
    }
    kernel @second (d0: s0, d1: s1) {
      phase () {
        %0 = load f32 @t[d1, d0]
        store f32 @u[d1, d0], %0
      }
    }
    kernel @third (d0: s1, d1: s0) {
      phase () {
        %0 = load f32 @u[d0, d1]
        store f32 @y[d0, d1], %0
      }
    }
  }
  output @y sizes[s1,s0] strides[s0,1] offset 0
}
)";

TEST(VerifyRepeat, VersionsPassAndPrintAsTheyWereRead) {
  EXPECT_EQ(VerifyChanged({}, kVersions), absl::OkStatus());
  EXPECT_EQ(Print(*Parse(kVersions)), kVersions);
}

TEST(VerifyRepeat, OfVersionTurnsTheTiledLoopsToTheFront) {
  const Module module = *Parse(kVersions);
  const auto& repeat = std::get<Repeat>(module.operations[0]);
  const Repeat second = OfVersion(repeat, repeat.versions[1]);
  EXPECT_EQ(second.steps, std::vector<int64_t>{4});
  for (const Kernel& kernel : second.kernels) {
    EXPECT_EQ(kernel.outer[0].extent(), repeat.by[0]) << kernel.name;
  }
  EXPECT_TRUE(OfVersion(repeat, repeat.versions[0]).steps.empty());
}

TEST(VerifyRepeat, Versions) {
  const auto expect_wrong = [](const Changes& changes, absl::string_view message) {
    ExpectWrong(changes, message, kVersions);
  };
  expect_wrong({{"by(s1, s0)", "by()"}}, "repeat @all has versions by no symbol");
  expect_wrong({{"most(8, 64)", "most(8)"}}, "has a version of other symbols");
  expect_wrong({{"version step 4", "version most(9, 9) step 4"}}, "has no version for all sizes");
  expect_wrong({{"most(8, 64)", ""}}, "has a version of other symbols");
  expect_wrong({{"loops(0, 1, 0)", "loops(0, 1)"}}, "whose loops are not those of its kernels");
  expect_wrong({{"loops(0, 1, 0)", "loops(0, 2, 0)"}}, "of a loop that @second has not");
  expect_wrong({{"step 4", "step -4"}}, "whose loops are not those of its kernels");
  expect_wrong({{"loops(0, 1, 0)", "loops(0, 0, 0)"}}, "whose loop 0 is not as long");
  expect_wrong({{"keeps(@t, @u)", "keeps(@y)"}}, "keeps @y, which others see");
  // What lies on the chip of one version is nobody else's.
  expect_wrong({{"output @y sizes", "output @t sizes"}}, "never lies in memory whole");
  expect_wrong({{"  output @y", R"(  kernel @later (d0: s1, d1: s0) {
    phase () {
      %0 = load f32 @t[d0, d1]
    }
  }
  output @y)"}},
               "kernel @later uses @t, a tile of another operation");
  // A version's tiles are as independent as those of any repeat.
  expect_wrong({{"%0 = load f32 @u[d0, d1]", "%0 = load f32 @u[s1 - 1 - d0, d1]"}},
               "kernel @third that reaches @u outside of its tile");
}

// Products of rows of @x with @w, of tiles of their depth one after another.
constexpr absl::string_view kSums = R"(module {
  buffer @x f32[4,96,8] strides[768,8,1] input(0)
  buffer @w f32[4,96,8] strides[768,8,1] input(1)
  buffer @e f32[4,96,8] strides[768,8,1] tile
  buffer @s f32[4,8,8] strides[64,8,1] tile
  buffer @y f32[4,8,8] strides[64,8,1] output
  repeat @sums steps(1, 48) before(1) after(1) {
    kernel @zeros (d0: 4, d1: 8, d2: 8) {
      phase () {
        %0 = const f32 0
        store f32 @s[d0, d1, d2], %0
      }
    }
    kernel @weights (d0: 4, d1: 96, d2: 8) {
      phase () {
        %0 = load f32 @x[d0, d1, d2]
        %1 = exp f32 %0
        store f32 @e[d0, d1, d2], %1
      }
    }
    kernel @add contraction (d0: 4, d1: 8, d2: 8) {
      phase (r0: 96) {
        %0 = load f32 @e[d0, r0, d1]
        %1 = load f32 @w[d0, r0, d2]
        %2 = mul f32 %0, %1
        %3 = reduce.sum f32 %2
      }
      phase () {
        %4 = load f32 @s[d0, d1, d2]
        %5 = add f32 %4, %3
        store f32 @s[d0, d1, d2], %5
      }
    }
    kernel @result (d0: 4, d1: 8, d2: 8) {
      phase () {
        %0 = load f32 @s[d0, d1, d2]
        store f32 @y[d0, d1, d2], %0
      }
    }
  }
  output @y sizes[4,8,8] strides[64,8,1] offset 0
}
)";

TEST(VerifyRepeat, SumsOverTilesPassAndPrintAsTheyWereRead) {
  const absl::StatusOr<Module> module = Parse(kSums);
  ASSERT_TRUE(module.ok()) << module.status();
  EXPECT_EQ(Verify(*module), absl::OkStatus());
  EXPECT_EQ(Print(*module), kSums);
}

TEST(VerifyRepeat, WrongSums) {
  ExpectWrong({{"%5 = add f32 %4, %3", "%5 = max f32 %4, %3"}},
              "kernel @add that does more than add sums", kSums);
  ExpectWrong({{"(r0: 96)", "(r0: 95)"}}, "kernel @add whose loop 1 is not as long", kSums);
  ExpectWrong({{"load f32 @e[d0, r0, d1]", "load f32 @e[d0, 95 - r0, d1]"}},
              "kernel @add that reaches @e outside of its tile", kSums);
  // Before the last tile there is less.
  ExpectWrong({{"before(1) after(1)", "before(1)"},
               {"(d0: 4, d1: 8, d2: 8) {\n      phase () {\n        %0 = load f32 @s[d0, d1, d2]\n "
                "       store f32 @y[d0, d1, d2], %0",
                "(d0: 4, d1: 96) {\n      phase () {\n        %0 = load f32 @s[d0, 0, 0]\n        "
                "store f32 @y[d0, 0, 0], %0"}},
              "kernel @result that reaches @s before its sums are complete", kSums);
  // After it there is one tile.
  ExpectWrong({{"load f32 @s[d0, d1, d2]\n        store f32 @y",
                "load f32 @e[d0, d1, d2]\n        store f32 @y"}},
              "kernel @result that reaches @e outside of its tile", kSums);
  EXPECT_THAT(
      std::string(Parse(absl::StrReplaceAll(kSums, {{"after(1)", "after(4)"}})).status().message()),
      HasSubstr("fewer kernels than stand before and after"));
}

// A pooling of every second row of what a kernel before it makes, whose last row is its border.
constexpr absl::string_view kWindows = R"(module {
  symbol s0 [4, 512] hint 16
  buffer @x f32[4,2*s0 + 1,8] strides[16*s0 + 8,8,1] input(0)
  buffer @t f32[4,2*s0 + 1,8] strides[16*s0 + 8,8,1] tile
  buffer @y f32[4,s0,8] strides[8*s0,8,1] output
  repeat @both steps(1, 5) {
    window(1 from 0 to 0, 2 from -1 to 1)
    kernel @first (d0: 4, d1: 2*s0 + 1, d2: 8) from "a" {
      phase () {
        %0 = load f32 @x[d0, d1, d2]
        %1 = exp f32 %0
        store f32 @t[d0, d1, d2], %1
      }
    }
    kernel @second (d0: 4, d1: s0, d2: 8) {
      phase (r0: 3) {
        %0 = index i64 2*d1 + r0 - 1
        %1 = const i64 0
        %2 = ge bool %0, %1
        %3 = load f32 @t[d0, 2*d1 + r0 - 1, d2] if %2 else -inf
        %4 = reduce.max f32 %3
      }
      phase () {
        store f32 @y[d0, d1, d2], %4
      }
    }
  }
  output @y sizes[4,s0,8] strides[8*s0,8,1] offset 0
}
)";

TEST(VerifyRepeat, WindowsPassAndPrintAsTheyWereRead) {
  EXPECT_EQ(VerifyChanged({}, kWindows), absl::OkStatus());
  EXPECT_EQ(Print(*Parse(kWindows)), kWindows);
  // More than is needed.
  EXPECT_EQ(VerifyChanged({{"2 from -1 to 1", "2 from -3 to 9"}}, kWindows), absl::OkStatus());
}

TEST(VerifyRepeat, ReachesOutsideOfItsWindow) {
  for (const char* window :
       {"2 from 0 to 1", "2 from -1 to 0", "1 from -1 to 1", "3 from -1 to 1"}) {
    ExpectWrong({{"2 from -1 to 1", window}}, "kernel @second that reaches @t outside of its tile",
                kWindows);
  }
  ExpectWrong({{"load f32 @t[d0, 2*d1 + r0 - 1, d2]", "load f32 @t[d0, floordiv(d1, 2), d2]"}},
              "kernel @second that reaches @t outside of its tile", kWindows);
  ExpectWrong({{"load f32 @t[d0, 2*d1 + r0 - 1, d2]", "load f32 @t[3 - d0, 2*d1 + r0 - 1, d2]"}},
              "kernel @second that reaches @t outside of its tile", kWindows);
}

TEST(VerifyRepeat, ImpossibleWindows) {
  ExpectWrong({{"2 from -1 to 1", "0 from -1 to 1"}}, "kernel @first of an impossible window",
              kWindows);
  ExpectWrong({{"2 from -1 to 1", "2 from 1 to -1"}}, "kernel @first of an impossible window",
              kWindows);
  ExpectWrong({{"2 from -1 to 1", "2 from -1 to 5000000000"}},
              "kernel @first of an impossible window", kWindows);
  ExpectWrong({{"kernel @second", "window(1 from 0 to 0, 1 from 0 to 1)\n kernel @second"}},
              "a last kernel that does not run the tile itself", kWindows);
  EXPECT_THAT(
      std::string(Parse(absl::StrReplaceAll(kWindows, {{"window(1 from 0 to 0, 2", "window(2"}}))
                      .status()
                      .message()),
      HasSubstr("expected ','"));
}

TEST(VerifyRepeat, WhatTilesOverlapInIsATile) {
  ExpectWrong({{"1] tile", "1] temp"}}, "kernel @first whose tiles are no parts of @t", kWindows);
  // Parts that together are all of it may be anything.
  const Changes pairs = {{"1] tile", "1] temp"},         {"2*s0 + 1", "2*s0"},
                         {"16*s0 + 8", "16*s0"},         {"(r0: 3)", "(r0: 2)"},
                         {"2*d1 + r0 - 1", "2*d1 + r0"}, {"2 from -1 to 1", "2 from 0 to 1"}};
  EXPECT_EQ(VerifyChanged(pairs, kWindows), absl::OkStatus());
}

TEST(VerifyRepeat, WindowsDoNotAddUp) {
  ExpectWrong({{"%1 = exp f32 %0\n        store f32 @t[d0, d1, d2], %1",
                "store f32 @t[d0, d1, d2], %0\n      }\n      phase () {\n        %1 = load f32 "
                "@x[d0, d1, d2]\n        store.sum f32 @t[d0, d1, d2], %1"}},
              "has windows and a kernel @first that adds up", kWindows);
  ExpectWrong({{"kernel @add contraction",
                "window(1 from 0 to 0, 1 from 0 to 1)\n kernel @add contraction"}},
              "has windows and sums", kSums);
}

}  // namespace
}  // namespace kiln::ir
