#include "tests/soak/process_use.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "tests/integration/process.h"

namespace kiln::soak {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;
// As the kernel cuts names off.
constexpr absl::string_view kGrpcThreads[] = {"default-executo", "resolver-execut",
                                              "grpc_global_tim", "timer_manager", "event_engine"};

// "socket:[INODE]" of the connections to `port`; those that nobody reads any more are among them.
std::set<std::string> SocketsTo(pid_t pid, int port) {
  std::set<std::string> sockets;
  std::ifstream table(absl::StrCat("/proc/", pid, "/net/tcp"));
  const std::string suffix = absl::StrFormat(":%04X", port);
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
        timeout >> inode;
    if (absl::EndsWith(remote, suffix)) sockets.insert(absl::StrCat("socket:[", inode, "]"));
  }
  return sockets;
}

// "anon_inode:[eventpoll]" as it is, of the rest what stands before the number.
std::string KindOf(const std::string& link) {
  if (absl::StartsWith(link, "anon_inode:")) return link.substr(link.find(':') + 1);
  if (const size_t bracket = link.find(":["); bracket != std::string::npos) {
    return link.substr(0, bracket);
  }
  return link;
}

}  // namespace

int ProcessUse::descriptor_count() const {
  int sum = 0;
  for (const auto& [kind, count] : descriptors) sum += count;
  return sum;
}

ProcessUse ReadProcessUse(pid_t pid, const std::string& data_dir, int tier_port) {
  ProcessUse use;
  const std::string folder = absl::StrCat("/proc/", pid);
  const std::set<std::string> tier =
      tier_port == 0 ? std::set<std::string>() : SocketsTo(pid, tier_port);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder + "/fd", error)) {
    std::error_code closed;  // meanwhile
    const std::string link = fs::read_symlink(entry.path(), closed).string();
    if (closed) continue;
    if (!data_dir.empty() && absl::StartsWith(link, data_dir)) {
      ++use.cache_files;
    } else if (tier.contains(link)) {
      ++use.tier_connections;
    } else {
      ++use.descriptors[KindOf(link)];
    }
  }
  std::ifstream status(folder + "/status");
  std::string name;
  while (status >> name) {
    int64_t value = 0;
    if (name == "RssAnon:" && status >> value) use.memory_bytes = value << 10;
    status.ignore(1 << 20, '\n');
  }
  for (const auto& entry : fs::directory_iterator(folder + "/task", error)) {
    std::getline(std::ifstream(entry.path() / "comm"), name);
    const bool is_grpc =
        std::find(std::begin(kGrpcThreads), std::end(kGrpcThreads), name) != std::end(kGrpcThreads);
    ++(is_grpc ? use.grpc_threads : use.threads);
  }
  use.children = static_cast<int>(integration::ChildrenOf(pid).size());
  use.zombies = static_cast<int>(integration::ZombiesOf(pid).size());
  return use;
}

std::vector<std::string> Excesses(const std::string& who, const ProcessUse& before,
                                  const ProcessUse& after, const UseBounds& bounds) {
  std::vector<std::string> found;
  for (const auto& [kind, count] : after.descriptors) {
    const auto it = before.descriptors.find(kind);
    const int had = it == before.descriptors.end() ? 0 : it->second;
    if (count <= had) continue;
    found.push_back(
        absl::StrFormat("%s has %d descriptors (%s) and had %d", who, count, kind, had));
  }
  const auto more = [&](const char* what, int64_t had, int64_t has, int64_t slack) {
    if (has <= had + slack) return;
    found.push_back(absl::StrFormat("%s has %d %s and had %d: more than %d are too many", who, has,
                                    what, had, had + slack));
  };
  more("threads", before.threads, after.threads, 0);
  more("threads of gRPC", before.grpc_threads, after.grpc_threads, bounds.grpc_threads);
  more("MiB of memory", before.memory_bytes / kMiB, after.memory_bytes / kMiB,
       bounds.memory_bytes / kMiB);
  more("open files of its cache", 0, after.cache_files, bounds.cache_files);
  more("connections to the shared tier", 0, after.tier_connections, bounds.tier_connections);
  more("children", before.children, after.children, 0);
  more("children that nobody reaped", 0, after.zombies, 0);
  return found;
}

std::string Describe(const ProcessUse& use) {
  return absl::StrFormat(
      "%d descriptors, %d cache files, %d tier connections, %d threads and %d of gRPC, %.1f MiB, "
      "%d children",
      use.descriptor_count(), use.cache_files, use.tier_connections, use.threads, use.grpc_threads,
      static_cast<double>(use.memory_bytes) / kMiB, use.children);
}

}  // namespace kiln::soak
