#include "proto/base/own_server.h"

#include <elf.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln {
namespace {

constexpr size_t kBuildIdDigits = 16;
constexpr absl::string_view kOwnDataDir = "own-";
constexpr uint64_t kMostNoteBytes = 1 << 16;
constexpr char kNoteName[] = "GNU";

template <typename T>
bool ReadAt(std::ifstream& file, uint64_t offset, T* out, size_t size = sizeof(T)) {
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(out), static_cast<std::streamsize>(size));
  return static_cast<bool>(file);
}

// Of a segment of notes: the build id, as bytes; empty where there is none.
absl::string_view FindBuildId(absl::string_view notes) {
  auto padded = [](uint64_t size) { return (size + 3) & ~uint64_t{3}; };
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    std::memcpy(&header, notes.data(), sizeof(header));
    const uint64_t name = sizeof(header);
    const uint64_t content = name + padded(header.n_namesz);
    const uint64_t end = content + padded(header.n_descsz);
    if (end > notes.size()) return "";
    const absl::string_view expected(kNoteName, sizeof(kNoteName));
    if (header.n_type == NT_GNU_BUILD_ID && notes.substr(name, header.n_namesz) == expected) {
      return notes.substr(content, header.n_descsz);
    }
    notes.remove_prefix(end);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> BuildIdOf(const std::string& program) {
  std::ifstream file(program, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", program));
  Elf64_Ehdr header;
  if (ReadAt(file, 0, &header) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
      header.e_ident[EI_CLASS] == ELFCLASS64) {
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
      Elf64_Phdr segment;
      if (!ReadAt(file, header.e_phoff + i * sizeof(segment), &segment)) break;
      if (segment.p_type != PT_NOTE || segment.p_filesz > kMostNoteBytes) continue;
      std::string notes(segment.p_filesz, '\0');
      if (!ReadAt(file, segment.p_offset, notes.data(), notes.size())) break;
      const std::string id = absl::BytesToHexString(FindBuildId(notes));
      if (id.size() >= kBuildIdDigits) return id.substr(0, kBuildIdDigits);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(program, " is no program with a build id"));
}

absl::StatusOr<std::string> RuntimeFolder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder = runtime != nullptr && *runtime == '/'
                                 ? absl::StrCat(runtime, "/kiln")
                                 : absl::StrCat("/tmp/kiln-", geteuid());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make the folder ", folder,
                                                      " for sockets: ", std::strerror(errno),
                                                      " (XDG_RUNTIME_DIR names another place)"));
  }
  struct stat found = {};
  if (lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != geteuid() ||
      (found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder ", folder,
                     " for sockets is not this user's alone: it must be a folder of mode 0700"));
  }
  return folder;
}

std::string OwnDataDir(absl::string_view folder, absl::string_view build_id) {
  return absl::StrCat(folder, "/", kOwnDataDir, build_id);
}

bool IsOwnDataDir(absl::string_view name) {
  return absl::ConsumePrefix(&name, kOwnDataDir) && name.size() == kBuildIdDigits &&
         name.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

std::string OwnSocket(absl::string_view folder, absl::string_view build_id) {
  return absl::StrCat(folder, "/kilnd-", build_id, ".sock");
}

std::string SocketLink(absl::string_view data_dir) {
  return absl::StrCat(data_dir, "/socket");
}

std::string LocalTokenFile(absl::string_view folder, int port) {
  return absl::StrCat(folder, "/port-", port, ".token");
}

bool IsOwnUser(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace kiln
