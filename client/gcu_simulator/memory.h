// A memory that the runtime allocates from: L3 or L2.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "client/gcu_simulator/byte_set.h"
#include "client/gcu_simulator/fault.h"
#include "client/gcu_simulator/zeroed_array.h"

namespace kiln::gcu_simulator {

class Memory {
 public:
  // Addresses are [begin, begin + bytes), `begin` not 0.
  Memory(std::string name, uint64_t begin, uint64_t bytes);

  struct Block {
    explicit Block(uint64_t size) : size(size), data(size), defined(size) {}
    uint64_t size;
    ZeroedArray<uint8_t> data;
    ByteSet defined;
  };

  // In units of 512 bytes, the lowest place that is free. 0: there is none.
  uint64_t Allocate(uint64_t bytes);
  bool Free(uint64_t address);  // false: nothing was allocated there
  uint64_t used() const { return used_; }
  uint64_t peak() const { return peak_; }
  void ResetPeak() { peak_ = used_; }

  struct Place {
    Block* block = nullptr;
    uint64_t offset = 0;
    uint8_t* data() const { return block->data.data() + offset; }
  };
  // The allocation that has all those bytes; else a fault that says what lies near.
  std::optional<Fault> Find(uint64_t address, uint64_t bytes, Place& place) const;

 private:
  std::string name_;
  uint64_t begin_, end_;
  std::map<uint64_t, std::unique_ptr<Block>> blocks_;  // by first address
  uint64_t used_ = 0, peak_ = 0;
};

}  // namespace kiln::gcu_simulator
