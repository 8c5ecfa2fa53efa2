// Who may see metrics and pages.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/web/http.h"

namespace kiln::server {

// Whether `authorization`, a request's header of that name, shows the token with this SHA-256 (32
// bytes): "Bearer TOKEN", or "Basic", as browsers send it, with the token as the password.
bool ShowsToken(absl::string_view authorization, absl::string_view token_sha256);

// Every route but "/healthz" and "/readyz" answers 401 without the token. An empty hash lets
// everybody in.
HttpRoutes RequireToken(HttpRoutes routes, const std::string& token_sha256);

}  // namespace kiln::server
