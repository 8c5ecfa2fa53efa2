#include "server/workers/sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/workers/system_call_filter.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KILN_SANITIZED 1
#endif
#endif
#ifdef KILN_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace kiln::server {
namespace {

constexpr int kFirstInheritedFd = 4;  // after standard input, output, error and the socket
constexpr rlim_t kMaxOpenFiles = 64;
constexpr uid_t kNobody = 65534;

using Missing = std::vector<std::string>;

void Note(absl::string_view what, Missing& missing) {
  missing.push_back(absl::StrCat(what, ": ", strerror(errno)));
}

void CloseInherited(Missing& missing) {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, kFirstInheritedFd, ~0U, 0) == 0) return;
#endif
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return Note("inherited descriptors stay open", missing);
  for (int fd = kFirstInheritedFd; fd < static_cast<int>(limit.rlim_cur); ++fd) close(fd);
}

void Limit(int resource, int64_t most, absl::string_view name, Missing& missing) {
  rlimit limit = {};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  rlim_t value = std::min(limit.rlim_max, static_cast<rlim_t>(most));
  limit = {value, value};
  if (setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) {
    Note(absl::StrCat("no limit on ", name), missing);
  }
}

int64_t AddressSpaceBytes() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  int read = std::fscanf(file, "%ld", &pages);
  std::fclose(file);
  return read == 1 ? int64_t{pages} * sysconf(_SC_PAGESIZE) : 0;
}

void LimitResources(const SandboxLimits& limits, Missing& missing) {
  Limit(RLIMIT_CORE, 0, "core files", missing);
  Limit(RLIMIT_NOFILE, kMaxOpenFiles, "open files", missing);
  Limit(RLIMIT_FSIZE, MaxFileBytes(limits), "file sizes", missing);
  Limit(RLIMIT_MEMLOCK, 0, "locked memory", missing);
  Limit(RLIMIT_MSGQUEUE, 0, "message queues", missing);
  if (kSanitized) return;  // shadow memory alone is over any limit, and its reports need a thread
  Limit(RLIMIT_DATA, limits.memory_bytes, "memory", missing);
  // Shared mappings count here only. Program and libraries are there already.
  int64_t now_bytes = AddressSpaceBytes();
  if (now_bytes > 0) {
    Limit(RLIMIT_AS, now_bytes + limits.memory_bytes, "address space", missing);
  } else {
    Note("no limit on address space", missing);
  }
}

struct Capabilities {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};

  bool Read() { return syscall(SYS_capget, &header, data) == 0; }
  bool Has(int capability) const { return (data[0].effective >> capability & 1) != 0; }
  bool None() const {
    return std::all_of(std::begin(data), std::end(data), [](const __user_cap_data_struct& bits) {
      return (bits.effective | bits.permitted | bits.inheritable) == 0;
    });
  }
};

void BecomeNobody(Missing& missing) {
  Capabilities have;
  // A server that lacks CAP_KILL could not end a worker of another user.
  bool can = have.Read() && have.Has(CAP_KILL) && have.Has(CAP_SETUID) && have.Has(CAP_SETGID);
  if (!can) {
    errno = EPERM;
    return Note("the worker stays root", missing);
  }
  if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
      setresuid(kNobody, kNobody, kNobody) != 0) {
    Note("the worker stays root", missing);
  }
}

void DropPrivileges(Missing& missing) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) Note("no_new_privs", missing);
  if (geteuid() == 0) BecomeNobody(missing);
  // A filter around the server may forbid the call; where there are none it is needless.
  Capabilities have;
  Capabilities none;
  if (!(have.Read() && have.None()) && syscall(SYS_capset, &none.header, none.data) != 0) {
    Note("capabilities stay", missing);
  }
  // Nobody else of this user can read its memory.
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) Note("stays dumpable", missing);
}

// As linux/landlock.h has it since ABI 6; older headers lack the later fields.
struct LandlockRuleset {
  uint64_t handled_access_fs = 0;
  uint64_t handled_access_net = 0;
  uint64_t scoped = 0;
};

uint64_t LowBits(int count) {
  return (uint64_t{1} << count) - 1;
}

// Everything that this kernel's Landlock knows is handled, and nothing is allowed.
LandlockRuleset HandleAll(long abi) {
  LandlockRuleset ruleset;
  int rights = abi >= 5 ? 16 : abi >= 3 ? 15 : abi == 2 ? 14 : 13;
  ruleset.handled_access_fs = LowBits(rights);
  if (abi >= 4) ruleset.handled_access_net = LowBits(2);  // bind and connect TCP
  if (abi >= 6) ruleset.scoped = LowBits(2);              // abstract sockets, signals
  return ruleset;
}

#if defined(SYS_landlock_add_rule)
// What a dynamic loader and the program itself need, reading and executing alone.
bool AllowProgram(int ruleset, int program_fd) {
  struct __attribute__((packed)) PathBeneath {
    uint64_t allowed_access;
    int32_t parent_fd;
  };
  constexpr int kPathBeneath = 1;
  constexpr uint64_t kExecute = 1, kReadFile = 1 << 2;
  const auto allow = [&](int fd) {
    const PathBeneath rule = {kExecute | kReadFile, fd};
    return syscall(SYS_landlock_add_rule, ruleset, kPathBeneath, &rule, 0) == 0;
  };
  // The last says to its C library whether there are huge pages for a heap.
  for (const char* path : {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache",
                           "/sys/kernel/mm/transparent_hugepage"}) {
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) continue;
    const bool allowed = allow(fd);
    close(fd);
    if (!allowed) return false;
  }
  return allow(program_fd);
}
#else
bool AllowProgram(int, int) {
  return false;
}
#endif

// All but `program_fd`, where that is one.
void LeaveFileSystems(Missing& missing, int program_fd = -1) {
#if defined(SYS_landlock_create_ruleset) && defined(SYS_landlock_restrict_self)
  constexpr int kAskVersion = 1;
  long abi = syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion);
  if (abi >= 1) {
    LandlockRuleset ruleset = HandleAll(abi);
    auto fd = static_cast<int>(syscall(SYS_landlock_create_ruleset, &ruleset, sizeof(ruleset), 0));
    bool sealed = fd >= 0 && (program_fd < 0 || AllowProgram(fd, program_fd)) &&
                  syscall(SYS_landlock_restrict_self, fd, 0) == 0;
    if (!sealed) Note("files can be read (landlock)", missing);
    if (fd >= 0) close(fd);
    return;
  }
#else
  errno = ENOSYS;
#endif
  Note("files can be read (landlock)", missing);
}

void Filter(Filtered who, Missing& missing, int program_fd = -1) {
  if (kSanitized) {
    missing.push_back("no seccomp filter under a sanitizer");
  } else if (absl::Status status = FilterSystemCalls(who, program_fd); !status.ok()) {
    missing.push_back(std::string(status.message()));
  }
}

}  // namespace

int64_t MaxFileBytes(const SandboxLimits& limits) {
  return limits.memory_bytes / 4;
}

std::vector<std::string> LimitProcess(const SandboxLimits& limits) {
  Missing missing;
  CloseInherited(missing);
  umask(077);
  if (chdir("/") != 0) Note("stays in the server's folder", missing);
  signal(SIGXFSZ, SIG_IGN);  // a write over the limit is an error, not a crash
  DropPrivileges(missing);
  LimitResources(limits, missing);
  return missing;
}

std::vector<std::string> SealWorker() {
  Missing missing;
  LeaveFileSystems(missing);
  Filter(Filtered::kWorker, missing);
  return missing;
}

std::vector<std::string> SealAssembler(int program_fd) {
  Missing missing;
  LeaveFileSystems(missing, program_fd);
  Limit(RLIMIT_NOFILE, program_fd / 2, "open files", missing);
  Filter(Filtered::kAssembler, missing, program_fd);
  return missing;
}

std::vector<std::string> SealTask() {
  Missing missing;
  if (!kSanitized) Limit(RLIMIT_NPROC, 0, "processes", missing);
  Filter(Filtered::kTask, missing);
  return missing;
}

}  // namespace kiln::server
