#include "server/web/http_guard.h"

#include <openssl/crypto.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "proto/base/digest.h"

namespace kiln::server {
namespace {

HttpHandler Guarded(HttpHandler handler, const std::string& token_sha256) {
  if (!handler) return handler;
  return [handler = std::move(handler), token_sha256](const HttpRequest& request) {
    if (ShowsToken(request.Header("Authorization"), token_sha256)) return handler(request);
    return HttpReply{.code = 401,
                     .body = "this takes the token of --metrics-token-sha256\n",
                     .headers = {{"WWW-Authenticate", "Basic realm=\"kiln\", charset=\"UTF-8\""}}};
  };
}

}  // namespace

bool ShowsToken(absl::string_view authorization, absl::string_view token_sha256) {
  std::string token;
  if (absl::StartsWithIgnoreCase(authorization, "Bearer ")) {
    token = std::string(authorization.substr(7));
  } else if (absl::StartsWithIgnoreCase(authorization, "Basic ")) {
    std::string user_and_password;
    if (!absl::Base64Unescape(authorization.substr(6), &user_and_password)) return false;
    const size_t colon = user_and_password.find(':');
    if (colon == std::string::npos) return false;
    token = user_and_password.substr(colon + 1);
  }
  const Digest digest = Sha256(token);
  return token_sha256.size() == digest.bytes.size() &&
         CRYPTO_memcmp(token_sha256.data(), digest.bytes.data(), digest.bytes.size()) == 0;
}

HttpRoutes RequireToken(HttpRoutes routes, const std::string& token_sha256) {
  if (token_sha256.empty()) return routes;
  for (auto& [path, route] : routes) {
    if (path == "/healthz" || path == "/readyz") continue;
    route.get = Guarded(std::move(route.get), token_sha256);
    route.post = Guarded(std::move(route.post), token_sha256);
  }
  return routes;
}

}  // namespace kiln::server
