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
#include "absl/time/time.h"
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

// Each kind has threads of its own. Pages are for browsers: they are answered only where the Host
// header is an IP address, localhost, the address listened on, or one of HttpLimits::hosts, so that
// a page of another site, whose name leads here, gets nothing.
enum class HttpKind { kPage, kMetrics, kProbe };

// What answers a path; called on the server's own threads, several at a time. The others' methods
// are answered with 405.
struct HttpRoute {
  HttpHandler get;
  HttpHandler post;
  HttpKind kind = HttpKind::kPage;
};

// By path. "/under/" also takes every path that begins so; "/" takes only itself.
using HttpRoutes = std::map<std::string, HttpRoute>;

struct HttpLimits {
  std::vector<std::string> hosts;  // lower case, without ports
  // Beyond these the connection closes that has waited longest for a whole request.
  int connections = 256;
  int connections_of_address = 64;
  absl::Duration request = absl::Seconds(5);  // from the connection's begin, or a request's
  absl::Duration idle = absl::Seconds(15);    // between requests
  absl::Duration reply = absl::Seconds(30);   // for the client to take it
};

// Serves until destroyed, which takes no longer than the handlers that run.
class HttpServer {
 public:
  // ALREADY_EXISTS where the address is taken or not this machine's, RESOURCE_EXHAUSTED without
  // descriptors.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Address& address,
                                                           HttpRoutes routes,
                                                           const HttpLimits& limits = {});
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
