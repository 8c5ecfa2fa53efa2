#include "cache/remote/slots.h"

#include <array>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kiln::cache {
namespace {

constexpr size_t kMaxHostBytes = 255;

constexpr std::array<uint16_t, 256> MakeCrcTable() {
  std::array<uint16_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}
constexpr std::array<uint16_t, 256> kCrcTable = MakeCrcTable();

uint16_t Crc16(absl::string_view text) {
  uint16_t crc = 0;
  for (char c : text) {
    crc = static_cast<uint16_t>((crc << 8) ^ kCrcTable[(crc >> 8) ^ static_cast<uint8_t>(c)]);
  }
  return crc;
}

bool IsSlot(int64_t slot) {
  return slot >= 0 && slot < kSlots;
}

// Servers that do not know their own name, or hide it, leave it out or say "?".
bool IsUnknownHost(absl::string_view host) {
  return host.empty() || host == "?";
}

bool IsPort(int64_t port) {
  return port > 0 && port < 65536;
}

absl::Status BadSlots(size_t range, absl::string_view why) {
  return absl::DataLossError(absl::StrCat("range ", range, " of CLUSTER SLOTS ", why));
}

}  // namespace

int KeySlot(absl::string_view key) {
  if (const size_t open = key.find('{'); open != absl::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != absl::string_view::npos && close != open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return Crc16(key) % kSlots;
}

std::optional<Redirection> ParseRedirection(absl::string_view error, const Endpoint& asked) {
  Redirection redirection;
  if (absl::ConsumePrefix(&error, "ASK ")) {
    redirection.ask = true;
  } else if (!absl::ConsumePrefix(&error, "MOVED ")) {
    return std::nullopt;
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(error, absl::MaxSplits(' ', 1));
  const size_t colon = parts.second.rfind(':');  // a host may be an IPv6 address
  if (colon == absl::string_view::npos || colon > kMaxHostBytes ||
      !absl::SimpleAtoi(parts.first, &redirection.slot) || !IsSlot(redirection.slot) ||
      !absl::SimpleAtoi(parts.second.substr(colon + 1), &redirection.endpoint.port) ||
      !IsPort(redirection.endpoint.port)) {
    return std::nullopt;
  }
  const absl::string_view host = parts.second.substr(0, colon);
  redirection.endpoint.host = IsUnknownHost(host) ? asked.host : std::string(host);
  return redirection;
}

absl::StatusOr<std::vector<SlotRange>> SlotRangesOf(const Reply& reply, const Endpoint& asked) {
  if (reply.is_error()) {
    // "ERR This instance has cluster support disabled", "ERR unknown command", and the like; other
    // words (LOADING, NOAUTH, NOPERM) say nothing about what the server is.
    const bool no_cluster = absl::StartsWith(reply.text, "ERR ");
    return absl::Status(
        no_cluster ? absl::StatusCode::kUnimplemented : absl::StatusCode::kUnavailable,
        absl::StrCat("CLUSTER SLOTS is refused: ", reply.text.substr(0, 200)));
  }
  if (reply.type != Reply::Type::kArray) {
    return absl::DataLossError(
        absl::StrCat("CLUSTER SLOTS answers with a ", ReplyTypeName(reply.type)));
  }
  std::vector<SlotRange> ranges;
  for (size_t i = 0; i < reply.elements.size(); ++i) {
    const std::vector<Reply>& row = reply.elements[i].elements;
    if (row.size() < 3 || row[0].type != Reply::Type::kInteger ||
        row[1].type != Reply::Type::kInteger) {
      return BadSlots(i, "is not two numbers and a node");
    }
    if (!IsSlot(row[0].integer) || !IsSlot(row[1].integer) || row[0].integer > row[1].integer) {
      return BadSlots(i, "is no range of slots");
    }
    const std::vector<Reply>& node = row[2].elements;
    if (node.size() < 2 || node[1].type != Reply::Type::kInteger || !IsPort(node[1].integer) ||
        node[0].text.size() > kMaxHostBytes ||
        (node[0].type != Reply::Type::kString && node[0].type != Reply::Type::kNil)) {
      return BadSlots(i, "names no node");
    }
    ranges.push_back({static_cast<int>(row[0].integer),
                      static_cast<int>(row[1].integer),
                      {IsUnknownHost(node[0].text) ? asked.host : node[0].text,
                       static_cast<int>(node[1].integer)}});
  }
  return ranges;
}

}  // namespace kiln::cache
