#include "compiler/toolchain/nvptx.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/toolchain/clang.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kiln::toolchain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// PTX of a kernel with that body, and declarations before it.
absl::StatusOr<std::string> Ptx(absl::string_view before, absl::string_view body,
                                ClangJob job = {.arch = "sm_80"}) {
  const std::string source = absl::StrCat(
      before,
      "extern \"C\" __attribute__((nvptx_kernel)) void Kernel(const float* a, float* b, "
      "int n) {",
      body, "}");
  job.machine = Machine::kNvptx;
  job.source = source;
  absl::StatusOr<ClangOutput> output = CompileCpp(Prepare(job));
  if (!output.ok()) return output.status();
  return output->object;
}

// What Clang marks as always inlined and what it does not.
constexpr absl::string_view kLayers = R"cc(
  struct Sum {
    float of[2] = {};
    Sum() { of[0] = 1.0f; }
    void Add(float x) { of[1] += x; }
    float Total() const { return of[0] + of[1]; }
  };
  template <class F>
  static float Apply(F f, int n) {
    Sum sum;
    for (int i = 0; i < n; ++i) sum.Add(f(i));
    return sum.Total();
  }
)cc";

TEST(NvptxTest, AFunctionOfAKernelIsInlinedWhateverClangSaysOfIt) {
  absl::StatusOr<std::string> ptx =
      Ptx(kLayers, "b[0] = Apply([=](int i) { return a[i] * 2.0f; }, n);");
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  EXPECT_THAT(*ptx, HasSubstr(".visible .entry Kernel"));
  EXPECT_THAT(*ptx, Not(HasSubstr(".func")));
  EXPECT_THAT(*ptx, Not(HasSubstr(".local")));
}

TEST(NvptxTest, AFunctionThatShallStayStays) {
  absl::StatusOr<std::string> ptx =
      Ptx("static __attribute__((noinline)) float Root(float x) { return x * x + 1.0f; }",
          "b[0] = Root(a[0]) + Root(a[1]);");
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  EXPECT_THAT(*ptx, HasSubstr(".func"));
}

TEST(NvptxTest, RowsOfUnrolledLoopsStayInRegisters) {
  absl::StatusOr<std::string> ptx = Ptx("", R"cc(
    float row[8];
    _Pragma("clang loop unroll(full)") for (int i = 0; i < 8; ++i) row[i] = a[i * n];
    float sum = 0;
    _Pragma("clang loop unroll(full)") for (int i = 0; i < 8; ++i) sum += row[i];
    _Pragma("clang loop unroll(full)") for (int i = 0; i < 8; ++i) b[i] = row[i] / sum;
  )cc");
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  EXPECT_THAT(*ptx, Not(HasSubstr(".local")));
  EXPECT_THAT(*ptx, Not(HasSubstr("bra")));
}

TEST(NvptxTest, ALoopUnrollsAsOftenAsItSays) {
  constexpr absl::string_view kLoop =
      "for (int i = 0; i < 64; ++i) b[i * n] = __builtin_sqrtf(a[i * n]);";
  const auto roots = [&](absl::string_view pragma) {
    absl::StatusOr<std::string> ptx = Ptx("", absl::StrCat(pragma, kLoop));
    EXPECT_TRUE(ptx.ok()) << ptx.status();
    if (!ptx.ok()) return 0;
    int count = 0;
    for (size_t at = ptx->find("sqrt.rn"); at != std::string::npos;
         at = ptx->find("sqrt.rn", at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(roots("_Pragma(\"clang loop unroll(disable)\") "), 1);
  EXPECT_EQ(roots("_Pragma(\"clang loop unroll_count(4)\") "), 4);
  EXPECT_EQ(roots("_Pragma(\"clang loop unroll(full)\") "), 64);
}

TEST(NvptxTest, FastMathContractsAndExactMathDoesNot) {
  constexpr absl::string_view kBody = "const float x = a[0] * a[1]; b[0] = x + a[2];";
  absl::StatusOr<std::string> exact = Ptx("", kBody);
  absl::StatusOr<std::string> fast = Ptx("", kBody, {.arch = "sm_80", .fast_math = true});
  ASSERT_TRUE(exact.ok()) << exact.status();
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_THAT(*exact, Not(HasSubstr("fma")));
  EXPECT_THAT(*fast, HasSubstr("fma"));
}

TEST(NvptxTest, EachLevelIsAKeyOfItsOwnAndCompiles) {
  std::string keys;
  for (const int level : {1, 2, 3}) {
    const ClangJob job = {.machine = Machine::kNvptx,
                          .source = "extern \"C\" __attribute__((nvptx_kernel)) void Kernel() {}",
                          .arch = "sm_90a",
                          .optimization_level = level};
    const std::string key = KeyOf(Prepare(job)).ToHex();
    EXPECT_FALSE(absl::StrContains(keys, key)) << level;
    absl::StrAppend(&keys, key, " ");
    absl::StatusOr<std::string> ptx =
        Ptx("", "b[0] = a[0];", {.arch = "sm_90a", .optimization_level = level});
    ASSERT_TRUE(ptx.ok()) << ptx.status();
    EXPECT_THAT(*ptx, HasSubstr(".target sm_90a"));
  }
}

TEST(NvptxTest, WhatLlvmCannotWriteIsAnError) {
  absl::StatusOr<std::string> ptx =
      Ptx("", "float* const x = (float*)__builtin_alloca(4 * n); x[n / 2] = a[0]; b[0] = x[n / 3];",
          {.arch = "sm_50"});
  ASSERT_FALSE(ptx.ok());
  EXPECT_EQ(ptx.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(ptx.status().message(), HasSubstr("alloca"));
}

}  // namespace
}  // namespace kiln::toolchain
