// Stored values that changed on disk are never served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/graphs.h"
#include "tests/integration/raw_cache.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

class DamageTest : public ServerTest {
 protected:
  // Compiles, and stops the server.
  void FillCache() {
    ASSERT_TRUE(StartServer());
    Answer answer = Compile(stub(), request_);
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    ASSERT_EQ(StopServer(), 0);
  }

  void ExpectRightAnswer(const Answer& answer) {
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    std::vector<float> x = SampleInput(kElements);
    auto y = RunArtifact(answer.bytes, x);
    ASSERT_TRUE(y.ok()) << y.status();
    EXPECT_THAT(*y, ::testing::Pointwise(::testing::FloatEq(), QuickAnswer(x)));
  }

  double Corrupt(const std::string& kind) {
    return Metrics().Sum("kiln_cache_requests_total",
                         {{"kind", kind}, {"tier", "disk"}, {"result", "corrupt"}});
  }

  static constexpr int64_t kElements = 1000;
  static constexpr int kKernelEntries = 2;  // a kernel, and the routine that it calls
  const v1::CompileRequest request_ = QuickRequest(kElements);
};

TEST_F(DamageTest, AFlippedBitInAnArtifactIsAMissThatIsCountedAndCompiledAgain) {
  ASSERT_NO_FATAL_FAILURE(FillCache());
  auto flipped = FlipStoredValues(cache_path(), cache::EntryKind::kArtifact);
  ASSERT_TRUE(flipped.ok()) << flipped.status();
  ASSERT_EQ(*flipped, 1);
  ASSERT_TRUE(StartServer());
  Answer answer = Compile(stub(), request_);
  ExpectRightAnswer(answer);
  EXPECT_EQ(answer.source, "compiled");
  EXPECT_TRUE(answer.artifact.header().kernels(0).cached()) << "its kernel was not damaged";
  EXPECT_EQ(Corrupt("artifact"), 1);
  EXPECT_EQ(Corrupt("kernel"), 0);
  // Mended for good.
  ASSERT_TRUE(StartServer());
  EXPECT_EQ(Compile(stub(), request_).source, "disk");
  EXPECT_EQ(VerifyCache(stub()).corrupt(), 0);
}

TEST_F(DamageTest, AFlippedBitInAKernelIsCompiledAgain) {
  ASSERT_NO_FATAL_FAILURE(FillCache());
  for (cache::EntryKind kind : cache::kEntryKinds) {
    auto flipped = FlipStoredValues(cache_path(), kind);
    ASSERT_TRUE(flipped.ok()) << flipped.status();
    const int expected = kind == cache::EntryKind::kKernel   ? kKernelEntries
                         : kind == cache::EntryKind::kChoice ? 0
                                                             : 1;
    ASSERT_EQ(*flipped, expected);
  }
  ASSERT_TRUE(StartServer());
  Answer answer = Compile(stub(), request_);
  ExpectRightAnswer(answer);
  EXPECT_EQ(answer.source, "compiled");
  EXPECT_FALSE(answer.artifact.header().kernels(0).cached());
  EXPECT_FALSE(answer.artifact.header().routines(0).cached());
  EXPECT_EQ(Corrupt("artifact"), 1);
  EXPECT_EQ(Corrupt("kernel"), kKernelEntries);
}

TEST_F(DamageTest, FetchOfADamagedArtifactIsNotFound) {
  ASSERT_TRUE(StartServer());
  std::string key = Compile(stub(), request_).artifact.header().key();
  ASSERT_EQ(StopServer(), 0);
  ASSERT_TRUE(FlipStoredValues(cache_path(), cache::EntryKind::kArtifact).ok());
  ASSERT_TRUE(StartServer());
  Answer answer = Fetch(stub(), key);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::NOT_FOUND) << Text(answer.status);
}

TEST_F(DamageTest, VerifyCacheFindsDamageAndRemovesIt) {
  ASSERT_NO_FATAL_FAILURE(FillCache());
  ASSERT_TRUE(FlipStoredValues(cache_path(), cache::EntryKind::kKernel).ok());
  ASSERT_TRUE(StartServer());
  v1::VerifyCacheResponse first = VerifyCache(stub());
  EXPECT_EQ(first.checked(), 2 + kKernelEntries);  // artifact and description
  EXPECT_EQ(first.corrupt(), kKernelEntries);
  v1::VerifyCacheResponse second = VerifyCache(stub());
  EXPECT_EQ(second.checked(), 2);
  EXPECT_EQ(second.corrupt(), 0);
}

TEST_F(DamageTest, FlippedBitsInTheDatabasesFilesNeverReachAClient) {
  ASSERT_NO_FATAL_FAILURE(FillCache());
  ASSERT_TRUE(StartServer());  // moves what the log holds into files of their own
  ASSERT_EQ(StopServer(), 0);
  int files = 0;
  // Values in files of their own, and the database's tables.
  for (auto [folder, extension] : {std::pair{"/files", ""}, {"/db", ".sst"}}) {
    auto flipped = FlipFiles(cache_path() + folder, extension);
    ASSERT_TRUE(flipped.ok()) << flipped.status();
    files += *flipped;
  }
  ASSERT_GT(files, 0);
  ASSERT_TRUE(StartServer());
  Answer answer = Compile(stub(), request_);
  ExpectRightAnswer(answer);
  EXPECT_EQ(answer.source, "compiled");
}

}  // namespace
}  // namespace kiln::integration
