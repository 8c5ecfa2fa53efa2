#include "cache/remote/reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace kiln::cache {
namespace {

using ::testing::HasSubstr;

constexpr ReplyLimits kLimits = {1024, 16};

TEST(ParseReply, ReadsEveryType) {
  EXPECT_EQ(ParseReply("$5\r\nhe\r\nl\r\n", kLimits)->text, "he\r\nl");
  EXPECT_EQ(ParseReply("$0\r\n\r\n", kLimits)->type, Reply::Type::kString);
  EXPECT_EQ(ParseReply("$-1\r\n", kLimits)->type, Reply::Type::kNil);
  EXPECT_EQ(ParseReply("*-1\r\n", kLimits)->type, Reply::Type::kNil);
  EXPECT_EQ(ParseReply("+OK\r\n", kLimits)->type, Reply::Type::kStatus);
  EXPECT_EQ(ParseReply("-ERR no\r\n", kLimits)->text, "ERR no");
  EXPECT_TRUE(ParseReply("-ERR no\r\n", kLimits)->is_error());
  EXPECT_EQ(ParseReply(":-42\r\n", kLimits)->integer, -42);
  Reply array = ParseReply("*3\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n+x\r\n", kLimits).value();
  ASSERT_EQ(array.elements.size(), 3u);
  EXPECT_EQ(array.elements[0].integer, 1);
  ASSERT_EQ(array.elements[1].elements.size(), 2u);
  EXPECT_EQ(array.elements[1].elements[0].text, "a");
  EXPECT_EQ(array.elements[1].elements[1].type, Reply::Type::kNil);
  EXPECT_EQ(array.elements[2].text, "x");
}

TEST(ParseReply, RefusesWhatIsNoReplyAndWhatIsOverItsLimits) {
  for (const char* bad : {"", "\r\n", "hello\r\n", "$x\r\n", "$-2\r\n", ":\r\n", "$5\r\nabc", "$5",
                          "*2\r\n:1\r\n", "+OK\r\n+OK\r\n", "+OK\r\n$5\r", "*-2\r\n", "*17\r\n",
                          "*2147483647\r\n", "*9999999999999\r\n", "$9223372036854775807\r\n",
                          "%1\r\n+a\r\n+b\r\n", "*4\r\n*4\r\n*4\r\n*4\r\n*4\r\n",
                          "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"}) {
    EXPECT_FALSE(ParseReply(bad, kLimits).ok()) << bad;
  }
  const std::string large = absl::StrCat("$2000\r\n", std::string(2000, 'x'), "\r\n");
  EXPECT_EQ(ParseReply(large, kLimits).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ReplyReader, RefusesALargeReplyByItsAnnouncement) {
  ReplyReader reader(kLimits);
  absl::Status status = reader.Feed("$2000\r\n");
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("1024"));
}

TEST(ReplyReader, AnAnnouncementInPiecesCounts) {
  ReplyReader reader(kLimits);
  ASSERT_TRUE(reader.Feed("$2").ok());
  ASSERT_TRUE(reader.Feed("000").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(reader.Feed("\r\n")));
}

TEST(ReplyReader, BytesWithoutAnEndAreNoReply) {
  for (const char* begin : {"+", "-", ":", "*2\r\n$1\r\na\r\n$900\r\n"}) {
    ReplyReader reader(kLimits);
    ASSERT_TRUE(reader.Feed(begin).ok());
    ASSERT_TRUE(reader.Feed(std::string(2000, 'x')).ok());
    Reply reply;
    absl::StatusOr<bool> next = true;
    while (next.ok() && *next) next = reader.Next(reply);
    EXPECT_TRUE(absl::IsDataLoss(next.status())) << begin;
  }
}

TEST(ReplyReader, TakesBytesInAnyPortions) {
  const std::string stream = "+OK\r\n*2\r\n$3\r\nabc\r\n:7\r\n$-1\r\n";
  for (size_t portion = 1; portion <= stream.size(); ++portion) {
    ReplyReader reader(kLimits);
    std::vector<Reply> replies;
    for (size_t at = 0; at < stream.size(); at += portion) {
      ASSERT_TRUE(reader.Feed(absl::string_view(stream).substr(at, portion)).ok());
      Reply reply;
      while (reader.Next(reply).value()) replies.push_back(reply);
    }
    ASSERT_EQ(replies.size(), 3u) << portion;
    EXPECT_EQ(replies[1].elements[0].text, "abc");
    EXPECT_EQ(replies[2].type, Reply::Type::kNil);
  }
}

TEST(ReplyReader, RepliesOfTheLargestSizeMayComeTogether) {
  const std::string one = absl::StrCat("$1000\r\n", std::string(1000, 'x'), "\r\n");
  const std::string bytes = one + one + one + one;
  for (size_t chunk : {size_t{1}, size_t{500}, size_t{1500}, bytes.size()}) {
    ReplyReader reader({static_cast<int64_t>(one.size()), 0});
    int replies = 0;
    for (size_t at = 0; at < bytes.size(); at += chunk) {
      ASSERT_TRUE(reader.Feed(absl::string_view(bytes).substr(at, chunk)).ok()) << chunk;
      Reply reply;
      while (*reader.Next(reply)) ++replies;
    }
    EXPECT_EQ(replies, 4) << chunk;
  }
}

TEST(ReplyReader, LimitsAreForEachReply) {
  ReplyReader reader({64, 2});
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(reader.Feed("*2\r\n$10\r\n0123456789\r\n:1\r\n").ok()) << i;
    Reply reply;
    ASSERT_TRUE(reader.Next(reply).value()) << i;
  }
}

TEST(ReplyReader, RandomBytesNeverDoMoreThanFail) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::minstd_rand random(seed);
  constexpr absl::string_view kAlphabet = "$*+-:0123456789\r\n\r\nab";
  for (int i = 0; i < 20000; ++i) {
    std::string bytes;
    for (unsigned n = random() % 40; n > 0; --n) bytes += kAlphabet[random() % kAlphabet.size()];
    auto reply = ParseReply(bytes, kLimits);
    if (reply.ok()) {
      EXPECT_LE(reply->elements.size(), 16u);
    }
  }
}

}  // namespace
}  // namespace kiln::cache
