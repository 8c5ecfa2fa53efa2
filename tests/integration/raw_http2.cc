#include "tests/integration/raw_http2.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/raw_socket.h"

namespace kiln::integration {
namespace {

// https://www.rfc-editor.org/rfc/rfc9113#section-6
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr uint16_t kInitialWindowSize = 4;
constexpr size_t kFrameBytes = 16384;

std::string BigEndian(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}
uint32_t ReadBigEndian(absl::string_view text) {
  uint32_t value = 0;
  for (char c : text) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

// A literal that no table keeps, under 127 bytes:
// https://www.rfc-editor.org/rfc/rfc7541#section-6.2.2
std::string Header(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

}  // namespace

RawHttp2::RawHttp2(const std::string& address, const std::string& from)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  open_ = ConnectFrom(fd_, from, address);
  SendAll("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  SendFrame(kSettings, 0, 0, "");
  Listen(absl::Milliseconds(50));
}

RawHttp2::~RawHttp2() {
  close(fd_);
}

uint32_t RawHttp2::Begin(const std::string& path, uint32_t announced_bytes) {
  const uint32_t stream = std::exchange(next_stream_, next_stream_ + 2);
  SendFrame(kHeaders, kEndHeaders, stream,
            absl::StrCat(Header(":method", "POST"), Header(":scheme", "http"),
                         Header(":path", path), Header(":authority", "localhost"),
                         Header("content-type", "application/grpc"), Header("te", "trailers")));
  const std::string prefix = absl::StrCat(std::string(1, '\0'), BigEndian(announced_bytes, 4));
  SendFrame(kData, 0, stream, prefix);
  const auto size = static_cast<int64_t>(prefix.size());
  streams_[stream] = {.window = initial_window_ - size};
  window_ -= size;
  return stream;
}

int64_t RawHttp2::SendToAll(int64_t bytes, absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  const std::string payload(kFrameBytes, 'x');
  for (auto& [id, stream] : streams_) stream.wanted = stream.sent + bytes;
  int64_t sent = 0;
  bool left = true;
  while (left && open_ && absl::Now() < end) {
    left = false;
    bool moved = false;
    // What ends a stream is taken between the rounds.
    for (auto& [id, stream] : streams_) {
      const int64_t size = std::min(
          {stream.wanted - stream.sent, stream.window, window_, static_cast<int64_t>(kFrameBytes)});
      left = left || stream.sent < stream.wanted;
      if (size <= 0) continue;
      SendFrame(kData, 0, id, absl::string_view(payload).substr(0, static_cast<size_t>(size)));
      stream.window -= size;
      stream.sent += size;
      window_ -= size;
      sent += size;
      moved = true;
    }
    Receive(moved ? absl::ZeroDuration() : absl::Milliseconds(20));
  }
  return sent;
}

void RawHttp2::Listen(absl::Duration time) {
  const absl::Time end = absl::Now() + time;
  for (absl::Time now = absl::Now(); open_ && now < end; now = absl::Now()) Receive(end - now);
}

void RawHttp2::SendAll(absl::string_view bytes) {
  while (open_ && !bytes.empty()) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) {
      open_ = false;
    } else {
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
}

void RawHttp2::SendFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  SendAll(absl::StrCat(BigEndian(payload.size(), 3), BigEndian(type, 1), BigEndian(flags, 1),
                       BigEndian(stream, 4), payload));
}

void RawHttp2::Receive(absl::Duration limit) {
  pollfd ready = {fd_, POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) <= 0) return;
  char buffer[65536];
  const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
  if (n <= 0) {
    open_ = false;
    return;
  }
  received_.append(buffer, static_cast<size_t>(n));
  absl::string_view rest = received_;
  while (rest.size() >= 9) {
    const size_t size = ReadBigEndian(rest.substr(0, 3));
    if (rest.size() < 9 + size) break;
    TakeFrame(static_cast<uint8_t>(rest[3]), static_cast<uint8_t>(rest[4]),
              ReadBigEndian(rest.substr(5, 4)), rest.substr(9, size));
    rest.remove_prefix(9 + size);
  }
  received_ = std::string(rest);
}

void RawHttp2::TakeFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  if (type == kSettings && (flags & kAck) == 0) {
    for (; payload.size() >= 6; payload.remove_prefix(6)) {
      if (ReadBigEndian(payload.substr(0, 2)) != kInitialWindowSize) continue;
      const int64_t size = ReadBigEndian(payload.substr(2, 4));
      for (auto& [id, open] : streams_) open.window += size - initial_window_;
      initial_window_ = size;
    }
    SendFrame(kSettings, kAck, 0, "");
  } else if (type == kPing && (flags & kAck) == 0) {
    SendFrame(kPing, kAck, 0, payload);
  } else if (type == kWindowUpdate) {
    const int64_t more = ReadBigEndian(payload);
    if (stream == 0) window_ += more;
    if (auto it = streams_.find(stream); it != streams_.end()) it->second.window += more;
  } else if (type == kReset || (type == kHeaders && (flags & kEndStream) != 0)) {
    if (streams_.erase(stream) == 0) return;
    std::string& status = ended_[stream];
    const absl::string_view name = "grpc-status";
    const size_t at = payload.find(name);
    if (type == kReset || at == absl::string_view::npos) return;
    const auto size = static_cast<uint8_t>(payload[at + name.size()]);
    if (size < 8) status = std::string(payload.substr(at + name.size() + 1, size));
  }
}

}  // namespace kiln::integration
