#include "cache/metered_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cache/entries.h"
#include "tests/unit/cache/fake_store.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(MeteredStoreTest, ReportsEveryReadOnceWithItsKindAndResult) {
  FakeStore inner;
  std::vector<std::pair<EntryKind, GetResult>> seen;
  auto store = MakeMeteredStore(
      &inner, [&](EntryKind kind, GetResult result) { seen.push_back({kind, result}); });
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  EXPECT_TRUE(store->Get(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(store->Get(KernelKeyOf(1)).status().code(), absl::StatusCode::kNotFound);
  inner.get_error = absl::DataLossError("damaged");
  EXPECT_EQ(store->Get(KernelKeyOf(1)).status().code(), absl::StatusCode::kDataLoss);
  inner.get_error = absl::PermissionDeniedError("ed25519:stranger");
  EXPECT_FALSE(store->Get(ArtifactKeyOf(1)).ok());
  inner.get_error = absl::UnavailableError("disk gone");
  EXPECT_EQ(store->Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(seen, ElementsAre(Pair(EntryKind::kArtifact, GetResult::kHit),
                                Pair(EntryKind::kKernel, GetResult::kMiss),
                                Pair(EntryKind::kKernel, GetResult::kCorrupt),
                                Pair(EntryKind::kArtifact, GetResult::kUntrusted),
                                Pair(EntryKind::kArtifact, GetResult::kError)));
}

TEST(MeteredStoreTest, ReportsEachOfMany) {
  FakeStore inner;
  std::vector<std::pair<EntryKind, GetResult>> seen;
  auto store = MakeMeteredStore(
      &inner, [&](EntryKind kind, GetResult result) { seen.push_back({kind, result}); });
  ASSERT_TRUE(store->Put(KernelKeyOf(1), MakeEntry("a")).ok());
  EXPECT_EQ(store->GetMany({KernelKeyOf(1), KernelKeyOf(2)}).size(), 2u);
  EXPECT_EQ(inner.batches, 1);
  EXPECT_THAT(seen, ElementsAre(Pair(EntryKind::kKernel, GetResult::kHit),
                                Pair(EntryKind::kKernel, GetResult::kMiss)));
}

TEST(MeteredStoreTest, PassesTheRestOn) {
  FakeStore inner;
  auto store = MakeMeteredStore(&inner, [](EntryKind, GetResult) {});
  inner.put_error = absl::ResourceExhaustedError("full");
  EXPECT_EQ(store->Put(ArtifactKeyOf(1), MakeEntry("a")), inner.put_error);
  inner.put_error = absl::OkStatus();
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  EXPECT_THAT(Keys(*store), ElementsAre(ArtifactKeyOf(1)));
  EXPECT_EQ(Entries(*store), 1);
  ASSERT_TRUE(store->Remove(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(Entries(*store), 0);
}

TEST(MeteredStoreTest, ReportsEveryWriteThatFailsWithItsKind) {
  FakeStore inner;
  std::vector<EntryKind> failed;
  auto store = MakeMeteredStore(
      &inner, [](EntryKind, GetResult) {}, [&](EntryKind kind) { failed.push_back(kind); });
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  inner.put_error = absl::ResourceExhaustedError("full");
  EXPECT_EQ(store->Put(KernelKeyOf(1), MakeEntry("k")), inner.put_error);
  EXPECT_THAT(failed, ElementsAre(EntryKind::kKernel));
}

TEST(MeteredStoreTest, NamesOfResultsAreTheMetricsLabels) {
  EXPECT_EQ(GetResultName(GetResult::kHit), "hit");
  EXPECT_EQ(GetResultName(GetResult::kMiss), "miss");
  EXPECT_EQ(GetResultName(GetResult::kCorrupt), "corrupt");
  EXPECT_EQ(GetResultName(GetResult::kUntrusted), "untrusted");
  EXPECT_EQ(GetResultName(GetResult::kError), "error");
}

}  // namespace
}  // namespace kiln::cache
