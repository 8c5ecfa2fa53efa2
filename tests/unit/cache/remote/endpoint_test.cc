#include "cache/remote/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RemoteUrl, TakesHostsPortsCredentialsAndADatabase) {
  RemoteUrl plain = ParseRemoteUrl("redis://cache").value();
  EXPECT_THAT(plain.seeds, ElementsAre(Endpoint{"cache", 6379}));
  EXPECT_FALSE(plain.tls);
  EXPECT_EQ(plain.password, "");
  EXPECT_EQ(plain.database, 0);

  RemoteUrl full = ParseRemoteUrl("rediss://me:p%40ss%3A@a.b:1,[::1]:2,10.0.0.1/7").value();
  EXPECT_TRUE(full.tls);
  EXPECT_EQ(full.user, "me");
  EXPECT_EQ(full.password, "p@ss:");
  EXPECT_EQ(full.database, 7);
  EXPECT_THAT(full.seeds,
              ElementsAre(Endpoint{"a.b", 1}, Endpoint{"::1", 2}, Endpoint{"10.0.0.1", 6379}));
  EXPECT_EQ(full.seeds[1].ToString(), "[::1]:2");

  EXPECT_EQ(ParseRemoteUrl("redis://:secret@h/")->password, "secret");
  EXPECT_EQ(ParseRemoteUrl("redis://:a@b@h")->password, "a@b");
}

TEST(RemoteUrl, RefusesTheRestAndKeepsThePasswordToItself) {
  for (const char* bad : {"",
                          "h:1",
                          "http://h",
                          "redis://",
                          "redis://h:0",
                          "redis://h:70000",
                          "redis://h:",
                          "redis://h,",
                          "redis://h/x",
                          "redis://h/-1",
                          "redis://h/99999",
                          "redis://[::1",
                          "redis://[::1]x",
                          "redis://h h",
                          "redis://a:b:c",
                          "redis://hunter2@h",
                          "redis://u:hunter2%4@h",
                          "redis://u:hunter2%zz@h",
                          "redis://u:@h",
                          "redis://u:hunter2@h:x",
                          "redis://::1:6379"}) {
    auto url = ParseRemoteUrl(bad);
    ASSERT_FALSE(url.ok()) << bad;
    EXPECT_EQ(url.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(url.status().message()), HasSubstr("redis://HOST:6379"));
    EXPECT_THAT(std::string(url.status().message()), Not(HasSubstr("hunter2"))) << bad;
  }
}

}  // namespace
}  // namespace kiln::cache
