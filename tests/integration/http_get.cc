#include "tests/integration/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kiln::integration {
namespace {

absl::StatusOr<std::string> Exchange(int fd, const sockaddr_in& to, const std::string& request) {
  timeval limit = {.tv_sec = 10};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0 ||
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(request.size())) {
    return absl::UnavailableError("cannot connect");
  }
  std::string answer;
  char buffer[16384];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  if (n < 0) return absl::UnavailableError("no answer in time");
  return answer;
}

}  // namespace

absl::StatusOr<HttpAnswer> HttpGet(const std::string& address, absl::string_view path,
                                   absl::string_view host) {
  std::vector<std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) ||
      inet_pton(AF_INET, parts[0].c_str(), &to.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("not an address: ", address));
  }
  to.sin_port = htons(static_cast<uint16_t>(port));
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto text =
      Exchange(fd, to,
               absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", host.empty() ? address : host,
                            "\r\nConnection: close\r\n\r\n"));
  close(fd);
  if (!text.ok()) return text.status();
  HttpAnswer answer;
  size_t body = text->find("\r\n\r\n");
  std::vector<std::string> words = absl::StrSplit(*text, absl::MaxSplits(' ', 2));
  if (body == std::string::npos || words.size() != 3 || !absl::SimpleAtoi(words[1], &answer.code)) {
    return absl::InternalError(absl::StrCat("not HTTP: ", *text));
  }
  answer.headers = text->substr(0, body);
  answer.body = text->substr(body + 4);
  return answer;
}

}  // namespace kiln::integration
