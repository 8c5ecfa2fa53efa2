// A node against real sockets: what it does with a server that stalls, drips, lies or goes away.
#include "cache/remote/node.h"

#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/cache/remote/scripted_server.h"

namespace kiln::cache {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Milliseconds(100);
// What a busy machine may add to a limit; far from what a missing limit would take.
constexpr absl::Duration kSlack = absl::Milliseconds(900);

class NodeTest : public ::testing::Test {
 protected:
  void Open(const Endpoint& endpoint) {
    options_.connection.resolver = &resolver_;
    options_.connect_timeout = absl::Seconds(1);
    node_ = MakeNode(endpoint, options_);
  }
  absl::StatusOr<std::vector<Reply>> Get(absl::Duration limit = absl::Seconds(5)) {
    return node_->Exchange({{"GET", "k"}}, ReplyLimits{1 << 20, 0}, DeadlineIn(limit));
  }
  // A server that answers every request with `bytes`.
  ScriptedServer::Script Answering(std::string bytes) {
    return [bytes](int fd) {
      while (!ReadSome(fd).empty()) WriteAll(fd, bytes);
    };
  }
  void ExpectErrorWithinLimit(absl::StatusCode code) {
    const absl::Time start = absl::Now();
    auto replies = Get(kLimit);
    EXPECT_EQ(replies.status().code(), code) << replies.status();
    EXPECT_LT(absl::Now() - start, kLimit + kSlack);
  }

  Resolver resolver_;
  NodeOptions options_;
  std::shared_ptr<Node> node_;
};

TEST_F(NodeTest, KeepsItsConnection) {
  ScriptedServer server(Answering("$1\r\nv\r\n"));
  Open(server.endpoint());
  for (int i = 0; i < 10; ++i) {
    auto replies = Get();
    ASSERT_TRUE(replies.ok()) << replies.status();
    EXPECT_EQ(replies->front().text, "v");
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST_F(NodeTest, SendsTheCommandAsTheProtocolHasIt) {
  std::string request;
  ScriptedServer server([&](int fd) {
    request = ReadSome(fd);
    WriteAll(fd, "$-1\r\n");
  });
  Open(server.endpoint());
  ASSERT_TRUE(Get().ok());
  EXPECT_EQ(request, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
}

TEST_F(NodeTest, AuthenticatesAndSelects) {
  std::string request;
  ScriptedServer server([&](int fd) {
    request = ReadSome(fd);
    WriteAll(fd, "+OK\r\n+OK\r\n");
    ReadSome(fd);
    WriteAll(fd, "$-1\r\n");
  });
  options_.connection.user = "me";
  options_.connection.password = "secret";
  options_.connection.database = 3;
  Open(server.endpoint());
  ASSERT_TRUE(Get().ok());
  EXPECT_EQ(request,
            "*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$6\r\nsecret\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n");
}

TEST_F(NodeTest, ARefusedLogInSaysSo) {
  ScriptedServer server(Answering("-WRONGPASS invalid\r\n"));
  options_.connection.password = "wrong";
  Open(server.endpoint());
  auto replies = Get();
  EXPECT_TRUE(absl::IsPermissionDenied(replies.status())) << replies.status();
  EXPECT_THAT(std::string(replies.status().message()), HasSubstr("WRONGPASS"));
}

TEST_F(NodeTest, AServerThatNeverAnswersCostsTheLimit) {
  ScriptedServer server([](int fd) {
    while (!ReadSome(fd).empty()) continue;
  });
  Open(server.endpoint());
  ExpectErrorWithinLimit(absl::StatusCode::kDeadlineExceeded);
}

TEST_F(NodeTest, AServerThatDripsCostsTheLimitToo) {
  ScriptedServer server([](int fd) {
    ReadSome(fd);
    WriteAll(fd, "$1000\r\n");
    const absl::Time end = absl::Now() + absl::Seconds(5);
    while (absl::Now() < end && send(fd, "x", 1, MSG_NOSIGNAL) == 1) {
      absl::SleepFor(absl::Milliseconds(5));
    }
  });
  Open(server.endpoint());
  ExpectErrorWithinLimit(absl::StatusCode::kDeadlineExceeded);
}

TEST_F(NodeTest, AReplyThatComesLateNeverAnswersTheNextRequest) {
  std::atomic<int> connection = 0;
  ScriptedServer server([&](int fd) {
    const int number = ++connection;
    ReadSome(fd);
    if (number == 1) absl::SleepFor(kLimit * 2);
    WriteAll(fd, absl::StrCat("$1\r\n", number, "\r\n"));
    ReadSome(fd);
  });
  Open(server.endpoint());
  EXPECT_TRUE(absl::IsDeadlineExceeded(Get(kLimit).status()));
  absl::SleepFor(kLimit * 2);
  auto replies = Get();
  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ(replies->front().text, "2");
}

TEST_F(NodeTest, NonsenseClosesTheConnection) {
  ScriptedServer server(Answering("HTTP/1.1 400 Bad Request\r\n\r\n"));
  Open(server.endpoint());
  ExpectErrorWithinLimit(absl::StatusCode::kDataLoss);
  ExpectErrorWithinLimit(absl::StatusCode::kDataLoss);
  EXPECT_EQ(server.connections(), 2);
}

TEST_F(NodeTest, MoreThanWasAskedForIsNonsense) {
  ScriptedServer server(Answering("$1\r\na\r\n$1\r\nb\r\n"));
  Open(server.endpoint());
  ExpectErrorWithinLimit(absl::StatusCode::kDataLoss);
}

TEST_F(NodeTest, HugeAnswersAreRefusedAndNoReasonToLeaveTheServerAlone) {
  ScriptedServer server(Answering("$99999999\r\n"));
  Open(server.endpoint());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(absl::IsResourceExhausted(Get().status())) << i;
  }
  EXPECT_EQ(node_->breaker(), BreakerState::kClosed);
}

TEST_F(NodeTest, EndlessAnswersOpenTheBreaker) {
  ScriptedServer server([](int fd) {
    ReadSome(fd);
    WriteAll(fd, "+" + std::string(1 << 20, 'x'));
  });
  Open(server.endpoint());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(absl::IsDataLoss(Get().status())) << i;
  EXPECT_EQ(node_->breaker(), BreakerState::kOpen);
}

TEST_F(NodeTest, AnAnswerCutOffIsAFailure) {
  ScriptedServer server([](int fd) {
    ReadSome(fd);
    WriteAll(fd, "$10\r\nabc");
  });
  Open(server.endpoint());
  ExpectErrorWithinLimit(absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, AServerThatClosedAnIdleConnectionIsConnectedAnew) {
  ScriptedServer server([](int fd) {  // one request a connection
    ReadSome(fd);
    WriteAll(fd, "$-1\r\n");
  });
  Open(server.endpoint());
  for (int i = 1; i <= 5; ++i) {
    ASSERT_TRUE(Get().ok());
    // The server's end of it is certain to have come once its script is over.
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(server.connections(), 5);
}

TEST_F(NodeTest, FailuresOpenTheBreakerAndThenNothingIsSent) {
  ScriptedServer server(Answering("-LOADING the data\r\n"));
  Open(server.endpoint());
  for (int i = 0; i < 5; ++i) {
    auto replies = Get();
    ASSERT_TRUE(replies.ok());
    EXPECT_TRUE(replies->front().is_error());
  }
  EXPECT_EQ(node_->breaker(), BreakerState::kOpen);
  auto replies = Get();
  EXPECT_TRUE(absl::IsUnavailable(replies.status()));
  EXPECT_THAT(std::string(replies.status().message()), HasSubstr("left alone"));
}

TEST_F(NodeTest, AfterAWhileAProbeFindsItBack) {
  std::atomic<bool> good = false;
  ScriptedServer server([&](int fd) {
    while (!ReadSome(fd).empty()) WriteAll(fd, good ? "$-1\r\n" : "-LOADING x\r\n");
  });
  options_.breaker = {
      .failures_to_open = 1, .min_open = absl::Milliseconds(20), .max_open = absl::Seconds(1)};
  Open(server.endpoint());
  ASSERT_TRUE(Get().ok());
  EXPECT_EQ(node_->breaker(), BreakerState::kOpen);
  good = true;
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (!Get().ok() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(node_->breaker(), BreakerState::kClosed);
}

TEST_F(NodeTest, NobodyListeningIsUnavailableAtOnce) {
  Endpoint endpoint = ScriptedServer([](int) {}).endpoint();  // its port is free again
  Open(endpoint);
  ExpectErrorWithinLimit(absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, ANameThatNobodyKnowsIsNoWaitBeyondTheLimit) {
  Open({"no-such-host.invalid", 6379});
  const absl::Time start = absl::Now();
  EXPECT_FALSE(Get(kLimit).ok());
  EXPECT_LT(absl::Now() - start, kLimit + kSlack);
}

TEST_F(NodeTest, ANameOfThisMachineWorks) {
  ScriptedServer server(Answering("$-1\r\n"));
  Open({"localhost", server.endpoint().port});
  EXPECT_TRUE(Get().ok()) << Get().status();
}

TEST_F(NodeTest, NoMoreConnectionsThanItsLimit) {
  std::atomic<int> at_once = 0;
  std::atomic<int> most = 0;
  ScriptedServer server([&](int fd) {
    while (!ReadSome(fd).empty()) {
      const int now = ++at_once;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) continue;
      absl::SleepFor(absl::Milliseconds(5));
      --at_once;
      WriteAll(fd, "$-1\r\n");
    }
  });
  options_.max_connections = 2;
  Open(server.endpoint());
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; ++k) good += Get().ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 40);
  EXPECT_LE(most, 2);
  EXPECT_LE(server.connections(), 2);
}

}  // namespace
}  // namespace kiln::cache
