#include "server/security/access_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

std::string Hash(absl::string_view token) {
  return Sha256(token).ToHex();
}

std::string ErrorOf(absl::string_view text) {
  absl::Status status = AccessList::Parse(text, "access").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(AccessList, FindsTokensByTheirHashOnly) {
  auto list = AccessList::Parse(
      absl::StrCat("# people\n", "trainer compile ", Hash("secret-1"), " team-a\n", "\n",
                   "ops\tadmin ", Hash("secret-2"), "  # the on-call\r\n"),
      "access");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->tokens(), 2u);
  const Identity* trainer = list->FindToken("secret-1");
  ASSERT_NE(trainer, nullptr);
  EXPECT_EQ(trainer->name, "trainer");
  EXPECT_EQ(trainer->role, Role::kCompile);
  EXPECT_EQ(trainer->tenant, "team-a");
  const Identity* ops = list->FindToken("secret-2");
  ASSERT_NE(ops, nullptr);
  EXPECT_EQ(ops->role, Role::kAdmin);
  EXPECT_EQ(ops->tenant, "");
  EXPECT_EQ(list->FindToken("secret-3"), nullptr);
  EXPECT_EQ(list->FindToken(""), nullptr);
  EXPECT_EQ(list->FindToken(Hash("secret-1")), nullptr) << "the hash is no token";
  EXPECT_EQ(list->FindToken(std::string(kMaxTokenBytes + 1, 'x')), nullptr);
}

TEST(AccessList, OneNameMayHaveTwoTokensOneTokenNotTwoNames) {
  std::string line = absl::StrCat("trainer compile ", Hash("a"), "\n");
  EXPECT_TRUE(AccessList::Parse(absl::StrCat(line, "trainer compile ", Hash("b")), "x").ok());
  EXPECT_THAT(ErrorOf(absl::StrCat(line, "other admin ", Hash("a"))),
              HasSubstr("access line 2: the token is that of 'trainer' as well"));
}

TEST(AccessList, TheFirstLineThatNamesACertificateCounts) {
  auto list = AccessList::Parse(
      "ops.example admin certificate\nspiffe://c/w compile certificate w\n* read certificate\n",
      "access");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->FindCertificate({"x", "ops.example"})->role, Role::kAdmin);
  EXPECT_EQ(list->FindCertificate({"spiffe://c/w"})->tenant, "w");
  EXPECT_EQ(list->FindCertificate({"OPS.example"})->role, Role::kRead) << "names match exactly";
  EXPECT_EQ(AccessList::Parse("a read certificate", "x")->FindCertificate({"b"}), nullptr);
}

TEST(AccessList, ErrorsNameTheLine) {
  EXPECT_THAT(ErrorOf("a read\n"), HasSubstr("access line 1: expected NAME ROLE"));
  EXPECT_THAT(ErrorOf("\n\na write certificate\n"), HasSubstr("line 3: 'write' is no role"));
  EXPECT_THAT(ErrorOf("a read plain-text-token\n"), HasSubstr("neither the SHA-256"));
  EXPECT_THAT(ErrorOf(absl::StrCat("a read ", std::string(63, 'a'), "g")), HasSubstr("neither"));
  EXPECT_THAT(ErrorOf(absl::StrCat("a read ", Hash(""))), HasSubstr("SHA-256 of nothing"));
  EXPECT_THAT(ErrorOf("a read certificate not/a/tenant\n"), HasSubstr("is no tenant's name"));
  EXPECT_THAT(ErrorOf("a read certificate t more\n"), HasSubstr("expected NAME ROLE"));
}

TEST(AccessList, HasALimit) {
  std::string text;
  for (int i = 0; i < kMaxAccessLines; ++i) absl::StrAppend(&text, "n", i, " read certificate\n");
  EXPECT_TRUE(AccessList::Parse(text, "access").ok());
  EXPECT_THAT(ErrorOf(text + "one-more read certificate\n"), HasSubstr("more than 4096"));
}

}  // namespace
}  // namespace kiln::server
