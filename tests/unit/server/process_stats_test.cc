#include "server/observe/process_stats.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "absl/time/clock.h"

namespace kiln::server {
namespace {

TEST(ProcessStats, SayWhatThisProcessUses) {
  ProcessStats stats = ReadProcessStats();
  EXPECT_GT(stats.resident_bytes, 1 << 20);
  EXPECT_GT(stats.virtual_bytes, stats.resident_bytes);
  EXPECT_GE(stats.threads, 1);
  EXPECT_GE(stats.max_fds, stats.open_fds);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_LT(stats.start_unix_seconds, now + 2);
  EXPECT_GT(stats.start_unix_seconds, now - 3600);
}

TEST(ProcessStats, FollowMemoryAndFiles) {
  ProcessStats before = ReadProcessStats();
  std::vector<char> memory(32 << 20, 'x');
  int fd = open("/dev/null", O_RDONLY);
  ProcessStats after = ReadProcessStats();
  close(fd);
  EXPECT_GE(after.resident_bytes - before.resident_bytes, 24 << 20) << memory[12345];
  EXPECT_EQ(after.open_fds - before.open_fds, 1);
}

}  // namespace
}  // namespace kiln::server
