#include "server/workers/frame.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

constexpr size_t kPrefixBytes = 4;
constexpr int kTickMs = 20;
// A length that is only announced costs no memory yet: what has arrived is doubled, up to the most.
constexpr size_t kFirstReadBytes = 64 << 10;
constexpr size_t kMostReadBytes = 16 << 20;

absl::Status WaitFor(int fd, short events, const KeepWaiting& keep_waiting) {
  while (true) {
    pollfd poll_fd = {fd, events, 0};
    int ready = poll(&poll_fd, 1, keep_waiting ? kTickMs : -1);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    }
    if (keep_waiting) KILN_RETURN_IF_ERROR(keep_waiting());
  }
}

absl::Status WriteAll(int fd, absl::string_view bytes, const KeepWaiting& keep_waiting) {
  while (!bytes.empty()) {
    ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KILN_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, keep_waiting));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the other process is gone: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, char* out, size_t size, const KeepWaiting& keep_waiting) {
  while (size > 0) {
    ssize_t n = recv(fd, out, size, 0);
    if (n > 0) {
      out += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0) {
      return absl::UnavailableError("the other process closed its end");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KILN_RETURN_IF_ERROR(WaitFor(fd, POLLIN, keep_waiting));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the other process is gone: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// One byte, with room for a descriptor beside it.
struct DescriptorMessage {
  char byte = 'd';
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  DescriptorMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
};

}  // namespace

absl::Status WriteFrame(int fd, absl::string_view bytes, const KeepWaiting& keep_waiting) {
  if (static_cast<int64_t>(bytes.size()) > kMaxFrameBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a message of ", bytes.size(), " bytes is over the limit of ", kMaxFrameBytes));
  }
  char prefix[kPrefixBytes];
  for (size_t i = 0; i < kPrefixBytes; ++i) prefix[i] = static_cast<char>(bytes.size() >> (8 * i));
  KILN_RETURN_IF_ERROR(WriteAll(fd, {prefix, kPrefixBytes}, keep_waiting));
  return WriteAll(fd, bytes, keep_waiting);
}

absl::StatusOr<std::string> ReadFrame(int fd, const KeepWaiting& keep_waiting) {
  unsigned char prefix[kPrefixBytes];
  KILN_RETURN_IF_ERROR(ReadAll(fd, reinterpret_cast<char*>(prefix), kPrefixBytes, keep_waiting));
  size_t size = 0;
  for (size_t i = 0; i < kPrefixBytes; ++i) size |= static_cast<size_t>(prefix[i]) << (8 * i);
  if (static_cast<int64_t>(size) > kMaxFrameBytes) {
    return absl::UnavailableError(absl::StrCat("a frame announces ", size, " bytes"));
  }
  std::string bytes;
  while (bytes.size() < size) {
    size_t from = bytes.size();
    bytes.resize(std::min(size, from + std::clamp(from, kFirstReadBytes, kMostReadBytes)));
    KILN_RETURN_IF_ERROR(ReadAll(fd, bytes.data() + from, bytes.size() - from, keep_waiting));
  }
  return bytes;
}

absl::Status SendDescriptor(int fd, int descriptor, const KeepWaiting& keep_waiting) {
  DescriptorMessage message;
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(descriptor));
  memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  while (sendmsg(fd, &message.header, MSG_NOSIGNAL) != 1) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KILN_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, keep_waiting));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the other process is gone: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ReceiveDescriptor(int fd, const KeepWaiting& keep_waiting) {
  DescriptorMessage message;
  ssize_t n = 0;
  while ((n = recvmsg(fd, &message.header, MSG_CMSG_CLOEXEC)) != 1) {
    if (n == 0) return absl::UnavailableError("the other process closed its end");
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KILN_RETURN_IF_ERROR(WaitFor(fd, POLLIN, keep_waiting));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("the other process is gone: ", strerror(errno)));
    }
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  int descriptor = -1;
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(descriptor))) {
    return absl::UnavailableError("the other process sent no descriptor");
  }
  memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
  return descriptor;
}

}  // namespace kiln::server
