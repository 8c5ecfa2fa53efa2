#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cache/remote/entry_format.h"
#include "cache/remote/remote_tier.h"
#include "tests/unit/cache/remote/fakes.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;

class RemoteStoreTest : public ::testing::Test {
 protected:
  RemoteStoreTest() {
    options_.signing_key = signer_.get();
    options_.observer.done = [this](absl::string_view operation, bool ok, absl::Duration) {
      absl::MutexLock lock(&mu_);
      ++done_[absl::StrCat(operation, ok ? " ok" : " failed")];
    };
    options_.observer.written = [this](WriteResult result) {
      absl::MutexLock lock(&mu_);
      ++done_[absl::StrCat("written ", WriteResultName(result))];
    };
    Open();
  }
  void Open() {
    queue_ = std::make_unique<WriteQueue>(
        options_.queue,
        [this](const Key& key, const Entry& entry) {
          return WriteRemoteEntry(client_, options_, key, entry);
        },
        nullptr, options_.observer.written);
    store_ = MakeRemoteStore(&client_, options_, queue_.get());
  }
  int Done(const std::string& what) {
    absl::MutexLock lock(&mu_);
    return done_[what];
  }
  std::string Value(const Key& key, const Entry& entry) {
    return EncodeRemoteEntry(key, entry, *signer_);
  }

  absl::Mutex mu_;
  std::map<std::string, int> done_ ABSL_GUARDED_BY(mu_);
  absl::StatusOr<Reply> reply_ = NilReply();
  FakeClient client_{[this](const std::string&) { return reply_; }};
  const std::unique_ptr<SigningKey> signer_ = NewSigningKey();
  RemoteTierOptions options_;
  std::unique_ptr<WriteQueue> queue_;
  std::unique_ptr<Store> store_;
  const Key key_ = {EntryKind::kArtifact, Sha256("k")};
  const EntryPtr entry_ = MakeEntry("value");
};

TEST_F(RemoteStoreTest, GetReturnsWhatTheTierHas) {
  reply_ = StringReply(Value(key_, *entry_));
  auto found = store_->Get(key_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->tier, "remote");
  EXPECT_EQ(found->entry->bytes, "value");
  EXPECT_THAT(client_.last(), ElementsAre("GET", RemoteKeyName(key_)));
  EXPECT_EQ(Done("get ok"), 1);
}

TEST_F(RemoteStoreTest, EveryFailureIsAMissOfItsOwnKind) {
  EXPECT_TRUE(absl::IsNotFound(store_->Get(key_).status()));
  EXPECT_EQ(Done("get ok"), 1) << "that there is none is an answer";
  reply_ = absl::DeadlineExceededError("slow");
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->Get(key_).status()));
  reply_ = ErrorReply("LOADING");
  EXPECT_TRUE(absl::IsUnavailable(store_->Get(key_).status()));
  reply_ = StringReply("nonsense");
  EXPECT_TRUE(absl::IsDataLoss(store_->Get(key_).status()));
  EXPECT_EQ(Done("get failed"), 3);
  reply_ = StringReply(EncodeRemoteEntry(key_, *entry_, *NewSigningKey()));
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Get(key_).status()));
  EXPECT_EQ(Done("get failed"), 3) << "the tier did answer";
  EXPECT_EQ(Done("get ok"), 2);
}

TEST_F(RemoteStoreTest, ManyAreAskedForTogether) {
  std::vector<Key> keys;
  for (int i = 0; i < 300; ++i) keys.push_back({EntryKind::kKernel, Sha256(absl::StrCat(i))});
  FakeClient client([&](const std::string& command) -> absl::StatusOr<Reply> {
    for (size_t i = 0; i < keys.size(); i += 2) {
      if (command == "GET " + RemoteKeyName(keys[i])) {
        return StringReply(Value(keys[i], *MakeEntry(absl::StrCat(i))));
      }
    }
    return NilReply();
  });
  auto found = MakeRemoteStore(&client, options_, queue_.get())->GetMany(keys);
  ASSERT_EQ(found.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(found[i].ok(), i % 2 == 0) << i;
    if (found[i].ok()) {
      EXPECT_EQ(found[i]->entry->bytes, absl::StrCat(i));
    }
  }
  EXPECT_EQ(client.batches(), 5);
  EXPECT_EQ(Done("get ok"), 5);
}

TEST_F(RemoteStoreTest, ATierThatIsAwayIsAskedForManyOnce) {
  reply_ = absl::DeadlineExceededError("slow");
  auto found = store_->GetMany(std::vector<Key>(300, key_));
  ASSERT_EQ(found.size(), 300u);
  for (const auto& each : found) EXPECT_FALSE(each.ok());
  EXPECT_EQ(client_.batches(), 1);
  EXPECT_EQ(Done("get failed"), 1);
}

TEST_F(RemoteStoreTest, OneThatIsTooLargeHidesNoOther) {
  std::vector<Key> keys = {key_, {EntryKind::kKernel, Sha256("l")}};
  int calls = 0;
  // As a connection has it: the first try at both fails, then each is asked for alone.
  FakeClient client([&](const std::string& command) -> absl::StatusOr<Reply> {
    if (++calls <= 2 || command != "GET " + RemoteKeyName(key_)) {
      return absl::ResourceExhaustedError("a reply is over the limit");
    }
    return StringReply(Value(key_, *entry_));
  });
  auto found = MakeRemoteStore(&client, options_, queue_.get())->GetMany(keys);
  EXPECT_TRUE(found[0].ok()) << found[0].status();
  EXPECT_FALSE(found[1].ok());
}

TEST_F(RemoteStoreTest, OthersAreTrustedOnceTheyAreNamed) {
  auto other = NewSigningKey();
  options_.trusted_keys = {other->public_key()};
  Open();
  reply_ = StringReply(EncodeRemoteEntry(key_, *entry_, *other));
  EXPECT_TRUE(store_->Get(key_).ok());
  reply_ = StringReply(Value(key_, *entry_));
  EXPECT_TRUE(store_->Get(key_).ok()) << "its own key always is";
}

TEST_F(RemoteStoreTest, PutWritesASignedEntryInTheBackground) {
  reply_ = StatusReply("OK");
  options_.expiry = absl::Hours(1);
  Open();
  ASSERT_TRUE(store_->Put(key_, entry_).ok());
  queue_.reset();  // flushes
  std::vector<std::string> command = client_.last();
  EXPECT_THAT(command, ElementsAre("SET", RemoteKeyName(key_), command[2], "PX", "3600000"));
  EXPECT_TRUE(DecodeRemoteValue(command[2], key_, {signer_->public_key()}).ok());
  EXPECT_EQ(Done("written ok"), 1);
  EXPECT_EQ(Done("put ok"), 1);
}

TEST_F(RemoteStoreTest, WithoutAnExpiryThereIsNone) {
  reply_ = StatusReply("OK");
  ASSERT_TRUE(store_->Put(key_, entry_).ok());
  queue_.reset();
  EXPECT_EQ(client_.last().size(), 3u);
}

TEST_F(RemoteStoreTest, LargeEntriesAreNotSent) {
  options_.max_entry_bytes = 4;
  Open();
  EXPECT_TRUE(absl::IsResourceExhausted(store_->Put(key_, entry_)));
  queue_.reset();
  EXPECT_EQ(client_.calls(), 0);
  EXPECT_EQ(Done("written too_large"), 1);
}

// Keeps what is SET.
class MapClient {
 public:
  absl::StatusOr<Reply> Answer(const std::string& command) {
    const std::vector<std::string> words = absl::StrSplit(command, absl::MaxSplits(' ', 2));
    if (words[0] == "SET") {
      values_[words[1]] = words[2];
      order_.push_back(words[1]);
      return StatusReply("OK");
    }
    auto it = values_.find(words[1]);
    return it == values_.end() ? NilReply() : StringReply(it->second);
  }
  std::map<std::string, std::string>& values() { return values_; }
  const std::vector<std::string>& order() const { return order_; }

 private:
  std::map<std::string, std::string> values_;
  std::vector<std::string> order_;
};

TEST_F(RemoteStoreTest, LargeEntriesAreInPiecesWithTheirKeyLast) {
  MapClient map;
  FakeClient client([&](const std::string& command) { return map.Answer(command); });
  const EntryPtr large = MakeEntry(std::string(20 * kPieceBytes + 1, 'x'));
  ASSERT_TRUE(WriteRemoteEntry(client, options_, key_, *large).ok());
  ASSERT_EQ(map.order().size(), 22u);
  EXPECT_EQ(map.order().front(), PieceName(large->digest, 0));
  EXPECT_EQ(map.order().back(), RemoteKeyName(key_));
  EXPECT_EQ(client.batches(), 6 + 1) << "four at a time, then the key";
  auto store = MakeRemoteStore(&client, options_, queue_.get());
  auto found = store->Get(key_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->entry->bytes, large->bytes);
  auto many = store->GetMany({key_, {EntryKind::kKernel, Sha256("none")}});
  EXPECT_TRUE(many[0].ok());
  EXPECT_TRUE(absl::IsNotFound(many[1].status()));

  options_.max_entry_bytes = 20 * kPieceBytes;
  const int calls = client.calls();
  EXPECT_TRUE(absl::IsResourceExhausted(
      MakeRemoteStore(&client, options_, queue_.get())->Get(key_).status()));
  EXPECT_EQ(client.calls(), calls + 1) << "no piece of it is asked for";

  map.values().erase(PieceName(large->digest, 19));
  EXPECT_TRUE(absl::IsNotFound(store->Get(key_).status())) << "evicted in part";
}

TEST_F(RemoteStoreTest, ALargeEntryWhosePiecesAreRefusedHasNoKey) {
  FakeClient client([&](const std::string& command) -> absl::StatusOr<Reply> {
    EXPECT_FALSE(absl::StartsWith(command, "SET " + RemoteKeyName(key_)));
    return ErrorReply("OOM command not allowed");
  });
  const EntryPtr large = MakeEntry(std::string(2 * kPieceBytes, 'x'));
  EXPECT_TRUE(absl::IsFailedPrecondition(WriteRemoteEntry(client, options_, key_, *large)));
}

TEST_F(RemoteStoreTest, ARefusedWriteIsCounted) {
  reply_ = ErrorReply("OOM command not allowed");
  ASSERT_TRUE(store_->Put(key_, entry_).ok());
  queue_.reset();
  EXPECT_EQ(Done("written error"), 1);
  EXPECT_EQ(client_.calls(), 1);
}

TEST_F(RemoteStoreTest, RemoveNeverFails) {
  reply_ = IntegerReply(1);
  EXPECT_TRUE(store_->Remove(key_).ok());
  EXPECT_THAT(client_.last(), ElementsAre("DEL", RemoteKeyName(key_)));
  reply_ = absl::UnavailableError("away");
  EXPECT_TRUE(store_->Remove(key_).ok());
  EXPECT_EQ(Done("remove ok"), 1);
  EXPECT_EQ(Done("remove failed"), 1);
}

}  // namespace
}  // namespace kiln::cache
