#include "client/runtime/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/client/cuda/gpu_artifacts.h"

namespace kiln::testing {
namespace {

using runtime::Archive;
using ::testing::HasSubstr;

constexpr char kInterface[] = "// interface grid { blocks { value: 1 } threads { value: 1 } }\n";

std::string Refusal(const std::string& text) {
  const absl::Status status = Archive::Parse(text).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << text << ": " << status;
  return std::string(status.message());
}

TEST(ArchiveTest, HasTheKernelsThatItNames) {
  auto archive = Archive::Parse(absl::StrCat("// kiln kernels 1\n// kernel a 3 2\n", kInterface,
                                             "// kernel b 0 3\n", kInterface, "\n\n\nxyz"));
  ASSERT_TRUE(archive.ok()) << archive.status();
  ASSERT_EQ((*archive)->kernels().size(), 2u);
  EXPECT_EQ((*archive)->kernels()[0].name, "a");
  EXPECT_EQ((*archive)->kernels()[0].module, "yz");
  EXPECT_EQ((*archive)->kernels()[1].module, "\n\nx");
  EXPECT_TRUE(Archive::Parse("// kiln kernels 1\n\n").ok());
}

TEST(ArchiveTest, RefusesWhatIsNoneWithThePlace) {
  const auto one = [](const std::string& line) {
    return Refusal(absl::StrCat("// kiln kernels 1\n", line, "\n", kInterface, "\nabc"));
  };
  EXPECT_THAT(Refusal(""), HasSubstr("has no end"));
  EXPECT_THAT(Refusal("// kiln kernels 2\n\n"), HasSubstr("line 1"));
  EXPECT_THAT(one("// kernel a 0 4"), HasSubstr("line 2 has a module of 4 bytes at 0 of 3"));
  EXPECT_THAT(one("// kernel a 4 0"), HasSubstr("line 2"));
  EXPECT_THAT(one("// kernel a 1 18446744073709551615"), HasSubstr("line 2"));
  EXPECT_THAT(one("// kernel a 18446744073709551615 2"), HasSubstr("line 2"));
  EXPECT_THAT(one("// kernel a -1 2"), HasSubstr("line 2"));
  EXPECT_THAT(one("// kernel a 0"), HasSubstr("line 2"));
  EXPECT_THAT(one("// kernel  0 1"), HasSubstr("line 2"));
  EXPECT_THAT(one("// kernel a/b 0 1"), HasSubstr("line 2"));
  EXPECT_THAT(one("kernel a 0 1"), HasSubstr("line 2 names no kernel"));
  EXPECT_THAT(Refusal("// kiln kernels 1\n// kernel a 0 1\n\nabc"), HasSubstr("without an inter"));
  EXPECT_THAT(Refusal("// kiln kernels 1\n// kernel a 0 1\n// interface {\n\nabc"),
              HasSubstr("line 3"));
  const std::string twice = absl::StrCat("// kernel a 0 1\n", kInterface);
  EXPECT_THAT(Refusal(absl::StrCat("// kiln kernels 1\n", twice, twice, "\nabc")),
              HasSubstr("line 4 names kernel a, which line 2 has named"));
  EXPECT_THAT(
      Refusal(absl::StrCat("// kiln kernels 1\n", twice, "// kernel b 0 2\n", kInterface, "\nabc")),
      HasSubstr("another kernel's module"));
}

TEST(ArchiveTest, AnyDamageIsRefusedOrHarmless) {
  const std::string whole = TestArchive();
  ASSERT_TRUE(Archive::Parse(whole).ok());
  const unsigned seed = 20;
  std::mt19937 random(seed);
  for (int i = 0; i < 5000; ++i) {
    std::string damaged = whole;
    const size_t list = damaged.find("\n\n") + 2;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % list;
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, random() % 40);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % list, random() % 40));
      }
    }
    const auto archive = Archive::Parse(damaged);
    if (!archive.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(archive.status())) << archive.status() << " seed " << seed;
      continue;
    }
    size_t bytes = 0;
    for (const auto& kernel : (*archive)->kernels()) bytes += kernel.module.size();
    EXPECT_LE(bytes, damaged.size()) << "seed " << seed;
  }
}

TEST(ArchiveTest, BinariesOfOneNumberHoldTheSameKernels) {
  const auto parse = [](const std::string& text) { return *Archive::Parse(text); };
  const std::string a = absl::StrCat("// kiln kernels 1\n// kernel a 0 1\n", kInterface, "\nabc");
  EXPECT_TRUE(CheckAlike(*parse(a), *parse(absl::StrReplaceAll(a, {{"\nabc", "\nxyz"}}))).ok());
  for (const auto& [from, to] : {std::pair("kernel a", "kernel b"), std::pair("value", "value ")}) {
    EXPECT_TRUE(
        absl::IsDataLoss(CheckAlike(*parse(a), *parse(absl::StrReplaceAll(a, {{from, to}})))));
  }
}

}  // namespace
}  // namespace kiln::testing
