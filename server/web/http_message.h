// HTTP/1.1 requests and replies as bytes.
// https://www.rfc-editor.org/rfc/rfc9112
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "server/web/http.h"

namespace kiln::server {

inline constexpr size_t kMaxHttpHeadBytes = 16 << 10;
inline constexpr size_t kMaxHttpBodyBytes = 64 << 10;  // is read and not looked at

struct ParsedRequest {
  enum class State { kIncomplete, kWhole, kRefused };
  State state = State::kIncomplete;
  HttpRequest request;  // of a whole one; its method is the one that was sent
  size_t bytes = 0;     // that it takes, body included
  bool keep_alive = false;
  int refusal = 400;  // of a refused one
};

// Looks at the first request of `bytes`. Refuses what is no HTTP/1, is over the limits above, has a
// body of unknown length, or could be read in two ways.
ParsedRequest ParseRequest(absl::string_view bytes);

std::string SerializeReply(const HttpReply& reply, bool with_body, bool keep_alive);

// "kiln.example" of "Kiln.example.:7462", "::1" of "[::1]"; empty for what is no host.
std::string HostName(absl::string_view host_header);
bool IsAddress(const std::string& host);

}  // namespace kiln::server
