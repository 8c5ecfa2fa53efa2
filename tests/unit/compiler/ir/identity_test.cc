#include "compiler/ir/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/ir/parse.h"

namespace kiln::ir {
namespace {

using ::testing::ElementsAre;

constexpr char kKernel[] = R"(
    kernel @NAME (d0: n) from "NAME" {
      phase () {
        %0 = load f32 @A[d0]
        %1 = load f32 @B[d0]
        %2 = add f32 %0, %1
        store f32 @OUT[d0], %2
      }
    }
)";

std::string Kernel(const std::string& name, const std::string& a, const std::string& b,
                   const std::string& out) {
  return absl::StrReplaceAll(kKernel, {{"NAME", name}, {"@A", a}, {"@B", b}, {"@OUT", out}});
}

// The first of each operation's equals.
std::vector<size_t> Firsts(const std::string& kernels) {
  const auto module = Parse(absl::StrCat(R"(module {
    symbol n [0, 100] hint 10
    buffer @a f32[n] strides[1] input(0)
    buffer @b f32[n] strides[1] input(1)
    buffer @weight f32[n] strides[1] input(2) parameter
    buffer @spread f32[n] strides[2] input(3)
    buffer @longer f32[n + 1] strides[1] input(4)
    buffer @whole i32[n] strides[1] input(5)
    buffer @t f32[n] strides[1] temp
    buffer @u f32[n] strides[1] temp
    buffer @v f32[n] strides[1] temp
    )",
                                         kernels, "}"));
  if (!module.ok()) ADD_FAILURE() << module.status();
  if (!module.ok()) return {};
  std::vector<size_t> firsts;
  for (const Identity& identity : Identify(*module)) firsts.push_back(identity.first);
  return firsts;
}

TEST(IdentityTest, NamesAndBuffersCountForNothing) {
  EXPECT_THAT(Firsts(Kernel("one", "@a", "@b", "@t") + Kernel("two", "@b", "@a", "@u") +
                     Kernel("three", "@t", "@u", "@v")),
              ElementsAre(0, 0, 0));
}

TEST(IdentityTest, OneBufferTwiceIsNotTwoBuffers) {
  EXPECT_THAT(Firsts(Kernel("one", "@a", "@b", "@t") + Kernel("two", "@a", "@a", "@u") +
                     Kernel("three", "@b", "@b", "@v")),
              ElementsAre(0, 1, 1));
}

TEST(IdentityTest, WhatABufferIsCounts) {
  const std::string first = Kernel("one", "@a", "@b", "@t");
  for (const char* other : {"@weight", "@spread", "@longer"}) {
    SCOPED_TRACE(other);
    EXPECT_THAT(Firsts(first + Kernel("two", "@a", other, "@u")), ElementsAre(0, 1));
  }
}

TEST(IdentityTest, EveryInstructionCounts) {
  const std::string first = Kernel("one", "@a", "@b", "@t");
  const auto with = [&](const char* from, const char* to) {
    return Firsts(first + absl::StrReplaceAll(Kernel("two", "@a", "@b", "@u"), {{from, to}}));
  };
  EXPECT_THAT(with("add", "mul"), ElementsAre(0, 1));
  EXPECT_THAT(with("%0, %1", "%1, %0"), ElementsAre(0, 1));
  EXPECT_THAT(with("d0: n", "d0: 1"), ElementsAre(0, 1));
  EXPECT_THAT(with("(d0: n)", "packing (d0: n)"), ElementsAre(0, 1));
  EXPECT_THAT(with("@b[d0]", "@b[0]"), ElementsAre(0, 1));
}

TEST(IdentityTest, BuffersComeInOrderOfFirstUse) {
  const auto module = Parse(absl::StrCat(R"(module {
    symbol n [0, 100] hint 10
    buffer @a f32[n] strides[1] input(0)
    buffer @b f32[n] strides[1] input(1)
    buffer @t f32[n] strides[1] temp
    )",
                                         Kernel("one", "@b", "@a", "@t"), "}"));
  ASSERT_TRUE(module.ok()) << module.status();
  EXPECT_THAT(Identify(*module)[0].buffers, ElementsAre(1, 0, 2));
}

}  // namespace
}  // namespace kiln::ir
