#include "server/web/http.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/net/listen.h"
#include "server/web/http_loop.h"
#include "server/web/http_message.h"

namespace kiln::server {
namespace {

constexpr size_t kKinds = 3;
constexpr int kPageThreads = 3;
constexpr size_t kMaxQueued = 256;  // of each kind

// Threads that run handlers of one kind.
class Handlers {
 public:
  explicit Handlers(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Handlers() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      waiting_.clear();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  // False where too many wait.
  bool Add(std::function<void()> work) {
    absl::MutexLock lock(&mu_);
    if (waiting_.size() >= kMaxQueued) return false;
    waiting_.push_back(std::move(work));
    return true;
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &Handlers::HasWork));
        if (stopping_) return;
        work = std::move(waiting_.front());
        waiting_.pop_front();
      }
      work();
    }
  }
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !waiting_.empty(); }

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

HttpReply Answer(const HttpHandler& handler, const HttpRequest& request) {
  if (!handler) return {.code = 405, .body = "this path does not take this method\n"};
  return handler(request);
}

}  // namespace

struct HttpServer::Impl {
  Impl(Listening listening, HttpRoutes all, const HttpLimits& limits, const Address& address)
      : routes(std::move(all)), hosts(limits.hosts) {
    hosts.push_back("localhost");
    hosts.push_back(absl::AsciiStrToLower(address.host));
    loop = std::make_unique<HttpLoop>(std::move(listening), limits,
                                      [this](uint64_t connection, ParsedRequest request) {
                                        Dispatch(connection, std::move(request));
                                      });
  }
  ~Impl() {
    loop->Stop();
    for (auto& of_kind : handlers) of_kind.reset();  // they hold replies for the loop
  }

  void Dispatch(uint64_t connection, ParsedRequest request) {
    const bool with_body = request.request.method != "HEAD";
    const bool keep_alive = request.keep_alive;
    auto reply = [this, connection, with_body, keep_alive](const HttpReply& answer) {
      loop->Reply(connection, SerializeReply(answer, with_body, keep_alive), keep_alive);
    };
    const HttpRoute* route = Find(request.request.path);
    if (route == nullptr) return reply({.code = 404, .body = "no such page\n"});
    if (route->kind == HttpKind::kPage && !IsOwnName(request.request.Header("host"))) {
      return reply({.code = 421,
                    .body = "pages are answered under an IP address, localhost and the names of "
                            "--metrics-hosts\n"});
    }
    std::string& method = request.request.method;
    if (!with_body) method = "GET";
    const HttpHandler& handler = method == "GET"    ? route->get
                                 : method == "POST" ? route->post
                                                    : no_handler;
    auto& threads = *handlers[static_cast<size_t>(route->kind)];
    const bool added = threads.Add([reply, &handler, request = std::move(request.request)] {
      reply(Answer(handler, request));
    });
    if (!added) reply({.code = 503, .body = "too many requests wait\n"});
  }

  const HttpRoute* Find(absl::string_view path) const {
    for (const auto& [name, route] : routes) {
      const bool prefix = name.size() > 1 && name.back() == '/';
      if (prefix ? absl::StartsWith(path, name) : path == name) return &route;
    }
    return nullptr;
  }

  bool IsOwnName(absl::string_view host_header) const {
    const std::string host = HostName(host_header);
    return IsAddress(host) || std::find(hosts.begin(), hosts.end(), host) != hosts.end();
  }

  const HttpRoutes routes;
  const HttpHandler no_handler;
  std::vector<std::string> hosts;
  std::array<std::unique_ptr<Handlers>, kKinds> handlers = {
      std::make_unique<Handlers>(kPageThreads), std::make_unique<Handlers>(1),
      std::make_unique<Handlers>(1)};
  std::unique_ptr<HttpLoop> loop;
};

HttpServer::HttpServer(Address address) : address_(std::move(address)) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& address,
                                                              HttpRoutes routes,
                                                              const HttpLimits& limits) {
  auto listening = Listen(address, "--metrics-listen");
  if (!listening.ok()) return listening.status();
  std::unique_ptr<HttpServer> http(new HttpServer(address));
  http->address_.port = listening->port;
  http->impl_ = std::make_unique<Impl>(*std::move(listening), std::move(routes), limits, address);
  if (!http->impl_->loop->ok()) return absl::ResourceExhaustedError("no descriptor is left");
  http->impl_->loop->Start();
  return http;
}

}  // namespace kiln::server
