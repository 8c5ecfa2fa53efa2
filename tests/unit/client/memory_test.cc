// Blocks of memory and the pages behind them.
#include "client/runtime/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace kiln::runtime {
namespace {

template <typename AnyBlock>
int64_t PagesThere(const AnyBlock& block) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> there(static_cast<size_t>(block.capacity() / page));
  EXPECT_EQ(mincore(block.data(), static_cast<size_t>(block.capacity()), there.data()), 0);
  return std::count_if(there.begin(), there.end(), [](unsigned char c) { return (c & 1) != 0; });
}

TEST(Memory, PagesAreTakenPartByPartAndKeepWhatIsInThem) {
  constexpr int64_t kBytes = 64 << 20;
  auto block = Block::Allocate(kBytes);
  ASSERT_TRUE(block.ok());
  ASSERT_EQ(block->parts() * (2 << 20), kBytes);
  if (madvise(block->data(), 2 << 20, 23) != 0) GTEST_SKIP() << "this Linux takes no such advice";
  std::memset(block->data() + (10 << 20), 7, 1 << 20);
  const int64_t all = kBytes / sysconf(_SC_PAGESIZE);
  EXPECT_LT(PagesThere(*block), all);

  std::vector<std::thread> threads;
  for (int first = 0; first < 2; ++first) {
    threads.emplace_back([&block, first] {
      for (int64_t part = first; part < block->parts(); part += 2) block->TakePages(part);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(PagesThere(*block), all);
  EXPECT_EQ(std::count(block->data(), block->data() + kBytes, 7), 1 << 20);
}

TEST(Memory, PagesAreTakenMeanwhileByAThreadThatIsHelped) {
  constexpr int64_t kBytes = 64 << 20;
  auto block = Block::Allocate(kBytes);
  ASSERT_TRUE(block.ok());
  if (madvise(block->data(), 2 << 20, 23) != 0) GTEST_SKIP() << "this Linux takes no such advice";
  auto taken = std::make_shared<TakenBlock>(*std::move(block));
  std::memset(taken->data() + (10 << 20), 7, 1 << 20);
  TakenBlock::TakeMeanwhile(taken);
  std::memset(taken->data() + (50 << 20), 7, 1 << 20);
  taken->Take();
  for (int i = 0; taken.use_count() > 1 && i < 10000; ++i) usleep(1000);  // its last part
  EXPECT_EQ(taken.use_count(), 1);
  EXPECT_EQ(PagesThere(*taken), kBytes / sysconf(_SC_PAGESIZE));
  EXPECT_EQ(std::count(taken->data(), taken->data() + kBytes, 7), 2 << 20);
}

TEST(Memory, WhatIsTakenMeanwhileMayGo) {
  for (int i = 0; i < 50; ++i) {
    auto block = Block::Allocate(16 << 20);
    ASSERT_TRUE(block.ok());
    auto taken = std::make_shared<TakenBlock>(*std::move(block));
    TakenBlock::TakeMeanwhile(taken);
    const std::weak_ptr<TakenBlock> left = taken;
    taken = nullptr;
    for (int wait = 0; !left.expired() && wait < 10000; ++wait) usleep(1000);
    EXPECT_TRUE(left.expired());
  }
}

TEST(Memory, SmallBlocksHaveNoParts) {
  auto block = Block::Allocate((2 << 20) - 1);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(block->parts(), 0);
  EXPECT_EQ(Block::Allocate(0)->parts(), 0);
}

}  // namespace
}  // namespace kiln::runtime
