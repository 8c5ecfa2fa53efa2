#include "cache/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cache/entries.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Lists what a test says.
class ListStore final : public Store {
 public:
  explicit ListStore(std::vector<EntryInfo> infos) : infos_(std::move(infos)) {}
  absl::StatusOr<Found> Get(const Key&) override { return absl::NotFoundError("a list"); }
  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    return GetEach(*this, keys);
  }
  absl::Status Put(const Key&, const EntryPtr&) override { return absl::OkStatus(); }
  absl::Status Remove(const Key&) override { return absl::OkStatus(); }
  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    for (const EntryInfo& info : infos_) visit(info);
  }
  std::vector<Usage> Usages() override { return {}; }

 private:
  const std::vector<EntryInfo> infos_;
};

std::vector<Key> KeysOf(const std::vector<EntryInfo>& infos) {
  std::vector<Key> keys;
  for (const EntryInfo& info : infos) keys.push_back(info.key);
  return keys;
}

EntryInfo Used(const Key& key, int64_t at, bool pinned = false) {
  EntryInfo info{key, 1, at};
  info.pinned = pinned;
  return info;
}

TEST(StoreTest, MostRecentAreThoseOfTheKindsThatWereUsedLast) {
  ListStore store({Used(ArtifactKeyOf(1), 30), Used(KernelKeyOf(2), 50), Used(ArtifactKeyOf(3), 10),
                   Used(ArtifactKeyOf(4), 40), Used(ArtifactKeyOf(5), 20)});
  EXPECT_THAT(KeysOf(MostRecent(store, {EntryKind::kArtifact}, 3)),
              ElementsAre(ArtifactKeyOf(4), ArtifactKeyOf(1), ArtifactKeyOf(5)));
  EXPECT_THAT(KeysOf(MostRecent(store, kEntryKinds, 1)), ElementsAre(KernelKeyOf(2)));
  EXPECT_EQ(MostRecent(store, kEntryKinds, 100).size(), 5u);
  EXPECT_THAT(MostRecent(store, kEntryKinds, 0), IsEmpty());
}

TEST(StoreTest, OfEntriesOfOneTimeTheLastListedIsTheMostRecent) {
  ListStore store(
      {Used(ArtifactKeyOf(1), 7), Used(ArtifactKeyOf(2), 7), Used(ArtifactKeyOf(3), 7)});
  EXPECT_THAT(KeysOf(MostRecent(store, kEntryKinds, 2)),
              ElementsAre(ArtifactKeyOf(3), ArtifactKeyOf(2)));
}

TEST(StoreTest, SortByUsePutsPinnedEntriesLast) {
  std::vector<EntryInfo> infos = {Used(ArtifactKeyOf(1), 1, true), Used(ArtifactKeyOf(2), 3),
                                  Used(ArtifactKeyOf(3), 2)};
  SortByUse(infos);
  EXPECT_THAT(KeysOf(infos), ElementsAre(ArtifactKeyOf(3), ArtifactKeyOf(2), ArtifactKeyOf(1)));
}

}  // namespace
}  // namespace kiln::cache
