// A small HTTP server for metrics and probes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/address.h"

namespace kiln::server {

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Path -> what answers GET there; called on the server's own threads.
using HttpRoutes = std::map<std::string, std::function<HttpReply()>>;

// Serves until destroyed.
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
