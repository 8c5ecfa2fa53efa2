#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "compiler/toolchain/clang.h"
#include "gtest/gtest.h"

namespace kiln::toolchain {
namespace {

// Loads and stores of the PTX of a kernel with that body, in order: 'L' and 'S'; 'B' for barriers.
std::string Accesses(absl::string_view body, bool early_loads) {
  const std::string source = absl::StrReplaceAll(
      "extern \"C\" __attribute__((nvptx_kernel)) void Kernel(const float* a, "
      "const float* b, float* c, float* d, const int* at) {BODY}",
      {{"BODY", body}});
  absl::StatusOr<ClangOutput> output = CompileCpp(Prepare(
      {.machine = Machine::kNvptx, .source = source, .arch = "sm_80", .early_loads = early_loads}));
  EXPECT_TRUE(output.ok()) << output.status();
  std::string found;
  if (!output.ok()) return found;
  for (const absl::string_view line : absl::StrSplit(output->object, '\n')) {
    if (absl::StrContains(line, "ld.global")) found += 'L';
    if (absl::StrContains(line, "st.global")) found += 'S';
    if (absl::StrContains(line, "bar.sync") || absl::StrContains(line, "barrier.sync"))
      found += 'B';
  }
  return found;
}

constexpr absl::string_view kRows = R"body(
  float sum = 0;
  _Pragma("clang loop unroll(full)") for (int i = 0; i < 4; ++i) {
  const float x = a[1000 * i] * b[1000 * i];
  c[1000 * i] = x;
  sum += x;
}
d[0] = sum;
)body";

TEST(EarlyLoadsTest, LoadsOfUnrolledRowsPassStoresThroughOtherParameters) {
  EXPECT_EQ(Accesses(kRows, false), "LLSLLSLLSLLSS");
  EXPECT_EQ(Accesses(kRows, true), "LLLLLLLLSSSSS");
}

TEST(EarlyLoadsTest, LoadsStayBehindStoresThroughTheirOwnParameter) {
  const std::string body = R"(
    c[0] = a[0];
    c[1] = c[7] + 1.0f;
    c[2] = c[8] + a[1];
  )";
  EXPECT_EQ(Accesses(body, false), "LSLSLLS");
  EXPECT_EQ(Accesses(body, true), "LSLSLLS");
}

TEST(EarlyLoadsTest, ABranchMayChooseAmongParameters) {
  // Among others than those that are stored through.
  const std::string body = R"(
    const float* x = at[0] ? a : b;
    float* y = at[0] ? c : d;
    y[0] = x[0];
    y[1] = x[1];
  )";
  EXPECT_EQ(Accesses(body, false), "LLSLS");
  EXPECT_EQ(Accesses(body, true), "LLLSS");
  // And among those.
  const std::string same = R"(
    const float* x = at[0] ? a : c;
    float* y = at[0] ? c : d;
    y[0] = x[0];
    y[1] = x[1];
  )";
  EXPECT_EQ(Accesses(same, true), "LLSLS");
}

TEST(EarlyLoadsTest, LoadsStayBehindBarriersAndAssembly) {
  EXPECT_EQ(Accesses("c[0] = a[0]; __syncthreads(); c[1] = b[1];", true), "LSBLS");
  EXPECT_EQ(Accesses("c[0] = a[0]; asm volatile(\"\" ::: \"memory\"); c[1] = b[1];", true), "LSLS");
}

TEST(EarlyLoadsTest, PlacesThatAreLoadedComeFirst) {
  const std::string body = R"(
    c[0] = a[at[0]];
    c[1] = a[at[1]];
  )";
  EXPECT_EQ(Accesses(body, false), "LLSLLS");
  EXPECT_EQ(Accesses(body, true), "LLLLSS");
}

TEST(EarlyLoadsTest, NoMoreWaitThanRegistersAreMeantFor) {
  std::string body = "float sum = 0;";
  for (int i = 0; i < 48; ++i) absl::StrAppend(&body, "c[", i, "] = a[", 1000 * i, "] * 2.0f;");
  EXPECT_EQ(Accesses(body, true), std::string(32, 'L') + std::string(32, 'S') +
                                      std::string(16, 'L') + std::string(16, 'S'));
}

}  // namespace
}  // namespace kiln::toolchain
