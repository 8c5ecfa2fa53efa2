// The shared tier over a real Redis Cluster: three masters and a replica.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cache/remote/entry_format.h"
#include "tests/integration/remote_tier_fixture.h"

namespace kiln::integration {
namespace {

using cache::RemoteTier;

constexpr int kEntries = 60;

class RemoteClusterTest : public RemoteTierFixture {
 protected:
  void SetUp() override {
    RemoteTierFixture::SetUp();
    if (IsSkipped()) return;
    auto cluster = RedisCluster::Start();
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    // One seed: the others are learnt.
    tier_ = Open(absl::StrCat("redis://", cluster_->addresses()[1], ",", cluster_->addresses()[2]));
    for (int i = 0; i < kEntries; ++i) {
      ASSERT_TRUE(tier_->store().Put(ArtifactKey(i), EntryOf(i)).ok());
    }
    for (int i = 0; i < kEntries; ++i) {
      ASSERT_TRUE(BecomesHit(*tier_, ArtifactKey(i)));
      owners_.push_back(cluster_->OwnerOf(cache::RemoteKeyName(ArtifactKey(i))));
    }
  }
  // A number of an entry that this master owns.
  int EntryOn(int master) {
    for (int i = 0; i < kEntries; ++i) {
      if (owners_[static_cast<size_t>(i)] == master) return i;
    }
    return -1;
  }

  std::unique_ptr<RedisCluster> cluster_;
  std::unique_ptr<RemoteTier> tier_;
  std::vector<int> owners_;
};

// Reads every entry over and over on a thread of its own.
class Reader {
 public:
  explicit Reader(RemoteTier& tier)
      : thread_([this, &tier] {
          while (!stop_) {
            for (int i = 0; i < kEntries; ++i) {
              auto found = tier.store().Get(ArtifactKey(i));
              ++reads_;
              if (!found.ok()) ++misses_;
              if (found.ok() && found->entry->bytes != EntryOf(i)->bytes) ++wrong_;
            }
            ++rounds_;
          }
        }) {}
  ~Reader() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // Until everything was read at least twice more.
  void AwaitRounds() {
    const int until = rounds_ + 2;
    while (rounds_ < until) absl::SleepFor(absl::Milliseconds(1));
  }
  int reads() const { return reads_; }
  int misses() const { return misses_; }
  int wrong() const { return wrong_; }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> reads_ = 0;
  std::atomic<int> misses_ = 0;
  std::atomic<int> wrong_ = 0;
  std::atomic<int> rounds_ = 0;
  std::thread thread_;
};

TEST_F(RemoteClusterTest, ManyEntriesAndPiecesOfLargeOnesAreSpreadOverIt) {
  auto fresh = Open(absl::StrCat("redis://", cluster_->addresses()[0]));
  std::vector<cache::Key> keys;
  for (int i = 0; i < kEntries; ++i) keys.push_back(ArtifactKey(i));
  auto found = fresh->store().GetMany(keys);
  ASSERT_EQ(found.size(), keys.size());
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_TRUE(found[static_cast<size_t>(i)].ok()) << found[static_cast<size_t>(i)].status();
    EXPECT_EQ(found[static_cast<size_t>(i)]->entry->bytes, EntryOf(i)->bytes);
  }
  const cache::EntryPtr large = EntryOf(kEntries, size_t{5} << 20);
  PutAndWait(*fresh, ArtifactKey(kEntries), large);
  EXPECT_EQ(tier_->store().Get(ArtifactKey(kEntries))->entry->bytes, large->bytes);
}

TEST_F(RemoteClusterTest, EntriesAndLeasesSpreadOverTheNodesAndMovingASlotLosesNoRead) {
  for (int master = 0; master < 3; ++master) EXPECT_GE(EntryOn(master), 0) << master;
  auto other = Open(absl::StrCat("redis://", cluster_->addresses()[0]));
  for (int i = 0; i < kEntries; ++i) {
    EXPECT_TRUE(other->store().Get(ArtifactKey(i)).ok()) << i;
    EXPECT_EQ(other->leases().Acquire(ArtifactKey(i), absl::Seconds(60)),
              cache::LeaseOutcome::kHeld);
    EXPECT_EQ(tier_->leases().Acquire(ArtifactKey(i), absl::Seconds(60)),
              cache::LeaseOutcome::kBusy);
  }

  Reader reader(*tier_);
  reader.AwaitRounds();
  const std::string name = cache::RemoteKeyName(ArtifactKey(EntryOn(0)));
  cluster_->BeginMove(name, 0, 2);
  EXPECT_THAT(cluster_->master(0).Call({"GET", name}), ::testing::StartsWith("ASK "));
  reader.AwaitRounds();
  cluster_->EndMove(name, 0, 2);
  EXPECT_THAT(cluster_->master(0).Call({"GET", name}), ::testing::StartsWith("MOVED "));
  reader.AwaitRounds();
  reader.Stop();
  EXPECT_EQ(reader.misses(), 0) << "of " << reader.reads();
  EXPECT_EQ(reader.wrong(), 0);
  RecordProperty("reads", reader.reads());
}

TEST_F(RemoteClusterTest, ADeadNodeCostsItsOwnEntriesUntilItsReplicaTakesOver) {
  const int lost = EntryOn(0);
  const int kept = EntryOn(1);
  ASSERT_GE(lost, 0);
  ASSERT_GE(kept, 0);
  Reader reader(*tier_);
  reader.AwaitRounds();
  EXPECT_EQ(reader.misses(), 0);
  // Replication is asynchronous: what has not got there dies with the master.
  ASSERT_TRUE(cluster_->replica().Becomes({"DBSIZE"}, cluster_->master(0).Call({"DBSIZE"}),
                                          absl::Seconds(30)));
  cluster_->master(0).Kill();
  const absl::Time killed = absl::Now();
  bool back = false;
  int reads_of_others = 0;
  while (!back && absl::Now() - killed < absl::Seconds(30)) {
    const absl::Time start = absl::Now();
    back = tier_->store().Get(ArtifactKey(lost)).ok();
    EXPECT_LT(absl::Now() - start, absl::Seconds(4)) << "a miss in its limit of two seconds";
    EXPECT_TRUE(tier_->store().Get(ArtifactKey(kept)).ok()) << "other nodes' entries are there";
    ++reads_of_others;
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_TRUE(back) << "the replica was promoted and found; as another node sees it:\n"
                    << cluster_->master(1).Call({"CLUSTER", "NODES"});
  EXPECT_GT(reads_of_others, 0);
  reader.AwaitRounds();
  reader.Stop();
  EXPECT_EQ(reader.wrong(), 0);
  EXPECT_GT(reader.misses(), 0) << "the node was away for a while";
  for (int i = 0; i < kEntries; ++i) EXPECT_TRUE(BecomesHit(*tier_, ArtifactKey(i))) << i;
}

}  // namespace
}  // namespace kiln::integration
