// Aligned memory for workspaces and outputs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"

namespace kiln::runtime {

inline constexpr size_t kBlockAlignment = 64;  // bytes

// Owns one block; movable. Large blocks ask for huge pages.
class Block {
 public:
  Block() = default;
  ~Block();
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;

  // RESOURCE_EXHAUSTED where the system refuses. A size of 0 gives a valid pointer.
  static absl::StatusOr<Block> Allocate(int64_t size_bytes);

  // Has the system give the pages of a part now, not when each is first written to: what is in the
  // part stays. Parts may be taken by several threads at once. REQUIRES: 0 <= part < parts().
  void TakePages(int64_t part) const;
  // The same by writes that change nothing: slower, but it holds up nobody who maps memory.
  void TouchPages(int64_t part) const;
  int64_t parts() const;  // of the size of a huge page; 0: pages are given as they are needed

  char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

 private:
  char* data_ = nullptr;
  int64_t capacity_ = 0;
};

// A block whose pages several threads ask the system for, before they are needed: each part is
// asked for once, and may be in use by then.
class TakenBlock {
 public:
  explicit TakenBlock(Block block) : block_(std::move(block)) {}

  // Asks for parts until there is none that nobody has begun with. Thread-safe.
  void Take();
  // Has a thread of its own do that, which ends early where nobody else has the block any more.
  // Where there is no such thread, as in a process that was forked since, the pages just come
  // later.
  static void TakeMeanwhile(std::shared_ptr<TakenBlock> block);

  char* data() const { return block_.data(); }
  int64_t capacity() const { return block_.capacity(); }

 private:
  std::optional<int64_t> Next();  // a part that nobody has begun with

  Block block_;
  std::atomic<int64_t> next_{0};
};

// Memory that several outputs may view; freed with its last reference.
struct SharedMemory {
  explicit SharedMemory(void (*free)(SharedMemory*)) : destroy(free) {}
  std::atomic<int> references{1};
  void* data = nullptr;
  void (*const destroy)(SharedMemory*);  // frees the memory and this
};
void Unreference(SharedMemory* memory);  // null is ignored

// Of this machine. Large blocks are kept for the next run of the process (a few, up to 256 MiB
// together): fresh pages cost more than most kernels do.
absl::StatusOr<SharedMemory*> AllocateShared(int64_t size_bytes);

}  // namespace kiln::runtime
