// Aligned memory for workspaces and outputs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

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
  int64_t parts() const;  // of the size of a huge page; 0: pages are given as they are needed

  char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

 private:
  char* data_ = nullptr;
  int64_t capacity_ = 0;
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
