#include "server/workers/frame.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace kiln::server {
namespace {

class FrameTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds_), 0); }
  void TearDown() override {
    close(fds_[0]);
    close(fds_[1]);
  }
  int fds_[2];
};

TEST_F(FrameTest, FramesOfAllSizesArriveWholeAndInOrder) {
  const size_t sizes[] = {0, 1, 3, 65536, 17 << 20};
  std::thread writer([&] {
    for (size_t size : sizes) {
      EXPECT_TRUE(WriteFrame(fds_[0], std::string(size, static_cast<char>(size)), {}).ok());
    }
  });
  for (size_t size : sizes) {
    EXPECT_EQ(ReadFrame(fds_[1], {}).value(), std::string(size, static_cast<char>(size)));
  }
  writer.join();
}

TEST_F(FrameTest, ADescriptorArrivesBetweenFrames) {
  int sent = memfd_create("sent", 0);
  ASSERT_EQ(write(sent, "what is in it", 13), 13);
  ASSERT_TRUE(WriteFrame(fds_[0], "before", {}).ok());
  ASSERT_TRUE(SendDescriptor(fds_[0], sent, {}).ok());
  ASSERT_TRUE(WriteFrame(fds_[0], "after", {}).ok());
  close(sent);
  EXPECT_EQ(ReadFrame(fds_[1], {}).value(), "before");
  absl::StatusOr<int> received = ReceiveDescriptor(fds_[1], {});
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(ReadFrame(fds_[1], {}).value(), "after");
  char text[14] = {};
  EXPECT_EQ(pread(*received, text, 13, 0), 13);
  EXPECT_STREQ(text, "what is in it");
  EXPECT_EQ(fcntl(*received, F_GETFD), FD_CLOEXEC);
  close(*received);
}

TEST_F(FrameTest, AByteWithoutADescriptorIsUnavailable) {
  ASSERT_EQ(write(fds_[0], "d", 1), 1);
  EXPECT_TRUE(absl::IsUnavailable(ReceiveDescriptor(fds_[1], {}).status()));
  shutdown(fds_[0], SHUT_RDWR);
  EXPECT_TRUE(absl::IsUnavailable(ReceiveDescriptor(fds_[1], {}).status()));
  EXPECT_TRUE(absl::IsUnavailable(SendDescriptor(fds_[1], 0, {})));
}

TEST_F(FrameTest, AClosedEndIsUnavailable) {
  shutdown(fds_[0], SHUT_RDWR);
  EXPECT_TRUE(absl::IsUnavailable(ReadFrame(fds_[1], {}).status()));
  EXPECT_TRUE(absl::IsUnavailable(WriteFrame(fds_[1], "text", {})));
}

TEST_F(FrameTest, AFrameCutShortIsUnavailable) {
  ASSERT_EQ(write(fds_[0], "\x10\0\0\0half", 8), 8);
  shutdown(fds_[0], SHUT_WR);
  EXPECT_TRUE(absl::IsUnavailable(ReadFrame(fds_[1], {}).status()));
}

TEST_F(FrameTest, AnAbsurdLengthIsRefused) {
  ASSERT_EQ(write(fds_[0], "\xff\xff\xff\xff", 4), 4);
  EXPECT_TRUE(absl::IsUnavailable(ReadFrame(fds_[1], {}).status()));
}

TEST_F(FrameTest, TheWaitersErrorEndsAReadAndAWrite) {
  auto give_up = [] { return absl::DeadlineExceededError("enough"); };
  EXPECT_TRUE(absl::IsDeadlineExceeded(ReadFrame(fds_[1], give_up).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(WriteFrame(fds_[0], std::string(8 << 20, 'x'), give_up)));
}

}  // namespace
}  // namespace kiln::server
