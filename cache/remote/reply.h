// Replies of a server that speaks the Redis protocol (RESP2). The server is not trusted: what it
// sends is bounded in bytes, elements and depth before memory is taken for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

struct redisReader;

namespace kiln::cache {

struct Reply {
  enum class Type { kNil, kString, kStatus, kError, kInteger, kArray };
  Type type = Type::kNil;
  std::string text;  // of a string, status or error
  int64_t integer = 0;
  std::vector<Reply> elements;

  bool is_error() const { return type == Type::kError; }
};

// "nil", "string", ...: for messages.
absl::string_view ReplyTypeName(Reply::Type type);

struct ReplyLimits {
  int64_t max_bytes = 64 << 10;  // of the whole reply as it is sent
  int max_elements = 64;         // of all arrays together
  // Where several commands are sent at once, each reply has at least this long from the one before:
  // many may take longer than one, but a server that stalls costs no more.
  absl::Duration time_per_reply = absl::ZeroDuration();
};

// Turns bytes into replies, by hiredis' parser. Not thread-safe.
class ReplyReader {
 public:
  explicit ReplyReader(const ReplyLimits& limits);
  ~ReplyReader();
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  // RESOURCE_EXHAUSTED where a reply announces more bytes than the limit. After any error the
  // reader, and the connection that the bytes came from, are of no more use.
  // REQUIRES: every complete reply of what was fed before was taken off.
  absl::Status Feed(absl::string_view bytes);
  // Takes the next complete reply off; false where there is none yet; DATA_LOSS where the bytes are
  // no reply, one of too many elements, or one that goes on beyond the limit without having said
  // so.
  absl::StatusOr<bool> Next(Reply& reply);
  // Whether no byte is left that no reply has taken.
  bool empty() const { return fed_bytes_ == 0; }

  // Private to the .cc: what hiredis' callbacks see.
  struct Budget;

 private:
  const ReplyLimits limits_;
  std::unique_ptr<Budget> budget_;
  redisReader* const reader_;
  int64_t fed_bytes_ = 0;  // since the last complete reply
  std::string head_;       // the first of those
};

// The one reply that `bytes` are. DATA_LOSS where they are none, half of one or more than one;
// RESOURCE_EXHAUSTED as for Feed.
absl::StatusOr<Reply> ParseReply(absl::string_view bytes, const ReplyLimits& limits);

}  // namespace kiln::cache
