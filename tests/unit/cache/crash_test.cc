// A process that writes is killed again and again: nothing that it was told is stored gets lost,
// and nothing is torn.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cache/rocksdb_store.h"
#include "cache/verifying_store.h"
#include "tests/temp_dir.h"
#include "tests/unit/cache/entries.h"

extern char** environ;

namespace kiln::cache {
namespace {

struct WriterProcess {
  pid_t pid = -1;
  FILE* acknowledged = nullptr;
};

WriterProcess StartWriter(const std::string& path, int64_t first) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
  std::string first_text = absl::StrCat(first);
  std::string program = KILN_CACHE_WRITER;
  std::string path_text = path;
  char* argv[] = {program.data(), path_text.data(), first_text.data(), nullptr};
  WriterProcess writer;
  if (posix_spawn(&writer.pid, program.c_str(), &actions, nullptr, argv, environ) != 0) {
    writer.pid = -1;
  }
  posix_spawn_file_actions_destroy(&actions);
  close(fds[1]);
  writer.acknowledged = fdopen(fds[0], "r");
  return writer;
}

// Lets the writer store `count` entries, kills it, and returns the last number that it reported.
int64_t KillAfter(WriterProcess writer, int count) {
  int64_t last = -1;
  long long number = 0;
  for (int i = 0; i < count && fscanf(writer.acknowledged, "%lld", &number) == 1; ++i) {
    last = number;
  }
  kill(writer.pid, SIGKILL);
  // What it had reported before the kill arrived counts as well.
  while (fscanf(writer.acknowledged, "%lld", &number) == 1) last = number;
  fclose(writer.acknowledged);
  int status = 0;
  waitpid(writer.pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
  return last;
}

TEST(CrashTest, KilledWriterLosesNoReportedEntryAndTearsNone) {
  TempDir dir;
  std::string path = dir.path() + "/cache";
  int64_t next = 0;
  const int counts[] = {1, 40, 150, 3, 80};
  for (int count : counts) {
    WriterProcess writer = StartWriter(path, next);
    ASSERT_GT(writer.pid, 0);
    int64_t last = KillAfter(writer, count);
    ASSERT_GE(last, next + count - 1);
    // The entry being written when the kill came may or may not be there.
    next = last + 1;

    RocksDbOptions options;
    options.path = path;
    auto disk = OpenRocksDbStore(options);
    ASSERT_TRUE(disk.ok()) << disk.status();
    auto store = MakeVerifyingStore(disk->get());
    for (int64_t i = 0; i < next; ++i) {
      auto found = store->Get(ArtifactKeyOf(i));
      ASSERT_TRUE(found.ok()) << "entry " << i << " of " << next << ": " << found.status();
      ASSERT_EQ(found->entry->bytes, CrashBytesOf(i));
    }
    VerifyResult verified = VerifyAll(*store);
    EXPECT_EQ(verified.corrupt, 0);
    EXPECT_EQ(verified.checked, Entries(*store));
    EXPECT_LE(Entries(*store), next + 1);
    int64_t listed_bytes = 0;
    store->ForEach([&](const EntryInfo& info) { listed_bytes += info.size_bytes; });
    EXPECT_EQ(SizeBytes(*store), listed_bytes);
  }
}

}  // namespace
}  // namespace kiln::cache
