// Length-prefixed messages over the socket between kilnd and a worker.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::server {

inline constexpr int64_t kMaxFrameBytes = int64_t{1} << 30;

// Asked about every 20 ms while a transfer makes no progress; an error ends the transfer with it.
// Empty: wait without end.
using KeepWaiting = std::function<absl::Status()>;

// A frame is its length (four bytes, little endian), then its bytes. `fd` is non-blocking.
// UNAVAILABLE where the other end is gone; no SIGPIPE.
absl::Status WriteFrame(int fd, absl::string_view bytes, const KeepWaiting& keep_waiting);
absl::StatusOr<std::string> ReadFrame(int fd, const KeepWaiting& keep_waiting);

// One byte between frames, and with it a descriptor: the other process gets one of its own for the
// same file, which is close-on-exec there.
absl::Status SendDescriptor(int fd, int descriptor, const KeepWaiting& keep_waiting);
absl::StatusOr<int> ReceiveDescriptor(int fd, const KeepWaiting& keep_waiting);

}  // namespace kiln::server
