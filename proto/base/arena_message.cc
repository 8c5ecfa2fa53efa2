#include "proto/base/arena_message.h"

#include <sys/mman.h>

#include <new>

namespace kiln {
namespace {

constexpr size_t kFirstBlockBytes = 4 << 10;
constexpr size_t kMostBlockBytes = 4 << 20;
// Smaller ones are the heap's: a message of a few nodes costs no system call.
constexpr size_t kMappedBlockBytes = 256 << 10;

void* AllocateBlock(size_t size_bytes) {
  if (size_bytes < kMappedBlockBytes) return ::operator new(size_bytes);
  void* block =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  return block;
}

void FreeBlock(void* block, size_t size_bytes) {
  if (size_bytes < kMappedBlockBytes) return ::operator delete(block, size_bytes);
  munmap(block, size_bytes);
}

}  // namespace

std::shared_ptr<google::protobuf::Arena> MakeMessageArena() {
  google::protobuf::ArenaOptions options;
  options.start_block_size = kFirstBlockBytes;
  options.max_block_size = kMostBlockBytes;
  options.block_alloc = &AllocateBlock;
  options.block_dealloc = &FreeBlock;
  return std::make_shared<google::protobuf::Arena>(options);
}

}  // namespace kiln
