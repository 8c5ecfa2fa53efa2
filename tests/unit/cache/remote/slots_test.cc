#include "cache/remote/slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cache/remote/fakes.h"

namespace kiln::cache {
namespace {

using ::testing::HasSubstr;

const Endpoint kAsked{"10.0.0.9", 7000};

TEST(KeySlot, AgreesWithTheSpecificationAndTheServer) {
  EXPECT_EQ(KeySlot("123456789"), 0x31C3);  // the specification's check value, under 16384
  EXPECT_EQ(KeySlot(""), 0);
  EXPECT_EQ(KeySlot("foo"), 12182);  // CLUSTER KEYSLOT foo
  EXPECT_EQ(KeySlot("somekey"), 11058);
}

TEST(KeySlot, CountsOnlyAHashTag) {
  EXPECT_EQ(KeySlot("{user1000}.following"), KeySlot("user1000"));
  EXPECT_EQ(KeySlot("a{foo}{bar}"), KeySlot("foo"));
  EXPECT_EQ(KeySlot("foo{{bar}}zap"), KeySlot("{bar"));
  EXPECT_NE(KeySlot("foo{}{bar}"), KeySlot("bar")) << "an empty tag counts as none";
  EXPECT_NE(KeySlot("foo{bar"), KeySlot("bar"));
}

TEST(Redirection, ReadsMovedAndAsk) {
  auto moved = ParseRedirection("MOVED 3999 127.0.0.1:6381", kAsked);
  ASSERT_TRUE(moved.has_value());
  EXPECT_FALSE(moved->ask);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(moved->endpoint, (Endpoint{"127.0.0.1", 6381}));
  auto ask = ParseRedirection("ASK 0 ::1:6381", kAsked);
  ASSERT_TRUE(ask.has_value());
  EXPECT_TRUE(ask->ask);
  EXPECT_EQ(ask->endpoint, (Endpoint{"::1", 6381}));
  for (const char* unknown : {"MOVED 1 :6381", "MOVED 1 ?:6381"}) {
    EXPECT_EQ(ParseRedirection(unknown, kAsked)->endpoint, (Endpoint{"10.0.0.9", 6381}));
  }
}

TEST(Redirection, LeavesOtherErrorsAndNonsenseAlone) {
  for (const char* other :
       {"", "ERR x", "MOVED", "MOVED ", "MOVED 1", "MOVED 16384 h:1", "MOVED -1 h:1", "MOVED 1 h",
        "MOVED 1 h:0", "MOVED 1 h:99999", "MOVED x h:1", "MOVEDX 1 h:1", "ASK 1 h:", "ASK"}) {
    EXPECT_FALSE(ParseRedirection(other, kAsked).has_value()) << other;
  }
  EXPECT_FALSE(ParseRedirection("MOVED 1 " + std::string(4000, 'h') + ":1", kAsked).has_value());
}

TEST(SlotRanges, ReadsMastersAndFillsInTheHostThatWasAsked) {
  Reply reply = SlotsReply({{{0, 5460}, {"a", 1}}, {{5461, 16383}, {"", 2}}});
  reply.elements[0].elements.push_back(ArrayReply({StringReply("replica"), IntegerReply(9)}));
  auto ranges = SlotRangesOf(reply, kAsked).value();
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].last, 5460);
  EXPECT_EQ(ranges[0].owner, (Endpoint{"a", 1}));
  EXPECT_EQ(ranges[1].owner, (Endpoint{"10.0.0.9", 2}));
  for (const Reply& unknown : {NilReply(), StringReply("?")}) {
    reply.elements[0].elements[2].elements[0] = unknown;
    EXPECT_EQ(SlotRangesOf(reply, kAsked)->front().owner.host, "10.0.0.9");
  }
}

TEST(SlotRanges, TellsNoClusterFromOneThatDoesNotSay) {
  EXPECT_TRUE(absl::IsUnimplemented(
      SlotRangesOf(ErrorReply("ERR This instance has cluster support disabled"), kAsked).status()));
  EXPECT_TRUE(absl::IsUnavailable(SlotRangesOf(ErrorReply("LOADING x"), kAsked).status()));
}

TEST(SlotRanges, RefusesWrongShapesAndNamesTheRange) {
  auto good = ArrayReply(
      {IntegerReply(1), IntegerReply(2), ArrayReply({StringReply("h"), IntegerReply(1)})});
  auto with = [&](auto change) {
    Reply range = good;
    change(range.elements);
    return SlotRangesOf(ArrayReply({good, range}), kAsked).status();
  };
  using Row = std::vector<Reply>;
  EXPECT_TRUE(with([](Row&) {}).ok());
  for (const absl::Status& status :
       {with([](Row& row) { row.clear(); }), with([](Row& row) { row.pop_back(); }),
        with([](Row& row) { row[0] = StringReply("1"); }),
        with([](Row& row) { row[0] = IntegerReply(-1); }),
        with([](Row& row) { row[1] = IntegerReply(16384); }),
        with([](Row& row) { row[1] = IntegerReply(0); }),
        with([](Row& row) { row[2] = StringReply("h:1"); }),
        with([](Row& row) { row[2].elements.pop_back(); }),
        with([](Row& row) { row[2].elements[1] = IntegerReply(70000); }),
        with([](Row& row) { row[2].elements[0] = StringReply(std::string(300, 'h')); }),
        with([](Row& row) { row[2].elements[0] = ArrayReply({}); })}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("range 1"));
  }
  EXPECT_TRUE(absl::IsDataLoss(SlotRangesOf(NilReply(), kAsked).status()));
}

}  // namespace
}  // namespace kiln::cache
