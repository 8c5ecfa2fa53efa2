#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/compiler_builds.h"
#include "proto/base/digest.h"
#include "proto/base/dtype.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/target_name.h"

namespace kiln {
namespace {

// Vectors of FIPS 180-4's example file.
TEST(DigestTest, Sha256MatchesThePublishedVectors) {
  EXPECT_EQ(Sha256("").ToHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc").ToHex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// As a thread that compiles while main() returns makes it.
TEST(DigestDeathTest, IsTheSameOnceExitHasEndedOpenSsl) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not used OpenSSL
  EXPECT_EXIT(
      {
        // exit() calls what was registered first last.
        std::atexit([] { _exit(Sha256("abc").ShortHex() == "ba7816bf8f01" ? 0 : 7); });
        EVP_MD_free(EVP_MD_fetch(nullptr, "SHA256", nullptr));
        std::exit(8);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(DigestTest, HexRoundTripsAndRefusesOtherText) {
  const Digest d = Sha256("x");
  EXPECT_EQ(*Digest::FromHex(d.ToHex()), d);
  EXPECT_EQ(*Digest::FromBytes(d.view()), d);
  EXPECT_FALSE(Digest::FromHex("12").ok());
  EXPECT_FALSE(Digest::FromHex(std::string(63, 'a') + "g").ok());
  EXPECT_FALSE(Digest::FromBytes("short").ok());
}

TEST(HasherTest, FieldBoundariesCount) {
  EXPECT_NE(Hasher().Str("ab").Str("c").Finish(), Hasher().Str("a").Str("bc").Finish());
  EXPECT_NE(Hasher().Str("").Finish(), Hasher().Finish());
  EXPECT_NE(Hasher().Float(0.0).Finish(), Hasher().Float(-0.0).Finish());
  EXPECT_EQ(Hasher().Float(std::nan("1")).Finish(), Hasher().Float(-std::nan("2")).Finish());
}

TEST(TargetNameTest, EveryTargetHasANameAndOthersHaveNone) {
  EXPECT_EQ(TargetName(v1::TARGET_CPP), "cpp");
  EXPECT_EQ(TargetName(v1::TARGET_NULL), "null");
  EXPECT_EQ(TargetNames().size(), static_cast<size_t>(v1::Target_descriptor()->value_count() - 1));
  for (absl::string_view name : TargetNames()) EXPECT_EQ(TargetName(TargetNumber(name)), name);
  EXPECT_EQ(TargetName(v1::TARGET_UNSPECIFIED), "unknown");
  EXPECT_EQ(TargetName(77), "unknown");
  for (absl::string_view name : {"", "unspecified", "CPP", "unknown"}) {
    EXPECT_EQ(TargetNumber(name), v1::TARGET_UNSPECIFIED) << name;
  }
}

TEST(CompilerBuildsTest, ATargetThatIsNotNamedHasTheBuildOfBefore) {
  v1::ServerInfo server;
  server.set_compiler_build("one for all");
  EXPECT_EQ(BuildsOf(server).For(v1::TARGET_NULL), "one for all") << "an older server";
  v1::TargetBuild& build = *server.add_target_builds();
  build.set_target(v1::TARGET_NULL);
  build.set_compiler_build("of null");
  EXPECT_EQ(BuildsOf(server).For(v1::TARGET_NULL), "of null");
  EXPECT_EQ(BuildsOf(server).For(v1::TARGET_CPP), "one for all");
}

TEST(DTypeTest, NamesAndNumbersRoundTrip) {
  for (int number = 1; number <= 21; ++number) {
    const DType dtype = *DTypeFromProto(number);
    EXPECT_EQ(DTypeToProto(dtype), number);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
    EXPECT_GT(DTypeSize(dtype), 0);
  }
  EXPECT_FALSE(DTypeFromProto(0).ok());
  EXPECT_FALSE(DTypeFromProto(22).ok());
  EXPECT_FALSE(DTypeFromName("").has_value());
}

TEST(ErrorDetailTest, BadGraphNamesNodeAndExpectation) {
  const absl::Status status = BadGraphError("add_3", "aten.add.Tensor", "has no arguments", "two");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "node 'add_3' (aten.add.Tensor): has no arguments; expected two");
  const auto detail = GetDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->node(), "add_3");
  EXPECT_EQ(detail->reason(), v1::ErrorDetail::REASON_BAD_GRAPH);
}

TEST(ErrorDetailTest, AnnotateKeepsCodeAndDetailAndTheInnermostDetailWins) {
  absl::Status status = Annotate(BadGraphError("n", "", "w", ""), "import");
  EXPECT_EQ(status.message(), "import: node 'n': w");
  v1::ErrorDetail outer;
  outer.set_node("outer");
  EXPECT_EQ(GetDetail(WithDetail(status, outer))->node(), "n");
  EXPECT_FALSE(GetDetail(absl::OkStatus()).has_value());
}

TEST(LogTest, JsonQuotesEverythingThatWouldBreakALine) {
  EXPECT_EQ(JsonQuote("a\"b\\c\n\t\x01"), "\"a\\\"b\\\\c\\n\\t\\u0001\"");
}

}  // namespace
}  // namespace kiln
