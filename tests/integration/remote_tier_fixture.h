// Fixture: tiers as servers open them, over redis-server processes. Skips where there is none.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache/remote/remote_tier.h"
#include "tests/integration/redis_process.h"
#include "tests/temp_dir.h"

namespace kiln::integration {

class RemoteTierFixture : public ::testing::Test {
 protected:
  void SetUp() override;

  // A tier of `url` with limits that a busy machine keeps; `change` has the last word.
  std::unique_ptr<cache::RemoteTier> Open(
      const std::string& url,
      const std::function<void(cache::RemoteTierOptions&)>& change = nullptr);
  std::unique_ptr<SigningKey> NewKey();

  // Puts and waits until it is in the tier.
  void PutAndWait(cache::RemoteTier& tier, const cache::Key& key, const cache::EntryPtr& entry);
  // Until the tier has the entry; false after a while.
  bool BecomesHit(cache::RemoteTier& tier, const cache::Key& key);

  // How often a tier of this fixture reported this result of a write.
  int Written(cache::WriteResult result);

  TempDir dir_;
  std::unique_ptr<SigningKey> key_;  // of every tier that is told no other

 private:
  int keys_made_ = 0;
  absl::Mutex mu_;
  std::map<cache::WriteResult, int> written_ ABSL_GUARDED_BY(mu_);
};

cache::Key ArtifactKey(int number);
cache::EntryPtr EntryOf(int number, size_t size_bytes = 1000);

}  // namespace kiln::integration
