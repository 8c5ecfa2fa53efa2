#include "proto/base/trace_context.h"

#include <gtest/gtest.h>

#include <set>

namespace kiln {
namespace {

constexpr char kGood[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContextTest, AHeaderRoundTrips) {
  TraceContext context = ParseTraceparent(kGood);
  ASSERT_TRUE(context.valid());
  EXPECT_TRUE(context.sampled);
  EXPECT_EQ(context.TraceIdHex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(context.SpanIdHex(), "b7ad6b7169203331");
  EXPECT_EQ(FormatTraceparent(context), kGood);
  EXPECT_FALSE(ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").sampled);
}

TEST(TraceContextTest, ALaterVersionMayHaveMoreBehind) {
  EXPECT_TRUE(
      ParseTraceparent("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").valid());
}

TEST(TraceContextTest, MalformedHeadersAreNone) {
  for (const char* bad : {"", "00", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
                          "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                          "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                          "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                          "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                          "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                          "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                          "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01"}) {
    EXPECT_FALSE(ParseTraceparent(bad).valid()) << bad;
  }
}

TEST(TraceContextTest, ChildrenKeepTheTraceAndItsFlag) {
  TraceContext parent = ParseTraceparent(kGood);
  std::set<std::string> spans = {parent.SpanIdHex()};
  for (int i = 0; i < 100; ++i) {
    TraceContext child = ChildOf(parent);
    EXPECT_EQ(child.trace_id, parent.trace_id);
    EXPECT_TRUE(child.sampled);
    EXPECT_TRUE(spans.insert(child.SpanIdHex()).second);
  }
  parent.sampled = false;
  EXPECT_FALSE(ChildOf(parent).sampled);
  EXPECT_TRUE(ChildOf({}).valid());
  EXPECT_NE(ChildOf({}).TraceIdHex(), ChildOf({}).TraceIdHex());
}

}  // namespace
}  // namespace kiln
