#include "cache/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cache/memory_store.h"
#include "cache/metered_store.h"
#include "cache/tiered_store.h"
#include "cache/verifying_store.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMemoryOverhead = 256;  // what memory_store.cc adds to a value

Key MakeKey(int n, EntryKind kind = EntryKind::kKernel) {
  return {kind, Sha256(std::to_string(n))};
}

std::vector<Key> Keys(Store& store) {
  std::vector<Key> keys;
  store.ForEach([&](const EntryInfo& info) { keys.push_back(info.key); });
  return keys;
}

// A store whose failures the test chooses.
class FakeStore final : public Store {
 public:
  absl::StatusOr<Found> Get(const Key& key) override {
    ++gets;
    if (!fail_get.ok()) return fail_get;
    auto it = entries.find(key.digest);
    if (it == entries.end()) return absl::NotFoundError("none");
    return Found{it->second, "fake"};
  }
  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    if (fail_put.ok()) entries[key.digest] = entry;
    return fail_put;
  }
  absl::Status Remove(const Key& key) override {
    entries.erase(key.digest);
    return absl::OkStatus();
  }
  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    for (const auto& [digest, entry] : entries) visit({{EntryKind::kKernel, digest}, 1, 0});
  }
  std::vector<Usage> Usages() override { return {{"fake", EntryKind::kKernel, 0, 0}}; }

  std::map<Digest, EntryPtr> entries;
  absl::Status fail_get;
  absl::Status fail_put;
  int gets = 0;
};

TEST(MemoryStore, DropsTheLeastRecentlyUsedFirst) {
  auto store = MakeMemoryStore(3 * (100 + kMemoryOverhead));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(store->Put(MakeKey(i), MakeEntry(std::string(100, 'x'))).ok());
  }
  ASSERT_TRUE(store->Get(MakeKey(0)).ok());
  ASSERT_TRUE(store->Put(MakeKey(3), MakeEntry(std::string(100, 'x'))).ok());
  EXPECT_THAT(Keys(*store), ElementsAre(MakeKey(2), MakeKey(0), MakeKey(3)));
  EXPECT_TRUE(absl::IsNotFound(store->Get(MakeKey(1)).status()));
}

TEST(MemoryStore, NeverHoldsMoreThanItsLimit) {
  constexpr int64_t kLimit = 10000;
  auto store = MakeMemoryStore(kLimit);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(store->Put(MakeKey(i), MakeEntry(std::string(i * 37 % 3000, 'x'))).ok());
    int64_t size_bytes = 0;
    for (const Usage& usage : store->Usages()) size_bytes += usage.size_bytes;
    EXPECT_LE(size_bytes, kLimit);
  }
}

TEST(MemoryStore, RefusesAValueOverItsLimitAndKeepsTheRest) {
  auto store = MakeMemoryStore(1000);
  ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("small")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store->Put(MakeKey(2), MakeEntry(std::string(1000, 'x')))));
  EXPECT_TRUE(store->Get(MakeKey(1)).ok());
}

TEST(MemoryStore, ReplacingAValueCountsOnce) {
  auto store = MakeMemoryStore(1000);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("value")).ok());
  for (const Usage& usage : store->Usages()) {
    EXPECT_EQ(usage.entries, usage.kind == EntryKind::kKernel ? 1 : 0);
    EXPECT_EQ(usage.size_bytes, usage.kind == EntryKind::kKernel ? 5 + kMemoryOverhead : 0);
  }
}

TEST(MemoryStore, KindsAreSeparateKeys) {
  auto store = MakeMemoryStore(10000);
  ASSERT_TRUE(store->Put(MakeKey(1, EntryKind::kKernel), MakeEntry("kernel")).ok());
  EXPECT_TRUE(absl::IsNotFound(store->Get(MakeKey(1, EntryKind::kArtifact)).status()));
}

TEST(VerifyingStore, RemovesAndReportsAValueThatDoesNotMatchItsDigest) {
  FakeStore inner;
  auto entry = std::make_shared<Entry>(*MakeEntry("value"));
  entry->bytes[2] ^= 1;
  inner.entries[MakeKey(1).digest] = entry;
  auto store = MakeVerifyingStore(&inner);
  EXPECT_TRUE(absl::IsDataLoss(store->Get(MakeKey(1)).status()));
  EXPECT_TRUE(inner.entries.empty());
  EXPECT_TRUE(absl::IsNotFound(store->Get(MakeKey(1)).status()));
}

TEST(VerifyingStore, RemovesWhatTheInnerStoreFindsDamaged) {
  FakeStore inner;
  inner.entries[MakeKey(1).digest] = MakeEntry("value");
  inner.fail_get = absl::DataLossError("block checksum");
  auto store = MakeVerifyingStore(&inner);
  EXPECT_TRUE(absl::IsDataLoss(store->Get(MakeKey(1)).status()));
  EXPECT_TRUE(inner.entries.empty());
}

TEST(VerifyAll, CountsDamage) {
  FakeStore inner;
  for (int i = 0; i < 5; ++i) {
    auto entry = std::make_shared<Entry>(*MakeEntry(std::to_string(i)));
    if (i % 2 == 0) entry->bytes += "!";
    inner.entries[MakeKey(i).digest] = entry;
  }
  auto store = MakeVerifyingStore(&inner);
  VerifyResult result = VerifyAll(*store);
  EXPECT_EQ(result.checked, 5);
  EXPECT_EQ(result.corrupt, 3);
  EXPECT_EQ(inner.entries.size(), 2u);
}

TEST(MeteredStore, NamesEveryOutcome) {
  FakeStore inner;
  std::map<GetResult, int> counts;
  auto store = MakeMeteredStore(&inner, [&](EntryKind, GetResult result) { ++counts[result]; });
  store->Get(MakeKey(1)).IgnoreError();  // counted below
  ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("value")).ok());
  ASSERT_TRUE(store->Get(MakeKey(1)).ok());
  inner.fail_get = absl::DataLossError("bad");
  store->Get(MakeKey(1)).IgnoreError();  // counted below
  inner.fail_get = absl::UnavailableError("away");
  store->Get(MakeKey(1)).IgnoreError();  // counted below
  EXPECT_EQ(counts[GetResult::kMiss], 1);
  EXPECT_EQ(counts[GetResult::kHit], 1);
  EXPECT_EQ(counts[GetResult::kCorrupt], 1);
  EXPECT_EQ(counts[GetResult::kError], 1);
}

TEST(TieredStore, PromotesWhatOnlyTheLowerTierHas) {
  FakeStore upper;
  FakeStore lower;
  auto store = MakeTieredStore(&upper, &lower);
  lower.entries[MakeKey(1).digest] = MakeEntry("value");
  ASSERT_TRUE(store->Get(MakeKey(1)).ok());
  ASSERT_TRUE(store->Get(MakeKey(1)).ok());
  EXPECT_EQ(lower.gets, 1);
}

TEST(TieredStore, AFailingTierIsAMissNeverAnError) {
  FakeStore upper;
  FakeStore lower;
  auto store = MakeTieredStore(&upper, &lower);
  ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("value")).ok());
  upper.fail_get = absl::UnavailableError("away");
  EXPECT_TRUE(store->Get(MakeKey(1)).ok());
  lower.fail_get = absl::UnavailableError("away");
  EXPECT_TRUE(absl::IsNotFound(store->Get(MakeKey(1)).status()));
  lower.fail_put = absl::ResourceExhaustedError("full");
  EXPECT_TRUE(store->Put(MakeKey(2), MakeEntry("value")).ok());
  upper.fail_put = absl::ResourceExhaustedError("full");
  EXPECT_FALSE(store->Put(MakeKey(3), MakeEntry("value")).ok());
}

TEST(TieredStore, ListsEachEntryOnce) {
  FakeStore upper;
  FakeStore lower;
  auto store = MakeTieredStore(&upper, &lower);
  ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("both")).ok());
  upper.entries[MakeKey(2).digest] = MakeEntry("upper only");
  EXPECT_THAT(Keys(*store), ::testing::UnorderedElementsAre(MakeKey(1), MakeKey(2)));
}

TEST(Clear, RemovesOneKind) {
  auto store = MakeMemoryStore(100000);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(store->Put(MakeKey(i, EntryKind::kKernel), MakeEntry("k")).ok());
    ASSERT_TRUE(store->Put(MakeKey(i, EntryKind::kArtifact), MakeEntry("a")).ok());
  }
  EXPECT_EQ(Clear(*store, EntryKind::kKernel).value(), 4);
  EXPECT_EQ(Keys(*store).size(), 4u);
  EXPECT_TRUE(store->Get(MakeKey(1, EntryKind::kArtifact)).ok());
}

}  // namespace
}  // namespace kiln::cache
