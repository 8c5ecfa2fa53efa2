#include "server/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "proto/base/log.h"

namespace kiln::server {

void NotifyServiceManager(absl::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = path;
  if (name.size() >= sizeof(address.sun_path)) {
    Log(LogLevel::kWarning, "NOTIFY_SOCKET is too long", {{"path", name}});
    return;
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';  // an abstract socket
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (fd < 0 || sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                       reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    Log(LogLevel::kWarning, "the service manager was not told",
        {{"state", std::string(state)}, {"why", std::strerror(errno)}});
  }
  if (fd >= 0) close(fd);
}

}  // namespace kiln::server
