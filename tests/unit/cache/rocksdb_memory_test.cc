// What the durable tier keeps in memory.
#include <gtest/gtest.h>
#include <malloc.h>

#include "cache/rocksdb_store.h"
#include "tests/temp_dir.h"
#include "tests/unit/cache/entries.h"

namespace kiln::cache {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t LiveBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

TEST(RocksDbMemoryTest, WhatWasReadOfASmallCacheTakesASixteenthOfItsLimit) {
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "another heap";
#endif
  constexpr int kEntries = 3500;
  constexpr size_t kBytes = 3500;  // in tables, not in files
  TempDir dir;
  RocksDbOptions options;
  options.path = dir.path() + "/cache";
  options.max_bytes = kLeastCacheBytes;
  auto store = OpenRocksDbStore(options);
  ASSERT_TRUE(store.ok()) << store.status();
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_TRUE((*store)->Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, kBytes))).ok());
  }
  const int64_t before = LiveBytes();
  for (int i = 0; i < kEntries; ++i) ASSERT_TRUE((*store)->Get(ArtifactKeyOf(i)).ok());
  EXPECT_LT((LiveBytes() - before) / kMiB, kLeastCacheBytes / 16 / kMiB + 2);
}

}  // namespace
}  // namespace kiln::cache
