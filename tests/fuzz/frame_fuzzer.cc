// Bytes as a worker sends them: frames over a socket, and the messages in them.
#include <sys/socket.h>
#include <unistd.h>

#include "kiln/v1/worker.pb.h"
#include "server/workers/frame.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/proto_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMostBytes = 64 << 10;  // what a socket holds without a reader
  if (size > kMostBytes) return -1;
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) return -1;
  if (send(fds[1], data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) size = 0;
  close(fds[1]);
  size_t taken = 0;
  while (true) {
    auto frame = kiln::server::ReadFrame(fds[0], {});
    if (!frame.ok()) {
      kiln::fuzz::Require(absl::IsUnavailable(frame.status()), "the end of a stream is its end");
      break;
    }
    taken += frame->size() + 4;
    const auto* bytes = reinterpret_cast<const uint8_t*>(frame->data());
    kiln::v1::WorkerResponse response;
    kiln::fuzz::ParseQuietly(bytes, frame->size(), response);
    kiln::v1::WorkerRequest request;
    kiln::fuzz::ParseQuietly(bytes, frame->size(), request);
  }
  kiln::fuzz::Require(taken <= size, "frames hold what was sent");
  close(fds[0]);
  return 0;
}
