#include "server/observe/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kiln::server {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

// Fields of /proc/PID/stat from the third on (proc(5)'s number 3 is [0]): the second may hold
// spaces and parentheses.
std::vector<std::string> StatFields(absl::string_view stat) {
  size_t end = stat.rfind(')');
  if (end == absl::string_view::npos) return {};
  return absl::StrSplit(stat.substr(end + 1), ' ', absl::SkipEmpty());
}

int64_t Number(const std::vector<std::string>& fields, size_t proc5_number) {
  int64_t value = 0;
  if (proc5_number - 3 >= fields.size() || !absl::SimpleAtoi(fields[proc5_number - 3], &value)) {
    return 0;
  }
  return value;
}

double BootUnixSeconds() {
  std::istringstream stat(ReadText("/proc/stat"));
  double boot = 0;
  for (std::string line; std::getline(stat, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "btime ") && absl::SimpleAtod(rest, &boot)) break;
  }
  return boot;
}

int64_t CountEntries(const char* folder) {
  DIR* dir = opendir(folder);
  if (dir == nullptr) return 0;
  int64_t entries = 0;
  while (const dirent* entry = readdir(dir)) entries += entry->d_name[0] != '.';
  closedir(dir);
  return entries;
}

int64_t ChildrenResidentBytes(int64_t page_bytes) {
  int64_t pages = 0;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 0;
  while (const dirent* task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    std::istringstream children(
        ReadText(absl::StrCat("/proc/self/task/", task->d_name, "/children")));
    for (std::string pid; children >> pid;) {
      pages += Number(StatFields(ReadText(absl::StrCat("/proc/", pid, "/stat"))), 24);
    }
  }
  closedir(tasks);
  return pages * page_bytes;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  std::vector<std::string> fields = StatFields(ReadText("/proc/self/stat"));
  stats.cpu_seconds = static_cast<double>(Number(fields, 14) + Number(fields, 15)) / ticks;
  stats.threads = Number(fields, 20);
  stats.start_unix_seconds = BootUnixSeconds() + static_cast<double>(Number(fields, 22)) / ticks;
  stats.virtual_bytes = Number(fields, 23);
  stats.resident_bytes = Number(fields, 24) * page_bytes;
  stats.open_fds = CountEntries("/proc/self/fd");
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    stats.max_fds = static_cast<int64_t>(limit.rlim_cur);
  }
  stats.children_resident_bytes = ChildrenResidentBytes(page_bytes);
  return stats;
}

}  // namespace kiln::server
