// One GET over plain HTTP/1.1.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::integration {

struct HttpAnswer {
  int code = 0;
  std::string headers;
  std::string body;
};

// `address`: "127.0.0.1:PORT"; `host`: what the request calls it, the same if empty. UNAVAILABLE
// where nobody answers.
absl::StatusOr<HttpAnswer> HttpGet(const std::string& address, absl::string_view path,
                                   absl::string_view host = "");

}  // namespace kiln::integration
