#include "server/calls/connection.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln::server {
namespace {

constexpr intptr_t kPage = 500;

std::string Take(char* json) {
  if (json == nullptr) return "";
  std::string text(json);
  gpr_free(json);
  return text;
}

// Moves `json` past the next `"name":"<number>"`; false where there is none.
bool NextNumber(absl::string_view& json, absl::string_view name, intptr_t& number) {
  std::string field = absl::StrCat("\"", name, "\":\"");
  size_t at = json.find(field);
  if (at == absl::string_view::npos) return false;
  json.remove_prefix(at + field.size());
  int64_t value = 0;
  if (!absl::SimpleAtoi(json.substr(0, json.find('"')), &value)) return false;
  number = static_cast<intptr_t>(value);
  return true;
}

bool ServerHas(intptr_t server, absl::string_view peer) {
  std::string socket = absl::StrCat(" ", peer, "\"");  // {"name":"chttp2 <peer>","socketId":"3"}
  intptr_t start = 0;
  while (true) {
    std::string page = Take(grpc_channelz_get_server_sockets(server, start, kPage));
    if (absl::StrContains(page, socket)) return true;
    absl::string_view rest = page;
    intptr_t last = -1;
    while (NextNumber(rest, "socketId", last)) {
    }
    if (last < 0 || absl::StrContains(page, "\"end\":true")) return false;
    start = last + 1;
  }
}

}  // namespace

bool ConnectionIsOpen(absl::string_view peer) {
  // One page: a process has a handful of servers.
  std::string servers = Take(grpc_channelz_get_servers(0));
  absl::string_view rest = servers;
  intptr_t server = 0;
  while (NextNumber(rest, "serverId", server)) {
    if (ServerHas(server, peer)) return true;
  }
  return false;
}

}  // namespace kiln::server
