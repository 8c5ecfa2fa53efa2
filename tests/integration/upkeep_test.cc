// Calls that look after the cache may take long; the others do not wait for them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/integration/cache_entries.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

class UpkeepTest : public ServerTest {
 protected:
  // The file of the one value that is large enough to have one.
  std::string FileOfLargeValue() {
    std::string largest;
    uintmax_t most = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cache_path())) {
      if (!entry.is_regular_file() || entry.path().string().find("/files/") == std::string::npos ||
          entry.file_size() <= most) {
        continue;
      }
      most = entry.file_size();
      largest = entry.path();
    }
    return largest;
  }
};

TEST_F(UpkeepTest, CompilesAndHitsDoNotWaitForVerifications) {
  ASSERT_TRUE(StartServer());
  const Answer compiled = Compile(stub(), QuickRequest(1000));
  ASSERT_TRUE(compiled.ok()) << Text(compiled.status);
  ASSERT_TRUE(Import(stub(), RecordsOf(MakeUpEntry(1, 2 << 20))).ok());
  // A pipe keeps whoever opens it until there is a writer.
  const std::string file = FileOfLargeValue();
  ASSERT_FALSE(file.empty());
  ASSERT_EQ(unlink(file.c_str()), 0);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);

  constexpr int kCalls = 8;
  struct Verification {
    grpc::ClientContext context;
    v1::VerifyCacheRequest request;
    v1::VerifyCacheResponse response;
  };
  std::vector<Verification> calls(kCalls);
  std::atomic<int> ended = 0;
  for (Verification& call : calls) {
    stub().async()->VerifyCache(&call.context, &call.request, &call.response,
                                [&ended](const grpc::Status&) { ++ended; });
  }
  const Answer meanwhile = Compile(stub(), QuickRequest(2000), nullptr, absl::Seconds(20));
  EXPECT_TRUE(meanwhile.ok()) << Text(meanwhile.status);
  EXPECT_EQ(Compile(stub(), QuickRequest(1000), nullptr, absl::Seconds(20)).source, "memory");
  EXPECT_EQ(ended, 0) << "they waited all the while";

  // Without its writer the pipe is an empty value, which is damaged and removed.
  const int writer = open(file.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  EXPECT_TRUE(Eventually(absl::Seconds(30), [&] { return ended == kCalls; }));
  close(writer);
}

}  // namespace
}  // namespace kiln::integration
