// Fuzzers whose input is a protobuf message.
#pragma once

#include <google/protobuf/message_lite.h>
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>

namespace kiln::fuzz {

// False where the bytes are no such message, without protobuf's line about it on standard error.
inline bool ParseQuietly(const uint8_t* data, size_t size, google::protobuf::MessageLite& message) {
  static const auto before = google::protobuf::SetLogHandler(nullptr);
  (void)before;
  return message.ParseFromArray(data, static_cast<int>(size));
}

}  // namespace kiln::fuzz
