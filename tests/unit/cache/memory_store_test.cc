#include "cache/memory_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/unit/cache/entries.h"

namespace kiln::cache {
namespace {

using ::testing::UnorderedElementsAre;

TEST(MemoryStoreTest, ReturnsWhatWasPut) {
  auto store = MakeMemoryStore(1 << 20);
  EntryPtr entry = MakeEntry("bytes");
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), entry).ok());
  auto found = store->Get(ArtifactKeyOf(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->entry, entry);  // the same memory: no copy
  EXPECT_EQ(found->tier, "memory");
}

TEST(MemoryStoreTest, AnAbsentKeyIsNotFound) {
  auto store = MakeMemoryStore(1 << 20);
  EXPECT_EQ(store->Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store->Remove(ArtifactKeyOf(1)).ok());
}

TEST(MemoryStoreTest, KindsOfOneDigestAreDifferentEntries) {
  auto store = MakeMemoryStore(1 << 20);
  Key artifact = ArtifactKeyOf(1);
  Key kernel = {EntryKind::kKernel, artifact.digest};
  ASSERT_TRUE(store->Put(artifact, MakeEntry("a")).ok());
  EXPECT_EQ(store->Get(kernel).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store->Put(kernel, MakeEntry("k")).ok());
  EXPECT_EQ(store->Get(artifact)->entry->bytes, "a");
  EXPECT_EQ(store->Get(kernel)->entry->bytes, "k");
}

TEST(MemoryStoreTest, DropsTheLeastRecentlyReadEntry) {
  auto store = MakeMemoryStore(40'000);  // three values of 10 kB and what they cost beside
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(store->Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 10'000))).ok());
  }
  ASSERT_TRUE(store->Get(ArtifactKeyOf(1)).ok());
  ASSERT_TRUE(store->Put(ArtifactKeyOf(4), MakeEntry(BytesOf(4, 10'000))).ok());
  EXPECT_THAT(Keys(*store),
              UnorderedElementsAre(ArtifactKeyOf(3), ArtifactKeyOf(1), ArtifactKeyOf(4)));
  EXPECT_EQ(store->Get(ArtifactKeyOf(2)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Usages().front().evicted, 1);
}

TEST(MemoryStoreTest, NeverHoldsMoreThanItsLimit) {
  constexpr int64_t kMaxBytes = 100'000;
  auto store = MakeMemoryStore(kMaxBytes);
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    int number = static_cast<int>(random() % 50);
    Key key = random() % 2 ? ArtifactKeyOf(number) : KernelKeyOf(number);
    ASSERT_TRUE(store->Put(key, MakeEntry(BytesOf(i, 1 + random() % 20'000))).ok());
    ASSERT_LE(SizeBytes(*store), kMaxBytes);
    ASSERT_TRUE(store->Get(key).ok()) << "the entry just put was dropped";
    ASSERT_EQ(static_cast<int64_t>(Keys(*store).size()), Entries(*store));
  }
}

TEST(MemoryStoreTest, RefusesAValueOverTheLimitAndKeepsTheRest) {
  auto store = MakeMemoryStore(10'000);
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), MakeEntry("small")).ok());
  EXPECT_EQ(store->Put(ArtifactKeyOf(2), MakeEntry(BytesOf(2, 10'001))).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store->Get(ArtifactKeyOf(1)).ok());
}

TEST(MemoryStoreTest, AReadValueOutlivesItsEviction) {
  auto store = MakeMemoryStore(10'000);
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), MakeEntry(BytesOf(1, 9'000))).ok());
  EntryPtr read = store->Get(ArtifactKeyOf(1))->entry;
  ASSERT_TRUE(store->Put(ArtifactKeyOf(2), MakeEntry(BytesOf(2, 9'000))).ok());
  EXPECT_FALSE(store->Get(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(read->bytes, BytesOf(1, 9'000));
}

TEST(MemoryStoreTest, ClearRemovesOneKind) {
  auto store = MakeMemoryStore(1 << 20);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(store->Put(ArtifactKeyOf(i), MakeEntry("a")).ok());
    ASSERT_TRUE(store->Put(KernelKeyOf(i), MakeEntry("k")).ok());
  }
  auto removed = Clear(*store, EntryKind::kKernel);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(*removed, 3);
  EXPECT_EQ(Entries(*store, EntryKind::kKernel), 0);
  EXPECT_EQ(Entries(*store, EntryKind::kArtifact), 3);
}

TEST(MemoryStoreTest, ThreadsMayShareIt) {
  auto store = MakeMemoryStore(50'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 500; ++i) {
        int number = static_cast<int>(random() % 30);
        if (random() % 2) {
          ASSERT_TRUE(store->Put(KernelKeyOf(number), MakeEntry(BytesOf(number, 5'000))).ok());
        } else if (auto found = store->Get(KernelKeyOf(number)); found.ok()) {
          ASSERT_EQ(found->entry->bytes, BytesOf(number, 5'000));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(SizeBytes(*store), 50'000);
}

}  // namespace
}  // namespace kiln::cache
