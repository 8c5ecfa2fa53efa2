#include "cache/remote/redis_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/remote/slots.h"
#include "tests/unit/cache/remote/fakes.h"

namespace kiln::cache {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

constexpr char kKey[] = "key";
const int kSlot = KeySlot(kKey);

Endpoint At(int port) {
  return {"n", port};
}

// Of a single server: CLUSTER SLOTS is an error, GET the port's number.
Answer Single(int port) {
  return [port](const std::string& command) -> absl::StatusOr<Reply> {
    if (absl::StartsWith(command, "CLUSTER")) return ErrorReply("ERR cluster support disabled");
    return StringReply(absl::StrCat(port));
  };
}

// Of a cluster's node where `owner` has every slot.
Answer Clustered(int port, int owner) {
  return [port, owner](const std::string& command) -> absl::StatusOr<Reply> {
    if (absl::StartsWith(command, "CLUSTER")) return SlotsReply({{{0, kSlots - 1}, At(owner)}});
    if (port == owner) return StringReply(absl::StrCat(port));
    return ErrorReply(absl::StrCat("MOVED ", kSlot, " n:", owner));
  };
}

class RedisClientTest : public ::testing::Test {
 protected:
  void Open(std::vector<int> seeds) {
    RedisClientOptions options;
    for (int port : seeds) options.seeds.push_back(At(port));
    options.make_node = nodes_.Factory();
    options.min_refresh_interval = absl::Milliseconds(1);
    client_ = MakeRedisClient(options);
  }
  absl::StatusOr<Reply> Get() {
    return client_->Run(kKey, {"GET", kKey}, ReplyLimits{}, DeadlineIn(absl::Seconds(5)));
  }
  std::string Text() {
    auto reply = Get();
    return reply.ok() ? reply->text : std::string(reply.status().message());
  }
  // The answer becomes `text` in a while, when the background has learnt of a change.
  bool Becomes(const std::string& text) {
    for (int i = 0; i < 500; ++i) {
      if (Text() == text) return true;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return false;
  }

  FakeNodes nodes_;
  std::unique_ptr<RedisClient> client_;
};

TEST_F(RedisClientTest, ASingleServerIsAskedAndNobodyElse) {
  nodes_.Set(1, Single(1));
  Open({1});
  EXPECT_EQ(Text(), "1");
  EXPECT_THAT(nodes_.Commands(1), ElementsAre("GET key"));
}

TEST_F(RedisClientTest, TheNextSeedStandsInForOneThatFails) {
  nodes_.Set(2, Single(2));
  Open({1, 2});
  EXPECT_TRUE(absl::IsUnavailable(Get().status())) << "a miss, not a second wait";
  EXPECT_EQ(Text(), "2");
}

TEST_F(RedisClientTest, FollowsMovedAndRemembers) {
  nodes_.Set(1, Clustered(1, 2));
  nodes_.Set(2, Clustered(2, 2));
  Open({1});
  EXPECT_EQ(Text(), "2");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Text(), "2");
  int asked = 0;
  for (const std::string& command : nodes_.Commands(1)) asked += command == "GET key";
  EXPECT_EQ(asked, 1) << "the first time only";
}

TEST_F(RedisClientTest, FollowsAskForOneCommandOnly) {
  nodes_.Set(1, [](const std::string&) -> absl::StatusOr<Reply> {
    return ErrorReply(absl::StrCat("ASK ", kSlot, " n:2"));
  });
  nodes_.Set(2, Single(2));
  Open({1});
  EXPECT_EQ(Text(), "2");
  EXPECT_EQ(Text(), "2");
  std::vector<std::string> second;
  for (const std::string& command : nodes_.Commands(2)) {
    if (!absl::StartsWith(command, "CLUSTER")) second.push_back(command);
  }
  EXPECT_THAT(second, ElementsAre("ASKING", "GET key", "ASKING", "GET key"));
}

TEST_F(RedisClientTest, LearnsFromTheClusterWhereASlotWentWhenItsNodeDies) {
  nodes_.Set(1, Clustered(1, 2));
  nodes_.Set(2, Clustered(2, 2));
  nodes_.Set(3, Clustered(3, 3));
  Open({1});
  EXPECT_EQ(Text(), "2");
  nodes_.Kill(2);
  EXPECT_FALSE(Get().ok());
  nodes_.Set(1, Clustered(1, 3));  // a replica was promoted
  EXPECT_TRUE(Becomes("3"));
}

TEST_F(RedisClientTest, EndlessRedirectionsEnd) {
  nodes_.Set(1, [](const std::string&) -> absl::StatusOr<Reply> {
    return ErrorReply(absl::StrCat("MOVED ", kSlot, " n:2"));
  });
  nodes_.Set(2, [](const std::string&) -> absl::StatusOr<Reply> {
    return ErrorReply(absl::StrCat("MOVED ", kSlot, " n:1"));
  });
  Open({1});
  EXPECT_TRUE(absl::IsUnavailable(Get().status()));
}

TEST_F(RedisClientTest, NodesWithoutEndAreNotRemembered) {
  // The client's own thread may ask until the fixture ends.
  auto next = std::make_shared<std::atomic<int>>(2);
  Answer liar = [next](const std::string&) -> absl::StatusOr<Reply> {
    return ErrorReply(absl::StrCat("MOVED ", kSlot, " n:", (*next)++));
  };
  for (int port = 1; port < 4000; ++port) nodes_.Set(port, liar);
  Open({1});
  for (int i = 0; i < 400; ++i) EXPECT_FALSE(Get().ok());
  NodeCounts counts = client_->Nodes();
  EXPECT_LE(counts.closed, 1024);
}

// A cluster of nodes 1 and 2, half of the slots each; GET answers with its key.
Answer HalfOfACluster(int port) {
  return [port](const std::string& command) -> absl::StatusOr<Reply> {
    if (absl::StartsWith(command, "CLUSTER")) {
      return SlotsReply({{{0, kSlots / 2 - 1}, At(1)}, {{kSlots / 2, kSlots - 1}, At(2)}});
    }
    const std::string key = command.substr(4);
    const int owner = KeySlot(key) < kSlots / 2 ? 1 : 2;
    if (port == owner) return StringReply(key);
    return ErrorReply(absl::StrCat("MOVED ", KeySlot(key), " n:", owner));
  };
}

class ManyCommandsTest : public RedisClientTest {
 protected:
  ManyCommandsTest() {
    for (int i = 0; i < 100; ++i) keys_.push_back(absl::StrCat("key ", i));
    for (const std::string& key : keys_) commands_.push_back({"GET", key});
  }
  std::vector<absl::StatusOr<Reply>> GetAll() {
    return client_->RunEach(commands_, ReplyLimits{}, DeadlineIn(absl::Seconds(5)));
  }
  void ExpectAll() {
    auto replies = GetAll();
    ASSERT_EQ(replies.size(), keys_.size());
    for (size_t i = 0; i < keys_.size(); ++i) {
      ASSERT_TRUE(replies[i].ok()) << replies[i].status();
      EXPECT_EQ(replies[i]->text, keys_[i]);
    }
  }

  std::vector<std::string> keys_;
  std::vector<Command> commands_;
};

TEST_F(ManyCommandsTest, GoToOneServerTogether) {
  nodes_.Set(3, [](const std::string& command) { return StringReply(command.substr(4)); });
  Open({3});
  ExpectAll();
  EXPECT_EQ(nodes_.Exchanges(3), 1);
}

TEST_F(ManyCommandsTest, GoToEachServerOfAClusterTogetherOnceTheyWereRedirected) {
  nodes_.Set(1, HalfOfACluster(1));
  nodes_.Set(2, HalfOfACluster(2));
  Open({1});
  ExpectAll();
  // The client's own thread may have asked for the slots by now.
  EXPECT_LE(nodes_.Exchanges(1) + nodes_.Exchanges(2), 2 + 2);
  EXPECT_GE(nodes_.Exchanges(2), 1);
  ExpectAll();
  EXPECT_LE(nodes_.Exchanges(1) + nodes_.Exchanges(2), 4 + 4);
}

TEST_F(ManyCommandsTest, AreAskedForOneByOneWhileASlotMoves) {
  nodes_.Set(1, [](const std::string& command) -> absl::StatusOr<Reply> {
    if (absl::StartsWith(command, "CLUSTER")) return ErrorReply("ERR busy");
    const std::string key = command.substr(4);
    if (key.back() != '7') return StringReply(key);
    return ErrorReply(absl::StrCat("ASK ", KeySlot(key), " n:2"));
  });
  nodes_.Set(2, [](const std::string& command) { return StringReply(command.substr(4)); });
  Open({1});
  ExpectAll();
  int asking = 0;
  for (const std::string& command : nodes_.Commands(2)) asking += command == "ASKING";
  EXPECT_EQ(asking, 10) << "one before each";
}

TEST_F(ManyCommandsTest, OneServersFailureIsThatOfItsKeysOnly) {
  nodes_.Set(1, HalfOfACluster(1));
  nodes_.Set(2, HalfOfACluster(2));
  Open({1});
  ExpectAll();
  nodes_.Kill(2);
  auto replies = GetAll();
  for (size_t i = 0; i < keys_.size(); ++i) {
    EXPECT_EQ(replies[i].ok(), KeySlot(keys_[i]) < kSlots / 2) << keys_[i];
  }
}

TEST_F(RedisClientTest, OtherErrorsAreTheAnswer) {
  nodes_.Set(1, [](const std::string&) -> absl::StatusOr<Reply> { return ErrorReply("OOM x"); });
  Open({1});
  EXPECT_EQ(Text(), "OOM x");
}

TEST_F(RedisClientTest, ForgetsNodesThatLeftTheCluster) {
  nodes_.Set(1, Clustered(1, 2));
  nodes_.Set(2, Clustered(2, 2));
  Open({1});
  EXPECT_EQ(Text(), "2");
  nodes_.Set(1, Clustered(1, 3));
  nodes_.Set(2, Clustered(2, 3));
  nodes_.Set(3, Clustered(3, 3));
  EXPECT_TRUE(Becomes("3"));
  for (int i = 0; i < 500 && client_->Nodes().closed != 2; ++i) {
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_EQ(client_->Nodes().closed, 2) << "the seed and the owner";
}

}  // namespace
}  // namespace kiln::cache
