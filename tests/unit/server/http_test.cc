#include "server/web/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    timeval limit = {.tv_sec = 10};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Up to and with `until`, or to the end of the connection.
  std::string Ask(const std::string& request, const std::string& until) {
    EXPECT_EQ(send(fd_, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    char byte;
    while (answer.find(until) == std::string::npos && recv(fd_, &byte, 1, 0) == 1) answer += byte;
    return answer;
  }

 private:
  const int fd_;
};

class HttpTest : public ::testing::Test {
 protected:
  HttpTest() {
    HttpRoutes routes;
    routes["/"].get = [](const HttpRequest&) { return HttpReply{.body = "root."}; };
    routes["/under/"].get = [](const HttpRequest& request) {
      return HttpReply{.body = absl::StrCat(request.path, "|", request.Parameter("a b"), "|",
                                            request.Header("x-NAME"), ".")};
    };
    routes["/under/"].post = [](const HttpRequest& request) {
      return HttpReply{.code = 202, .body = absl::StrCat(request.method, ".")};
    };
    auto server = HttpServer::Start({"127.0.0.1", 0}, std::move(routes), {.hosts = {"x"}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Ask(const std::string& method, const std::string& path,
                  const std::string& headers = "") {
    return Connection(server_->address().port)
        .Ask(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\n", headers,
                          "Connection: close\r\n\r\n"),
             "no such end");
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, PathsMatchWholeOrBelow) {
  EXPECT_THAT(Ask("GET", "/"), HasSubstr("root."));
  EXPECT_THAT(Ask("GET", "/nothing"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("GET", "/under"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("GET", "/underneath"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("GET", "/under/a/b%20c"), HasSubstr("/under/a/b c||."));
  EXPECT_THAT(Ask("GET", "/under/../../etc/passwd"), Not(HasSubstr("root:")));
}

TEST_F(HttpTest, ParametersAndHeadersReachTheHandler) {
  EXPECT_THAT(Ask("GET", "/under/x?b=1&a+b=%3Cc%3E%2", "X-Name: value\r\n"),
              HasSubstr("/under/x|<c>%2|value."));
}

TEST_F(HttpTest, MethodsThatARouteDoesNotTakeAreRefused) {
  EXPECT_THAT(Ask("POST", "/under/x", "Content-Length: 0\r\n"), HasSubstr("POST."));
  EXPECT_THAT(Ask("POST", "/", "Content-Length: 0\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask("DELETE", "/"), StartsWith("HTTP/1.1 405"));
  std::string head = Ask("HEAD", "/");
  EXPECT_THAT(head, HasSubstr("Content-Length: 5"));
  EXPECT_THAT(head, Not(HasSubstr("root.")));
}

TEST_F(HttpTest, AConnectionIsKeptForTheNextRequest) {
  Connection connection(server_->address().port);
  for (int i = 0; i < 3; ++i) {
    std::string answer = connection.Ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "root.");
    EXPECT_THAT(answer, HasSubstr("Connection: keep-alive"));
    EXPECT_THAT(answer, HasSubstr("root."));
  }
}

TEST_F(HttpTest, ManyIdleConnectionsDoNotKeepAProbeOut) {
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 40; ++i) {
    idle.push_back(std::make_unique<Connection>(server_->address().port));
    if (i < 12) idle.back()->Ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "root.");
  }
  idle.erase(idle.begin() + 12, idle.end());  // those that never asked
  absl::Time start = absl::Now();
  EXPECT_THAT(Ask("GET", "/"), HasSubstr("root."));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST_F(HttpTest, ItEndsAtOnceAlsoWithAConnectionOpen) {
  Connection connection(server_->address().port);
  connection.Ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "root.");
  absl::Time start = absl::Now();
  server_.reset();
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(900));
}

TEST_F(HttpTest, OnlyKnownHostsGetAPage) {
  auto ask = [&](const std::string& headers) {
    return Connection(server_->address().port)
        .Ask(absl::StrCat("GET / HTTP/1.1\r\n", headers, "Connection: close\r\n\r\n"), "no end");
  };
  EXPECT_THAT(ask("Host: X.:1\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask("Host: y\r\n"), StartsWith("HTTP/1.1 421"));
  EXPECT_THAT(ask(""), StartsWith("HTTP/1.1 421"));
  EXPECT_THAT(ask("Host: x\r\nhost: y\r\n"), StartsWith("HTTP/1.1 400"));
}

TEST_F(HttpTest, RequestsMayComeTogetherAndInPieces) {
  Connection connection(server_->address().port);
  std::string both =
      connection.Ask("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /under/2 HTTP/1.1\r\nH", "root.");
  EXPECT_THAT(both, HasSubstr("root."));
  EXPECT_THAT(connection.Ask("ost: x\r\n\r\n", "/under/2||."), HasSubstr("/under/2||"));
}

TEST_F(HttpTest, WhatIsNoRequestIsRefused) {
  auto ask = [&](const std::string& bytes) {
    return Connection(server_->address().port).Ask(bytes, "no end");
  };
  const std::string host = "Host: x\r\n";
  EXPECT_THAT(ask("GET /\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("GET / HTTP/2.0\r\n\r\n"), StartsWith("HTTP/1.1 505"));
  EXPECT_THAT(ask("GET /a%00b HTTP/1.1\r\n" + host + "\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("POST /under/x HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(ask("POST /under/x HTTP/1.1\r\n" + host + "Content-Length: 70000\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(ask("POST /under/x HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("GET / HTTP/1.1\r\n" + host + "X: " + std::string(20000, 'x')),
              StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpTest, TheOldestUnendedRequestMakesRoom) {
  HttpRoutes routes;
  routes["/"].get = [](const HttpRequest&) { return HttpReply{.body = "root."}; };
  auto small =
      HttpServer::Start({"127.0.0.1", 0}, std::move(routes), {.connections_of_address = 2});
  ASSERT_TRUE(small.ok());
  Connection first((*small)->address().port);
  EXPECT_THAT(first.Ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "root."), HasSubstr("root."));
  std::vector<std::unique_ptr<Connection>> unended;
  for (int i = 0; i < 5; ++i) {
    unended.push_back(std::make_unique<Connection>((*small)->address().port));
    unended.back()->Ask("G", "");
  }
  EXPECT_EQ(first.Ask("", "anything"), "");  // closed
  EXPECT_EQ(unended[2]->Ask("", "anything"), "");
  EXPECT_THAT(unended[4]->Ask("ET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "root."),
              HasSubstr("root."));
}

TEST_F(HttpTest, AnAddressInUseIsAnError) {
  auto second = HttpServer::Start(server_->address(), {});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
}

}  // namespace
}  // namespace kiln::server
