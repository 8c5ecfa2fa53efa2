// What a tile register describes, and the runs of memory that its elements make.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "client/gcu_simulator/instruction_table.h"
#include "client/gcu_simulator/machine.h"

namespace kiln::gcu_simulator {

inline constexpr int64_t kMostElements = int64_t{1} << 24;  // of a tile that an instruction takes

struct Tile {
  Space space = Space::kL1;
  ElementType type{};
  int rank = 0;
  uint64_t address = 0;
  std::array<int64_t, 4> extents{1, 1, 1, 1};
  std::array<int64_t, 4> strides{};  // elements

  int64_t Elements() const;  // kMostElements + 1 where there are more than that
  bool SameExtents(const Tile& other) const;
  // The first byte and past the last byte of all elements; both the address where there is none.
  // False where no memory has such addresses, or the first byte is no multiple of the type's size.
  bool Range(uint64_t& begin, uint64_t& end) const;
  bool SameDescription(const Tile& other) const;
};

// Whether the smallest ranges of memory that have all their elements overlap.
bool MayOverlap(const Tile& a, const Tile& b);

// Whether some element lies where another does: found by the dimensions in the order of their
// strides, each of which must step over all that smaller ones reach. Dimensions that interleave
// without meeting count, too. REQUIRES: Range().
bool HasTwice(const Tile& tile);

// Dimensions that one walk over several tiles has: neighbours that every tile has in sequence are
// one.
struct Walk {
  int rank = 0;
  std::array<int64_t, 4> extents{};
  std::vector<std::array<int64_t, 4>> strides;  // by tile, in elements
};
// REQUIRES: equal extents.
Walk JointWalk(std::initializer_list<const Tile*> tiles);

// Calls visit(offset in elements of each tile as a pointer) for each row along the last dimension.
template <typename Visit>
void ForEachRow(const Walk& walk, const Visit& visit) {
  std::vector<int64_t> offsets(walk.strides.size(), 0);
  std::array<int64_t, 4> at{};
  for (int d = 0; d < walk.rank; ++d) {
    if (walk.extents[d] == 0) return;
  }
  while (true) {
    visit(offsets.data());
    int d = walk.rank - 2;
    for (; d >= 0; --d) {
      ++at[d];
      for (size_t t = 0; t < offsets.size(); ++t) offsets[t] += walk.strides[t][d];
      if (at[d] < walk.extents[d]) break;
      for (size_t t = 0; t < offsets.size(); ++t) offsets[t] -= walk.strides[t][d] * at[d];
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

// Calls visit(offset in elements) for each element, in row-major order.
template <typename Visit>
void ForEachElement(const Tile& tile, const Visit& visit) {
  const Walk walk = JointWalk({&tile});
  const int last = walk.rank - 1;
  ForEachRow(walk, [&](const int64_t* offset) {
    for (int64_t i = 0; i < walk.extents[last]; ++i) visit(*offset + i * walk.strides[0][last]);
  });
}

struct Run {
  uint64_t begin = 0, bytes = 0;  // `begin` is an address
};
// The tile's contiguous pieces of memory, in the order of its elements; of an innermost stride
// other than 1, one an element (one in all, where it is 0).
template <typename Visit>  // void(Run)
void ForEachRun(const Tile& tile, const Visit& visit) {
  const Walk walk = JointWalk({&tile});
  const int64_t size = ElementBytes(tile.type);
  const int last = walk.rank - 1;
  const int64_t n = walk.extents[last], stride = walk.strides[0][last];
  ForEachRow(walk, [&](const int64_t* offset) {
    const uint64_t begin = tile.address + *offset * size;
    if (stride == 1 || n == 1) {
      visit(Run{begin, static_cast<uint64_t>(n * size)});
    } else if (stride == 0) {
      visit(Run{begin, static_cast<uint64_t>(size)});
    } else {
      for (int64_t i = 0; i < n; ++i) {
        visit(Run{begin + i * stride * size, static_cast<uint64_t>(size)});
      }
    }
  });
}

// 64-byte lines that a copy takes on this side, and 512-byte vectors that an instruction takes.
int64_t CountLines(const Tile& tile);
int64_t CountVectors(const Tile& tile);

}  // namespace kiln::gcu_simulator
