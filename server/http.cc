#include "server/http.h"

#include <CivetServer.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

class Route final : public CivetHandler {
 public:
  explicit Route(std::function<HttpReply()> answer) : answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    HttpReply reply = answer_();
    std::string text = absl::StrCat("HTTP/1.1 ", reply.code, " ", Reason(reply.code),
                                    "\r\nContent-Type: ", reply.content_type,
                                    "\r\nContent-Length: ", reply.body.size(),
                                    "\r\nCache-Control: no-store\r\nX-Content-Type-Options: "
                                    "nosniff\r\nConnection: close\r\n\r\n",
                                    reply.body);
    mg_write(connection, text.data(), text.size());
    return true;
  }

 private:
  const std::function<HttpReply()> answer_;
};

int LogMessage(const mg_connection*, const char* message) {
  Log(LogLevel::kDebug, "http", {{"message", message}});
  return 1;  // not to its own log as well
}

CivetCallbacks MakeCallbacks() {
  CivetCallbacks callbacks;
  callbacks.log_message = &LogMessage;
  return callbacks;
}

}  // namespace

struct HttpServer::Impl {
  std::vector<std::unique_ptr<Route>> routes;
  std::unique_ptr<CivetServer> server;  // ends before its routes
};

HttpServer::HttpServer(Address address)
    : address_(std::move(address)), impl_(std::make_unique<Impl>()) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& address,
                                                              HttpRoutes routes) {
  Address numeric = address;
  if (numeric.host == "localhost") numeric.host = "127.0.0.1";  // the library takes no names
  std::unique_ptr<HttpServer> http(new HttpServer(address));
  std::vector<std::string> options = {
      "listening_ports", numeric.ToString(), "num_threads", "4", "request_timeout_ms", "10000"};
  CivetCallbacks callbacks = MakeCallbacks();
  try {  // the library's own exception ends here
    http->impl_->server = std::make_unique<CivetServer>(options, &callbacks);
  } catch (const CivetException&) {
    return absl::AlreadyExistsError(absl::StrCat(
        "cannot listen on ", address.ToString(),
        " (--metrics-listen): the port is in use or the address is not this machine's"));
  }
  for (auto& [path, answer] : routes) {
    http->impl_->routes.push_back(std::make_unique<Route>(std::move(answer)));
    // A URI that ends in $ matches only itself.
    http->impl_->server->addHandler(absl::StrCat(path, "$"), http->impl_->routes.back().get());
  }
  std::vector<int> ports = http->impl_->server->getListeningPorts();
  if (!ports.empty()) http->address_.port = ports.front();
  return http;
}

}  // namespace kiln::server
