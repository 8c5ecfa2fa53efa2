#include "server/workers/huge_code.h"

#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/digest.h"

namespace kiln::server {
namespace {

// Bytes of this process's huge pages that are executable, by /proc/self/smaps.
int64_t ExecutableHugeBytes() {
  std::ifstream maps("/proc/self/smaps");
  int64_t bytes = 0, huge_kib = 0;
  for (std::string line; std::getline(maps, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "AnonHugePages: %lld kB", &kib) == 1) huge_kib = kib;
    if (absl::StartsWith(line, "VmFlags:") && absl::StrContains(line, " ex ")) {
      bytes += huge_kib * 1024;
    }
  }
  return bytes;
}

// Of all that is executable here, and of what relocation wrote.
std::string DigestOfCode() {
  std::string digests;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* out) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          const bool is_code = segment.p_type == PT_LOAD && segment.p_flags == (PF_R | PF_X);
          if (!is_code && segment.p_type != PT_GNU_RELRO) continue;
          const char* at = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
          absl::StrAppend(static_cast<std::string*>(out), " ",
                          Sha256({at, segment.p_memsz}).ToHex());
        }
        return 0;
      },
      &digests);
  return digests;
}

// What /proc/self/maps says of each place, without what backs it: "7f00-7f20 r-xp" and so on, with
// neighbours of one kind as one.
std::vector<std::string> Protections() {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> found;
  std::string last_end, last_kind, begin;
  const auto add = [&] {
    if (absl::StrContains(last_kind, "x")) {
      found.push_back(absl::StrCat(begin, "-", last_end, " ", last_kind));
    }
  };
  for (std::string line; std::getline(maps, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    const std::vector<std::string> ends = absl::StrSplit(words[0], '-');
    if (ends[0] != last_end || words[1] != last_kind) {
      add();
      begin = ends[0];
    }
    last_end = ends[1];
    last_kind = words[1];
  }
  add();
  return found;
}

TEST(HugeCodeTest, WantsASixteenthOfMemoryAtMost) {
  EXPECT_TRUE(HasRoomForHugeCode(2, int64_t{8} << 30));
  EXPECT_FALSE(HasRoomForHugeCode(16, int64_t{16} << 30));
  EXPECT_TRUE(HasRoomForHugeCode(64, int64_t{512} << 30));
}

TEST(HugeCodeTest, MemoryIsNoMoreThanTheMachines) {
  const int64_t bytes = MemoryForProcesses();
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
}

// In a child, as code is replaced for good.
TEST(HugeCodeTest, CopiesAreWhatTheyReplaceAndOnlyExecutable) {
  EXPECT_EXIT(
      {
        const std::string before = DigestOfCode();
        const std::vector<std::string> protections = Protections();
        const int64_t bytes = MoveCodeToHugePages();
        if (bytes == 0) _exit(2);  // this system gives none
        EXPECT_EQ(DigestOfCode(), before);
        EXPECT_EQ(Protections(), protections);
        EXPECT_GT(ExecutableHugeBytes(), 0);
        EXPECT_LE(ExecutableHugeBytes(), bytes);
        _exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) % 2 == 0; }, "");
}

TEST(HugeCodeTest, ForkedProcessesRunTheCopies) {
  EXPECT_EXIT(
      {
        MoveCodeToHugePages();
        const pid_t pid = fork();
        if (pid == 0) _exit(DigestOfCode().empty() ? 1 : 7);
        int status = 0;
        waitpid(pid, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace kiln::server
