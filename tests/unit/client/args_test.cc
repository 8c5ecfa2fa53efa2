#include "client/cli/args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kiln::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<Args> Parse(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return Args::Parse(pointers, {{"--server", "--bench", "-o", "-w"}, {"--json"}, {"-w"}});
}

TEST(Args, SplitsFlagsAndPositionals) {
  auto args = Parse({"a", "--server", "h:1", "--json", "-o=x", "b", "--", "--c", "-"});
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_THAT(args->positional(), ElementsAre("a", "b", "--c", "-"));
  EXPECT_EQ(args->Get("--server", ""), "h:1");
  EXPECT_EQ(args->Get("-o", ""), "x");
  EXPECT_TRUE(args->Has("--json"));
  EXPECT_FALSE(args->Has("--bench"));
}

TEST(Args, KeepsEveryValueOfAFlagThatRepeats) {
  auto args = Parse({"-w", "a", "-w=b", "-o", "c"});
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_THAT(args->All("-w"), ElementsAre("a", "b"));
  EXPECT_THAT(args->All("-o"), ElementsAre("c"));
  EXPECT_THAT(args->All("--server"), ElementsAre());
}

TEST(Args, ErrorsNameTheFlag) {
  EXPECT_THAT(Parse({"--jason"}).status().message(), HasSubstr("unknown flag --jason"));
  EXPECT_THAT(Parse({"--server"}).status().message(), HasSubstr("--server needs a value"));
  EXPECT_THAT(Parse({"--json=1"}).status().message(), HasSubstr("--json takes no value"));
  EXPECT_THAT(Parse({"--json", "--json"}).status().message(), HasSubstr("given twice"));
  auto args = Parse({"--bench", "x"});
  EXPECT_THAT(args->GetInt("--bench", 0, 1, 9).status().message(),
              HasSubstr("--bench is 'x'; expected a number from 1 to 9"));
  EXPECT_THAT(args->GetChoice("--bench", "", {"y", "z"}).status().message(),
              HasSubstr("expected y, z"));
  EXPECT_EQ(*args->GetInt("--server", 7, 1, 9), 7);
}

}  // namespace
}  // namespace kiln::cli
