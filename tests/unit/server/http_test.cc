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
    auto server = HttpServer::Start({"127.0.0.1", 0}, std::move(routes));
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

TEST_F(HttpTest, AnAddressInUseIsAnError) {
  auto second = HttpServer::Start(server_->address(), {});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
}

}  // namespace
}  // namespace kiln::server
