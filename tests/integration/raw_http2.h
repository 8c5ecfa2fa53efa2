// A client that speaks just enough HTTP/2 to misbehave: it begins requests and does not end them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kiln::integration {

// One connection, used by one thread.
class RawHttp2 {
 public:
  // `address`: "127.0.0.1:PORT"; `from`: this end's address.
  explicit RawHttp2(const std::string& address, const std::string& from = "127.0.0.1");
  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // A call of `path`, whose message says that it has `announced_bytes`. Returns its stream.
  uint32_t Begin(const std::string& path, uint32_t announced_bytes);
  // Sends up to `bytes` more of each message that is under way, as far as the server's windows let
  // it within `limit`. Returns what was sent in all.
  int64_t SendToAll(int64_t bytes, absl::Duration limit);
  // Takes what the server sends for `time`.
  void Listen(absl::Duration time);

  bool open() const { return open_; }
  // Streams that the server has ended, by their grpc-status in plain text; "" where none was seen.
  const std::map<uint32_t, std::string>& ended() const { return ended_; }
  size_t under_way() const { return streams_.size(); }

 private:
  struct Stream {
    int64_t window = 0;
    int64_t sent = 0;
    int64_t wanted = 0;
  };
  void SendFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);
  void SendAll(absl::string_view bytes);
  // Waits up to `limit` for something.
  void Receive(absl::Duration limit);
  void TakeFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);

  int fd_ = -1;
  bool open_ = false;
  std::string received_;
  int64_t window_ = 65535;
  int64_t initial_window_ = 65535;
  uint32_t next_stream_ = 1;
  std::map<uint32_t, Stream> streams_;
  std::map<uint32_t, std::string> ended_;
};

}  // namespace kiln::integration
