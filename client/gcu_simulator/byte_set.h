// A set of bytes of a memory: which are defined, or taken by unfinished copies.
#pragma once

#include <cstdint>

#include "client/gcu_simulator/zeroed_array.h"

namespace kiln::gcu_simulator {

class ByteSet {
 public:
  explicit ByteSet(uint64_t bytes) : words_((bytes + 63) / 64) {}

  void Add(uint64_t begin, uint64_t size) {
    ForEachWord(begin, size, [](uint64_t& w, uint64_t m) { w |= m; });
  }
  void Remove(uint64_t begin, uint64_t size) {
    ForEachWord(begin, size, [](uint64_t& w, uint64_t m) { w &= ~m; });
  }
  bool HasAll(uint64_t begin, uint64_t size) const {
    bool all = true;
    ForEachWord(begin, size, [&](uint64_t w, uint64_t m) { all &= (w & m) == m; });
    return all;
  }
  bool HasAny(uint64_t begin, uint64_t size) const {
    bool any = false;
    ForEachWord(begin, size, [&](uint64_t w, uint64_t m) { any |= (w & m) != 0; });
    return any;
  }
  bool Has(uint64_t byte) const { return (words_[byte / 64] >> (byte % 64) & 1) != 0; }

 private:
  template <typename Words, typename Visit>
  static void Each(Words& words, uint64_t begin, uint64_t size, const Visit& visit) {
    const uint64_t end = begin + size;
    while (begin < end) {
      const uint64_t at = begin % 64, count = end - begin < 64 - at ? end - begin : 64 - at;
      const uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << at;
      visit(words[begin / 64], mask);
      begin += count;
    }
  }
  template <typename Visit>
  void ForEachWord(uint64_t begin, uint64_t size, const Visit& visit) {
    Each(words_, begin, size, visit);
  }
  template <typename Visit>
  void ForEachWord(uint64_t begin, uint64_t size, const Visit& visit) const {
    Each(words_, begin, size, visit);
  }

  ZeroedArray<uint64_t> words_;
};

}  // namespace kiln::gcu_simulator
