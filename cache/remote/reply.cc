#include "cache/remote/reply.h"

#include <hiredis/read.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {

struct ReplyReader::Budget {
  int elements_left = 0;
};

namespace {

// Where the reply of `task` goes: a new root, or the place that its array has for it. The reader
// owns the root through FreeReply until Next takes it over.
Reply* PlaceOf(const redisReadTask* task) {
  if (task->parent == nullptr) return new Reply;
  return &static_cast<Reply*>(task->parent->obj)->elements[static_cast<size_t>(task->idx)];
}

void* CreateString(const redisReadTask* task, char* text, size_t size) {
  Reply* reply = PlaceOf(task);
  reply->type = task->type == REDIS_REPLY_ERROR    ? Reply::Type::kError
                : task->type == REDIS_REPLY_STATUS ? Reply::Type::kStatus
                                                   : Reply::Type::kString;
  reply->text.assign(text, size);
  return reply;
}

void* CreateArray(const redisReadTask* task, int elements) {
  auto* budget = static_cast<ReplyReader::Budget*>(task->privdata);
  if (elements < 0 || elements > budget->elements_left) return nullptr;  // an error of the reader
  budget->elements_left -= elements;
  Reply* reply = PlaceOf(task);
  reply->type = Reply::Type::kArray;
  reply->elements.resize(static_cast<size_t>(elements));
  return reply;
}

void* CreateInteger(const redisReadTask* task, long long value) {  // NOLINT: hiredis' type
  Reply* reply = PlaceOf(task);
  reply->type = Reply::Type::kInteger;
  reply->integer = value;
  return reply;
}

void* CreateNil(const redisReadTask* task) {
  return PlaceOf(task);
}

void FreeReply(void* root) {
  delete static_cast<Reply*>(root);
}

redisReplyObjectFunctions kFunctions = {CreateString, CreateArray, CreateInteger, CreateNil,
                                        FreeReply};

constexpr int64_t kHeadBytes = 24;  // of a reply: has the length of a string

// What "$123\r\n" at the start of a reply announces; 0 where it announces nothing.
int64_t AnnouncedBytes(absl::string_view bytes) {
  const size_t end = bytes.find('\r');
  int64_t size = 0;
  if (bytes.empty() || bytes[0] != '$' || end == absl::string_view::npos ||
      !absl::SimpleAtoi(bytes.substr(1, end - 1), &size)) {
    return 0;
  }
  return size;
}

absl::Status NoEnd(int64_t max_bytes) {
  return absl::DataLossError(
      absl::StrCat("a reply has no end within the limit of ", max_bytes, " bytes"));
}

}  // namespace

absl::string_view ReplyTypeName(Reply::Type type) {
  static constexpr absl::string_view kNames[] = {"nil",   "string",  "status",
                                                 "error", "integer", "array"};
  return kNames[static_cast<size_t>(type)];
}

ReplyReader::ReplyReader(const ReplyLimits& limits)
    : limits_(limits),
      budget_(std::make_unique<Budget>()),
      reader_(redisReaderCreateWithFunctions(&kFunctions)) {
  budget_->elements_left = limits.max_elements;
  if (reader_ != nullptr) reader_->privdata = budget_.get();
}

ReplyReader::~ReplyReader() {
  if (reader_ != nullptr) redisReaderFree(reader_);
}

absl::Status ReplyReader::Feed(absl::string_view bytes) {
  if (fed_bytes_ < kHeadBytes) absl::StrAppend(&head_, bytes.substr(0, kHeadBytes - fed_bytes_));
  fed_bytes_ += static_cast<int64_t>(bytes.size());
  // Before a large reply is read in vain.
  if (AnnouncedBytes(head_) > limits_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a reply is over the limit of ", limits_.max_bytes, " bytes"));
  }
  if (reader_ == nullptr || redisReaderFeed(reader_, bytes.data(), bytes.size()) != REDIS_OK) {
    return absl::DataLossError("no memory for a reply");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReplyReader::Next(Reply& reply) {
  void* root = nullptr;
  if (reader_ == nullptr || redisReaderGetReply(reader_, &root) != REDIS_OK) {
    return absl::DataLossError(absl::StrCat("not the Redis protocol, or a reply beyond its limits",
                                            reader_ == nullptr ? "" : ": ",
                                            reader_ == nullptr ? "" : reader_->errstr));
  }
  // Here and not in Feed: what was fed may have held the end of this reply, and more of them.
  if (root == nullptr && fed_bytes_ > limits_.max_bytes) return NoEnd(limits_.max_bytes);
  if (root == nullptr) return false;
  reply = std::move(*static_cast<Reply*>(root));
  FreeReply(root);
  const absl::string_view rest(reader_->buf + reader_->pos, reader_->len - reader_->pos);
  if (fed_bytes_ - static_cast<int64_t>(rest.size()) > limits_.max_bytes)
    return NoEnd(limits_.max_bytes);
  fed_bytes_ = static_cast<int64_t>(rest.size());
  head_ = std::string(rest.substr(0, kHeadBytes));
  budget_->elements_left = limits_.max_elements;
  return true;
}

absl::StatusOr<Reply> ParseReply(absl::string_view bytes, const ReplyLimits& limits) {
  ReplyReader reader(limits);
  KILN_RETURN_IF_ERROR(reader.Feed(bytes));
  Reply reply;
  KILN_ASSIGN_OR_RETURN(bool complete, reader.Next(reply));
  if (!complete) return absl::DataLossError("the reply is cut off");
  if (!reader.empty()) return absl::DataLossError("more than one reply");
  return reply;
}

}  // namespace kiln::cache
