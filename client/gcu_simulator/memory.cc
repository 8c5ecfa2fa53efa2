#include "client/gcu_simulator/memory.h"

#include <algorithm>
#include <new>

namespace kiln::gcu_simulator {
namespace {

constexpr uint64_t kUnit = 512;

uint64_t InUnits(uint64_t bytes) {
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace

Memory::Memory(std::string name, uint64_t begin, uint64_t bytes)
    : name_(std::move(name)), begin_(begin), end_(begin + bytes) {}

uint64_t Memory::Allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > end_ - begin_) return 0;
  const uint64_t size = InUnits(bytes);
  uint64_t at = begin_;
  for (const auto& [address, block] : blocks_) {
    if (address - at >= size) break;
    at = address + InUnits(block->size);
  }
  if (end_ - at < size) return 0;
  try {
    blocks_.emplace(at, std::make_unique<Block>(bytes));
  } catch (const std::bad_alloc&) {
    return 0;
  }
  used_ += size;
  peak_ = std::max(peak_, used_);
  return at;
}

bool Memory::Free(uint64_t address) {
  const auto it = blocks_.find(address);
  if (it == blocks_.end()) return false;
  used_ -= InUnits(it->second->size);
  blocks_.erase(it);
  return true;
}

std::optional<Fault> Memory::Find(uint64_t address, uint64_t bytes, Place& place) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) {
    return Fault{FaultCode::kBounds, name_ + " has no allocation at " + std::to_string(address)};
  }
  --it;
  const uint64_t offset = address - it->first, size = it->second->size;
  if (offset > size || bytes > size - offset) {
    return Fault{FaultCode::kBounds,
                 std::to_string(bytes) + " bytes of " + name_ + " at " + std::to_string(address) +
                     " are not in one allocation; the nearest has " + std::to_string(size) +
                     " bytes at " + std::to_string(it->first)};
  }
  place = {it->second.get(), offset};
  return std::nullopt;
}

}  // namespace kiln::gcu_simulator
