#include "client/runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kSmallPage = 4096;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which not all headers have
constexpr int64_t kMaxBlock = int64_t{1} << 46;
constexpr int64_t kSmallestKept = 1 << 20;
constexpr int64_t kMostKept = 256 << 20;

struct KeptBlocks {
  absl::Mutex mutex;
  std::vector<Block> blocks ABSL_GUARDED_BY(mutex);
  int64_t bytes ABSL_GUARDED_BY(mutex) = 0;
};

KeptBlocks& Kept() {
  static auto* kept = new KeptBlocks;
  return *kept;
}

// A kept block of at least `size` bytes and not much more; an empty one where there is none.
Block TakeKept(int64_t size) {
  if (size < kSmallestKept) return {};
  KeptBlocks& kept = Kept();
  absl::MutexLock lock(&kept.mutex);
  for (Block& block : kept.blocks) {
    if (block.capacity() < size || block.capacity() - size > size / 4) continue;
    kept.bytes -= block.capacity();
    std::swap(block, kept.blocks.back());
    Block taken = std::move(kept.blocks.back());
    kept.blocks.pop_back();
    return taken;
  }
  return {};
}

void Keep(Block block) {
  if (block.capacity() < kSmallestKept || block.capacity() > kMostKept) return;
  std::vector<Block> dropped;  // freed outside of the lock
  KeptBlocks& kept = Kept();
  absl::MutexLock lock(&kept.mutex);
  while (kept.bytes + block.capacity() > kMostKept) {
    kept.bytes -= kept.blocks.front().capacity();
    dropped.push_back(std::move(kept.blocks.front()));
    kept.blocks.erase(kept.blocks.begin());
  }
  kept.bytes += block.capacity();
  kept.blocks.push_back(std::move(block));
}

struct SharedBlock : SharedMemory {
  SharedBlock()
      : SharedMemory([](SharedMemory* memory) {
          auto* shared = static_cast<SharedBlock*>(memory);
          Keep(std::move(shared->block));
          delete shared;
        }) {}
  Block block;
};

}  // namespace

Block::~Block() {
  std::free(data_);
}

Block::Block(Block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

absl::StatusOr<Block> Block::Allocate(int64_t size_bytes) {
  if (size_bytes < 0 || size_bytes > kMaxBlock) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", size_bytes, " bytes"));
  }
  int64_t alignment = size_bytes >= kHugePage ? kHugePage : kBlockAlignment;
  int64_t rounded = std::max<int64_t>(alignment, (size_bytes + alignment - 1) & -alignment);
  Block block;
  block.data_ = static_cast<char*>(std::aligned_alloc(alignment, rounded));
  if (block.data_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: ", size_bytes, " bytes"));
  }
  block.capacity_ = rounded;
  // Advice only: a system without huge pages answers with an error that changes nothing.
  if (alignment == kHugePage) madvise(block.data_, rounded, MADV_HUGEPAGE);
  return block;
}

int64_t Block::parts() const {
  return reinterpret_cast<uintptr_t>(data_) % kHugePage == 0 ? capacity_ / kHugePage : 0;
}

void Block::TakePages(int64_t part) const {
  // Advice only, too: Linux before 5.14 does not know it.
  madvise(data_ + part * kHugePage, kHugePage, kPopulateWrite);
}

void Block::TouchPages(int64_t part) const {
  // One instruction that no write of another thread's is lost by. Advice would hold up whoever maps
  // memory meanwhile, all of the process: it locks the address space for as long as the pages take.
  char* const begin = data_ + part * kHugePage;
  for (int64_t at = 0; at < kHugePage; at += kSmallPage) {
    asm volatile("lock orb $0, %0" : "+m"(begin[at]));
  }
}

std::optional<int64_t> TakenBlock::Next() {
  const int64_t part = next_.fetch_add(1, std::memory_order_relaxed);
  return part < block_.parts() ? std::make_optional(part) : std::nullopt;
}

void TakenBlock::Take() {
  while (const std::optional<int64_t> part = Next()) block_.TakePages(*part);
}

void TakenBlock::TakeMeanwhile(std::shared_ptr<TakenBlock> block) {
  try {
    std::thread([block = std::move(block)] {
      while (block.use_count() > 1) {
        const std::optional<int64_t> part = block->Next();
        if (!part) return;
        block->block_.TouchPages(*part);
      }
    }).detach();
  } catch (const std::system_error&) {
    // The system gives no more threads.
  }
}

absl::StatusOr<SharedMemory*> AllocateShared(int64_t size_bytes) {
  Block block = TakeKept(size_bytes);
  if (block.data() == nullptr) {
    KILN_ASSIGN_OR_RETURN(block, Block::Allocate(size_bytes));
  }
  auto* shared = new SharedBlock;
  shared->data = block.data();
  shared->block = std::move(block);
  return shared;
}

void Unreference(SharedMemory* memory) {
  if (memory == nullptr || memory->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  memory->destroy(memory);
}

}  // namespace kiln::runtime
