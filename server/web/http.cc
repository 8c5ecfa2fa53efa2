#include "server/web/http.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

// A connection holds a thread while it is open, idle or not: the time is short, and above half of
// the threads connections are closed after each answer, so that open pages never keep a probe out.
constexpr int kThreads = 16;
constexpr int kMaxKeptAlive = kThreads / 2;
constexpr int kKeepAliveMs = 400;

std::atomic<int> g_connections{0};

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

std::string Decode(absl::string_view text, bool form) {
  std::string out;
  auto digit = [](char c) { return absl::ascii_isdigit(c) ? c - '0' : (c | 0x20) - 'a' + 10; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      out.push_back(static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(form && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

HttpRequest ReadRequest(const mg_request_info& info, const char* method) {
  HttpRequest request;
  request.method = method;
  request.path = info.local_uri == nullptr ? "" : info.local_uri;
  request.query = info.query_string == nullptr ? "" : info.query_string;
  for (int i = 0; i < info.num_headers; ++i) {
    request.headers.emplace_back(info.http_headers[i].name, info.http_headers[i].value);
  }
  return request;
}

bool HasHeader(const HttpReply& reply, absl::string_view name) {
  for (const auto& [key, value] : reply.headers) {
    if (absl::EqualsIgnoreCase(key, name)) return true;
  }
  return false;
}

void Send(mg_connection* connection, const HttpReply& reply, bool with_body) {
  bool keep = g_connections.load(std::memory_order_relaxed) <= kMaxKeptAlive;
  if (!keep) mg_disable_connection_keep_alive(connection);
  std::string text = absl::StrCat("HTTP/1.1 ", reply.code, " ", Reason(reply.code), "\r\n");
  if (reply.code != 304) {
    absl::StrAppend(&text, "Content-Type: ", reply.content_type,
                    "\r\nContent-Length: ", reply.body.size(), "\r\n");
  }
  for (const auto& [name, value] : reply.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  if (!HasHeader(reply, "Cache-Control")) absl::StrAppend(&text, "Cache-Control: no-store\r\n");
  absl::StrAppend(&text,
                  "X-Content-Type-Options: nosniff\r\nConnection: ", keep ? "keep-alive" : "close",
                  "\r\n\r\n");
  if (with_body && reply.code != 304) text += reply.body;
  mg_write(connection, text.data(), text.size());
}

class Route final : public CivetHandler {
 public:
  Route(std::string path, HttpRoute route) : path_(std::move(path)), route_(std::move(route)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    return Answer(connection, "GET", route_.get, true);
  }
  bool handleHead(CivetServer*, mg_connection* connection) override {
    return Answer(connection, "GET", route_.get, false);
  }
  bool handlePost(CivetServer*, mg_connection* connection) override {
    return Answer(connection, "POST", route_.post, true);
  }

 private:
  bool Answer(mg_connection* connection, const char* method, const HttpHandler& handler,
              bool with_body) const {
    HttpRequest request = ReadRequest(*mg_get_request_info(connection), method);
    HttpReply reply;
    if (!Matches(request.path)) {
      reply = {.code = 404, .body = "no such page\n"};
    } else if (!handler) {
      reply = {.code = 405, .body = "this path does not take this method\n"};
    } else {
      reply = handler(request);
    }
    Send(connection, reply, with_body);
    return true;
  }

  // The library would also give "/path/more" to "/path".
  bool Matches(absl::string_view path) const {
    bool prefix = path_.size() > 1 && path_.back() == '/';
    return prefix ? absl::StartsWith(path, path_) : path == path_;
  }

  const std::string path_;
  const HttpRoute route_;
};

int LogMessage(const mg_connection*, const char* message) {
  Log(LogLevel::kDebug, "http", {{"text", message}});
  return 1;  // not to its own log as well
}

CivetCallbacks MakeCallbacks() {
  CivetCallbacks callbacks;
  callbacks.log_message = &LogMessage;
  callbacks.init_connection = [](const mg_connection*, void**) {
    g_connections.fetch_add(1, std::memory_order_relaxed);
    return 0;
  };
  callbacks.connection_close = [](const mg_connection*) {
    g_connections.fetch_sub(1, std::memory_order_relaxed);
  };
  return callbacks;
}

// Opens a connection and closes it again.
void Knock(const Address& address) {
  bool v6 = address.host.find(':') != std::string::npos;
  int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  auto port = htons(static_cast<uint16_t>(address.port));
  if (v6) {
    sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = port};
    inet_pton(AF_INET6, address.host == "::" ? "::1" : address.host.c_str(), &to.sin6_addr);
    (void)connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));  // only to wake it
  } else {
    sockaddr_in to = {.sin_family = AF_INET, .sin_port = port};
    bool any = address.host == "0.0.0.0" || address.host == "localhost";
    inet_pton(AF_INET, any ? "127.0.0.1" : address.host.c_str(), &to.sin_addr);
    (void)connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));  // only to wake it
  }
  close(fd);
}

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return "";
}

std::string HttpRequest::Parameter(absl::string_view name) const {
  for (absl::string_view pair : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (Decode(parts.first, true) == name) return Decode(parts.second, true);
  }
  return "";
}

struct HttpServer::Impl {
  std::vector<std::unique_ptr<Route>> routes;
  std::unique_ptr<CivetServer> server;  // ends before its routes
};

HttpServer::HttpServer(Address address)
    : address_(std::move(address)), impl_(std::make_unique<Impl>()) {}

// The library's accepting thread looks for the end every two seconds, or when somebody connects.
HttpServer::~HttpServer() {
  if (impl_->server == nullptr) return;
  absl::Notification closed;
  std::thread knocker([&] {
    while (!closed.WaitForNotificationWithTimeout(absl::Milliseconds(10))) Knock(address_);
  });
  impl_->server.reset();
  closed.Notify();
  knocker.join();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& address,
                                                              HttpRoutes routes) {
  Address numeric = address;
  if (numeric.host == "localhost") numeric.host = "127.0.0.1";  // the library takes no names
  std::unique_ptr<HttpServer> http(new HttpServer(address));
  std::vector<std::string> options = {"listening_ports",       numeric.ToString(),
                                      "num_threads",           absl::StrCat(kThreads),
                                      "request_timeout_ms",    "10000",
                                      "enable_keep_alive",     "yes",
                                      "keep_alive_timeout_ms", absl::StrCat(kKeepAliveMs),
                                      "tcp_nodelay",           "1"};
  CivetCallbacks callbacks = MakeCallbacks();
  try {  // the library's own exception ends here
    http->impl_->server = std::make_unique<CivetServer>(options, &callbacks);
  } catch (const CivetException&) {
    return absl::AlreadyExistsError(absl::StrCat(
        "cannot listen on ", address.ToString(),
        " (--metrics-listen): the port is in use or the address is not this machine's"));
  }
  for (auto& [path, route] : routes) {
    http->impl_->routes.push_back(std::make_unique<Route>(path, std::move(route)));
    // A URI that ends in $ matches only itself, another one also what is below it.
    bool prefix = path.size() > 1 && path.back() == '/';
    http->impl_->server->addHandler(
        prefix ? path.substr(0, path.size() - 1) : absl::StrCat(path, "$"),
        http->impl_->routes.back().get());
  }
  std::vector<int> ports = http->impl_->server->getListeningPorts();
  if (!ports.empty()) http->address_.port = ports.front();
  return http;
}

}  // namespace kiln::server
