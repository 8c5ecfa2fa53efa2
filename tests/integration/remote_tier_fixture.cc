#include "tests/integration/remote_tier_fixture.h"

#include <signal.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace kiln::integration {

using cache::RemoteTier;

void RemoteTierFixture::SetUp() {
  if (RedisServerProgram().empty() || FindProgram("redis-cli").empty()) {
    GTEST_SKIP() << "redis-server and redis-cli are not installed";
  }
  signal(SIGPIPE, SIG_IGN);  // as kilnd has it
  key_ = NewKey();
}

std::unique_ptr<SigningKey> RemoteTierFixture::NewKey() {
  return SigningKey::LoadOrCreate(absl::StrCat(dir_.path(), "/key", keys_made_++)).value();
}

std::unique_ptr<RemoteTier> RemoteTierFixture::Open(
    const std::string& url, const std::function<void(cache::RemoteTierOptions&)>& change) {
  cache::RemoteTierOptions options;
  options.url = cache::ParseRemoteUrl(url).value();
  options.connect_timeout = absl::Seconds(2);
  options.read_timeout = absl::Seconds(2);
  options.breaker = {.failures_to_open = 5,
                     .min_open = absl::Milliseconds(50),
                     .max_open = absl::Milliseconds(200)};
  options.signing_key = key_.get();
  options.observer.done = [](absl::string_view, bool, absl::Duration) {};
  options.observer.written = [this](cache::WriteResult result) {
    absl::MutexLock lock(&mu_);
    ++written_[result];
  };
  if (change) change(options);
  return cache::OpenRemoteTier(options).value();
}

void RemoteTierFixture::PutAndWait(RemoteTier& tier, const cache::Key& key,
                                   const cache::EntryPtr& entry) {
  ASSERT_TRUE(tier.store().Put(key, entry).ok());
  ASSERT_TRUE(BecomesHit(tier, key));
}

bool RemoteTierFixture::BecomesHit(RemoteTier& tier, const cache::Key& key) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!tier.store().Get(key).ok()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

int RemoteTierFixture::Written(cache::WriteResult result) {
  absl::MutexLock lock(&mu_);
  return written_[result];
}

cache::Key ArtifactKey(int number) {
  return {cache::EntryKind::kArtifact, Sha256(absl::StrCat("key ", number))};
}

cache::EntryPtr EntryOf(int number, size_t size_bytes) {
  std::string bytes = absl::StrCat("entry ", number, " ");
  bytes.resize(size_bytes, 'x');
  return cache::MakeEntry(std::move(bytes));
}

}  // namespace kiln::integration
