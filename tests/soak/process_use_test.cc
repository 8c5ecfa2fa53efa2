// The measure itself: what is held is seen, and more than before is said.
#include "tests/soak/process_use.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/integration/server_test.h"
#include "tests/temp_dir.h"

namespace kiln::soak {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kBytes = 32 << 20;

TEST(ProcessUseTest, WhatAProcessHoldsIsSeen) {
  const TempDir folder;
  const ProcessUse before = ReadProcessUse(getpid(), folder.path(), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int file = open((folder.path() + "/x").c_str(), O_CREAT | O_WRONLY, 0600);
  absl::Notification over;
  std::thread thread([&] { over.WaitForNotification(); });
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_TRUE(integration::Eventually(
      absl::Seconds(10), [&] { return ReadProcessUse(getpid(), "", 0).zombies == 1; }));
  const ProcessUse after = ReadProcessUse(getpid(), folder.path(), 0);
  EXPECT_THAT(
      Excesses("it", before, after, {.memory_bytes = 8 << 20}),
      ElementsAre(HasSubstr("descriptors (pipe)"), HasSubstr("threads"), HasSubstr("MiB of memory"),
                  HasSubstr("open files of its cache"), HasSubstr("nobody reaped")));
  waitpid(child, nullptr, 0);
  over.Notify();
  thread.join();
  munmap(memory, kBytes);
  for (int fd : {ends[0], ends[1], file}) close(fd);
  EXPECT_THAT(
      Excesses("it", before, ReadProcessUse(getpid(), folder.path(), 0), {.memory_bytes = 8 << 20}),
      IsEmpty());
}

TEST(ProcessUseTest, BoundsAreKeptToTheLast) {
  const ProcessUse before = {
      .descriptors = {{"socket", 3}}, .threads = 4, .grpc_threads = 4, .memory_bytes = 9 << 20};
  ProcessUse after = before;
  after.grpc_threads = 6;
  after.memory_bytes = 11 << 20;
  after.cache_files = 5;
  after.tier_connections = 2;
  const UseBounds bounds = {
      .memory_bytes = 2 << 20, .grpc_threads = 2, .cache_files = 5, .tier_connections = 2};
  EXPECT_THAT(Excesses("it", before, after, bounds), IsEmpty());
  after.descriptors["socket"] = 4;
  after.threads = 5;
  after.grpc_threads = 7;
  after.memory_bytes = 12 << 20;
  after.cache_files = 6;
  after.tier_connections = 3;
  after.children = 1;
  EXPECT_EQ(Excesses("it", before, after, bounds).size(), 7u);
}

}  // namespace
}  // namespace kiln::soak
