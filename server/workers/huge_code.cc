#include "server/workers/huge_code.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/workers/worker_process.h"

namespace kiln::server {
namespace {

#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
constexpr uintptr_t kPageBytes = 4096;
constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;
constexpr int64_t kCodeBytes = int64_t{160} << 20;  // of a worker, about
constexpr size_t kPages = kHugePageBytes / kPageBytes;
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // the C library of Debian 12 lacks it
#endif

struct Range {
  uintptr_t begin = 0, end = 0;
  int protection = PROT_NONE;
};

Range RangeOf(const dl_phdr_info& object, const ElfW(Phdr) & segment, int protection) {
  const uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
  return {begin, begin + segment.p_memsz, protection};
}

// Without what lies before _init in the code's segment: tables that only the loader reads.
Range SkipTables(Range segment, const dl_phdr_info& object, const ElfW(Dyn) * dynamic) {
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    if (dynamic->d_tag != DT_INIT) continue;
    const uintptr_t init = object.dlpi_addr + dynamic->d_un.d_ptr;
    // Some linkers put it after the rest of the code.
    if (init > segment.begin && init < segment.begin + (segment.end - segment.begin) / 2) {
      segment.begin = init;
    }
  }
  return segment;
}

// What this process only reads and executes of one object. PT_GNU_RELRO is what relocation wrote
// before the loader took away the right to write.
int AddRanges(dl_phdr_info* object, size_t, void* out) {
  auto& ranges = *static_cast<std::vector<Range>*>(out);
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_DYNAMIC) continue;
    dynamic = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + segment.p_vaddr);
  }
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_GNU_RELRO || (segment.p_type == PT_LOAD && segment.p_flags == PF_R)) {
      ranges.push_back(RangeOf(*object, segment, PROT_READ));
    } else if (segment.p_type == PT_LOAD && segment.p_flags == (PF_R | PF_X)) {
      ranges.push_back(
          SkipTables(RangeOf(*object, segment, PROT_READ | PROT_EXEC), *object, dynamic));
    }
  }
  return 0;
}

// A process that has given up its user may open it only while others of its user may trace it.
OwnedFd OpenPagemap() {
  const bool dumpable = prctl(PR_GET_DUMPABLE) == 1;
  prctl(PR_SET_DUMPABLE, 1);
  OwnedFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  prctl(PR_SET_DUMPABLE, dumpable ? 1 : 0);
  return pagemap;
}

// Whether any page of the huge page at `begin` is mapped.
bool IsUsed(const OwnedFd& pagemap, uintptr_t begin) {
  uint64_t entries[kPages] = {};
  const auto at = static_cast<off_t>(begin / kPageBytes * sizeof(uint64_t));
  if (pread(pagemap.get(), entries, sizeof(entries), at) != sizeof(entries)) return false;
  return std::any_of(std::begin(entries), std::end(entries), [](uint64_t entry) {
    return entry >> 63 != 0;  // the page is present
  });
}

// The used huge pages that lie in `range` whole, those beside each other as one.
std::vector<Range> UsedHugePages(const Range& range, const OwnedFd& pagemap) {
  std::vector<Range> used;
  uintptr_t begin = (range.begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  for (; begin + kHugePageBytes <= range.end; begin += kHugePageBytes) {
    if (!IsUsed(pagemap, begin)) continue;
    if (used.empty() || used.back().end != begin) used.push_back({begin, begin, range.protection});
    used.back().end += kHugePageBytes;
  }
  return used;
}

// Of whole huge pages. Returns whether the copy is there instead; else all is as before.
bool Replace(const Range& range) {
  const size_t size = range.end - range.begin;
  const size_t reserved_size = size + kHugePageBytes;
  void* const reserved = mmap(nullptr, reserved_size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return false;
  const uintptr_t before = reinterpret_cast<uintptr_t>(reserved) % kHugePageBytes;
  char* const copy = static_cast<char*>(reserved) + (kHugePageBytes - before) % kHugePageBytes;
  void* const place = reinterpret_cast<void*>(range.begin);
  madvise(copy, size, MADV_HUGEPAGE);
  std::memcpy(copy, place, size);
  // The first fails unless all of it is in huge pages now; small ones would cost a fork more than
  // the file's.
  const bool replaced =
      madvise(copy, size, MADV_COLLAPSE) == 0 && mprotect(copy, size, range.protection) == 0 &&
      mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place) != MAP_FAILED;
  munmap(reserved, reserved_size);  // what has moved away left a hole
  return replaced;
}

}  // namespace

bool HasRoomForHugeCode(int processes, int64_t memory_bytes) {
  return int64_t{processes} * kCodeBytes <= memory_bytes / 16;
}

int64_t MemoryForProcesses() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream groups("/proc/self/cgroup");
  std::string group;
  while (std::getline(groups, group) && !absl::StartsWith(group, "0::")) {
  }
  // "0::/a/b": it may use what each of /a/b, /a and / lets it.
  while (absl::StartsWith(group, "0::")) {
    std::ifstream limit(absl::StrCat("/sys/fs/cgroup", group.substr(3), "/memory.max"));
    int64_t most = 0;  // "max" is no number
    if (limit >> most) bytes = std::min(bytes, most);
    const size_t parent = group.rfind('/');
    group = parent == std::string::npos ? "" : group.substr(0, parent);
  }
  return bytes;
}

int64_t MoveCodeToHugePages() {
  // The shadow of the copies would take several times their size.
  if constexpr (kIsSanitized) return 0;
  const OwnedFd pagemap = OpenPagemap();
  if (pagemap.get() < 0) return 0;
  std::vector<Range> ranges;
  dl_iterate_phdr(&AddRanges, &ranges);
  int64_t bytes = 0;
  for (const Range& range : ranges) {
    for (const Range& used : UsedHugePages(range, pagemap)) {
      if (!Replace(used)) return bytes;  // the next would fail as well
      bytes += static_cast<int64_t>(used.end - used.begin);
    }
  }
  return bytes;
}

}  // namespace kiln::server
