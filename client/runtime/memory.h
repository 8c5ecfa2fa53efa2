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

  char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

 private:
  char* data_ = nullptr;
  int64_t capacity_ = 0;
};

// Memory that several outputs may view; freed with its last reference. Large blocks are kept for
// the next run of the process (a few, up to 256 MiB together): fresh pages cost more than most
// kernels do.
struct SharedBlock {
  std::atomic<int> references{1};
  Block block;
};
absl::StatusOr<SharedBlock*> AllocateShared(int64_t size_bytes);
void Unreference(SharedBlock* block);  // null is ignored

}  // namespace kiln::runtime
