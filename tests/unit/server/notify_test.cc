#include "server/notify.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/temp_dir.h"

namespace kiln::server {
namespace {

// A bound datagram socket, as the service manager has.
int Listen(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())),
            0);
  return fd;
}

std::string Receive(int fd) {
  char buffer[256];
  ssize_t size = read(fd, buffer, sizeof(buffer));
  return size < 0 ? "" : std::string(buffer, static_cast<size_t>(size));
}

TEST(Notify, SendsTheStateToPathsAndAbstractSockets) {
  TempDir dir;
  for (const std::string& name : {dir.path() + "/notify", absl::StrCat("@kiln-test-", getpid())}) {
    int fd = Listen(name);
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
    NotifyServiceManager("READY=1");
    EXPECT_EQ(Receive(fd), "READY=1") << name;
    close(fd);
  }
  unsetenv("NOTIFY_SOCKET");
}

TEST(Notify, DoesNothingWithoutAManager) {
  unsetenv("NOTIFY_SOCKET");
  NotifyServiceManager("READY=1");
  setenv("NOTIFY_SOCKET", std::string(300, 'x').c_str(), 1);
  NotifyServiceManager("READY=1");
  setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
  NotifyServiceManager("READY=1");
  unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace kiln::server
