// A small HTTP server for metrics, probes and the web page.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/address.h"

namespace kiln::server {

struct HttpRequest {
  std::string method;  // "GET" or "POST"; HEAD is answered as GET without its body
  std::string path;    // decoded
  std::string query;   // as sent, without '?'
  std::vector<std::pair<std::string, std::string>> headers;

  // Empty where there is no such header; `name` in any case.
  absl::string_view Header(absl::string_view name) const;
  // Of "name=value&...": decoded; empty where it is absent.
  std::string Parameter(absl::string_view name) const;
};

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  // "Cache-Control: no-store" is added where this has none.
  std::vector<std::pair<std::string, std::string>> headers;
};

using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

// What answers a path; called on the server's own threads, several at a time. The others' methods
// are answered with 405.
struct HttpRoute {
  HttpHandler get;
  HttpHandler post;
};

// By path. "/under/" also takes every path that begins so; "/" takes only itself.
using HttpRoutes = std::map<std::string, HttpRoute>;

// Serves until destroyed, which takes no longer than the handlers that run and kKeepAliveMs.
class HttpServer {
 public:
  // ALREADY_EXISTS where the address is taken or not this machine's.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Address& address,
                                                           HttpRoutes routes);
  ~HttpServer();

  // With the real port where 0 was asked for.
  const Address& address() const { return address_; }

 private:
  struct Impl;
  explicit HttpServer(Address address);
  Address address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln::server
