#include "cache/verifying_store.h"

#include <gtest/gtest.h>

#include "cache/metered_store.h"
#include "tests/unit/cache/entries.h"
#include "tests/unit/cache/fake_store.h"

namespace kiln::cache {
namespace {

EntryPtr DamagedEntry(std::string bytes, size_t at) {
  auto entry = std::make_shared<Entry>(*MakeEntry(std::move(bytes)));
  entry->bytes[at] ^= 1;
  return entry;
}

TEST(VerifyingStoreTest, PassesIntactValues) {
  FakeStore inner;
  auto store = MakeVerifyingStore(&inner);
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), MakeEntry("intact")).ok());
  auto found = store->Get(ArtifactKeyOf(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->entry->bytes, "intact");
  EXPECT_EQ(inner.removes, 0);
}

TEST(VerifyingStoreTest, OneFlippedBitAnywhereIsCaughtAndTheEntryRemoved) {
  std::string bytes = BytesOf(1, 40);
  for (size_t at = 0; at < bytes.size(); ++at) {
    FakeStore inner;
    auto store = MakeVerifyingStore(&inner);
    inner.Put(ArtifactKeyOf(1), DamagedEntry(bytes, at)).IgnoreError();  // a fake's, never fails
    EXPECT_EQ(store->Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(inner.entries.empty());
    EXPECT_EQ(store->Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kNotFound);
  }
}

TEST(VerifyingStoreTest, ManyAreCheckedAsEachIs) {
  FakeStore inner;
  auto store = MakeVerifyingStore(&inner);
  inner.Put(ArtifactKeyOf(1), MakeEntry("intact")).IgnoreError();         // a fake's, never fails
  inner.Put(ArtifactKeyOf(2), DamagedEntry("damaged", 3)).IgnoreError();  // a fake's, never fails
  auto found = store->GetMany({ArtifactKeyOf(1), ArtifactKeyOf(2), ArtifactKeyOf(3)});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(found[0].ok());
  EXPECT_TRUE(absl::IsDataLoss(found[1].status()));
  EXPECT_TRUE(absl::IsNotFound(found[2].status()));
  EXPECT_EQ(inner.batches, 1);
  EXPECT_EQ(inner.removes, 1);
}

TEST(VerifyingStoreTest, RemovesWhatTheInnerStoreFindsDamaged) {
  FakeStore inner;
  auto store = MakeVerifyingStore(&inner);
  inner.get_error = absl::DataLossError("block checksum");
  EXPECT_EQ(store->Get(KernelKeyOf(1)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(inner.removes, 1);
}

TEST(VerifyingStoreTest, OtherFailuresRemoveNothing) {
  FakeStore inner;
  auto store = MakeVerifyingStore(&inner);
  inner.get_error = absl::UnavailableError("input/output error");
  EXPECT_EQ(store->Get(KernelKeyOf(1)).status(), inner.get_error);
  EXPECT_EQ(inner.removes, 0);
}

TEST(VerifyingStoreTest, DamageIsCountedByAMeterAroundIt) {
  FakeStore inner;
  auto verifying = MakeVerifyingStore(&inner);
  int corrupt = 0;
  auto store = MakeMeteredStore(verifying.get(), [&](EntryKind, GetResult result) {
    corrupt += result == GetResult::kCorrupt;
  });
  inner.Put(ArtifactKeyOf(1), DamagedEntry("value", 2)).IgnoreError();  // a fake's, never fails
  EXPECT_FALSE(store->Get(ArtifactKeyOf(1)).ok());
  EXPECT_FALSE(store->Get(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(corrupt, 1);
}

TEST(VerifyingStoreTest, VerifyAllCountsAndRemovesTheDamagedOnes) {
  FakeStore inner;
  auto store = MakeVerifyingStore(&inner);
  for (int i = 0; i < 5; ++i) {
    EntryPtr entry = i % 2 ? DamagedEntry(BytesOf(i, 100), 50) : MakeEntry(BytesOf(i, 100));
    inner.Put(ArtifactKeyOf(i), entry).IgnoreError();  // a fake's, never fails
  }
  VerifyResult first = VerifyAll(*store);
  EXPECT_EQ(first.checked, 5);
  EXPECT_EQ(first.corrupt, 2);
  VerifyResult second = VerifyAll(*store);
  EXPECT_EQ(second.checked, 3);
  EXPECT_EQ(second.corrupt, 0);
}

TEST(VerifyingStoreTest, VerifyAllEndsOnceNobodyWantsToKnow) {
  FakeStore inner;
  auto store = MakeVerifyingStore(&inner);
  for (int i = 0; i < 5; ++i) {
    inner.Put(ArtifactKeyOf(i), MakeEntry("intact")).IgnoreError();  // a fake's, never fails
  }
  EXPECT_EQ(VerifyAll(*store, [&] { return inner.gets == 2; }).checked, 2);
}

}  // namespace
}  // namespace kiln::cache
