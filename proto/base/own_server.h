// Where a user's programs and the server that they start for themselves meet: names that both sides
// make in the same way, in a folder that nobody else can write to.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

// What stands for one build of kilnd: the first 16 hex digits of the GNU build id of the program
// file, so that servers of two versions have sockets of their own. NOT_FOUND where there is no such
// file, INVALID_ARGUMENT where it is no program with a build id.
absl::StatusOr<std::string> BuildIdOf(const std::string& program);

// $XDG_RUNTIME_DIR/kiln where that is set, else /tmp/kiln-UID; made where it is missing, with mode
// 0700. FAILED_PRECONDITION, naming the folder, where it cannot be made, is another user's, or is
// open to others: whoever can write there could take the server's place.
absl::StatusOr<std::string> RuntimeFolder();

// The data directory of the user's server of this build, in the folder of the user's caches: two
// builds' servers run side by side, and each has a cache that it alone writes.
std::string OwnDataDir(absl::string_view folder, absl::string_view build_id);
// Whether that is how a folder's name looks: "own-0123456789abcdef".
bool IsOwnDataDir(absl::string_view name);

// The Unix socket of the user's server of this build.
std::string OwnSocket(absl::string_view folder, absl::string_view build_id);

// The link in a server's data directory to the socket that it listens on.
std::string SocketLink(absl::string_view data_dir);

// The file with the token of the server that listens on a port of the loopback interface, for
// programs of the same user.
std::string LocalTokenFile(absl::string_view folder, int port);

// Whether the process at the other end of a Unix socket is this user's, or root's.
bool IsOwnUser(int fd);

}  // namespace kiln
