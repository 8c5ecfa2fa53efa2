#include "client/gcu_simulator/tile.h"

#include <algorithm>
#include <cstdlib>

#include "client/gcu_simulator/arithmetic.h"

namespace kiln::gcu_simulator {
namespace {

constexpr int64_t kLine = 64;

}  // namespace

int64_t Tile::Elements() const {
  int64_t n = 1;
  for (int d = 0; d < rank; ++d) {
    if (extents[d] == 0) return 0;
    if (n <= kMostElements) n = extents[d] > kMostElements / n ? kMostElements + 1 : n * extents[d];
  }
  return n;
}

bool Tile::SameExtents(const Tile& other) const {
  return rank == other.rank &&
         std::equal(extents.begin(), extents.begin() + rank, other.extents.begin());
}

bool Tile::SameDescription(const Tile& other) const {
  if (space != other.space || address != other.address || type != other.type) return false;
  if (!SameExtents(other)) return false;
  for (int d = 0; d < rank; ++d) {
    if (extents[d] > 1 && strides[d] != other.strides[d]) return false;
  }
  return true;
}

bool Tile::Range(uint64_t& begin, uint64_t& end) const {
  constexpr int64_t kFar = int64_t{1} << 60;
  const int64_t size = ElementBytes(type);
  begin = end = address;
  if (address >= kFar || address % size != 0) return false;
  if (Elements() == 0) return true;
  int64_t low = 0, high = 0;  // bytes
  for (int d = 0; d < rank; ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(extents[d] - 1, strides[d], &reach)) return false;
    if (std::abs(reach) >= kFar / 64) return false;
    (reach < 0 ? low : high) += reach * size;
  }
  if (static_cast<int64_t>(address) + low < 0) return false;
  begin = address + low;
  end = address + high + size;
  return true;
}

bool MayOverlap(const Tile& a, const Tile& b) {
  uint64_t a_begin = 0, a_end = 0, b_begin = 0, b_end = 0;
  if (a.space != b.space || !a.Range(a_begin, a_end) || !b.Range(b_begin, b_end)) return false;
  return a_begin < b_end && b_begin < a_end;
}

bool HasTwice(const Tile& tile) {
  std::array<int, 4> order{0, 1, 2, 3};
  std::sort(order.begin(), order.begin() + tile.rank,
            [&](int a, int b) { return std::abs(tile.strides[a]) < std::abs(tile.strides[b]); });
  int64_t reach = 0;
  for (int i = 0; i < tile.rank; ++i) {
    const int64_t extent = tile.extents[order[i]], stride = std::abs(tile.strides[order[i]]);
    if (extent <= 1) continue;
    if (stride <= reach) return true;
    reach += (extent - 1) * stride;
  }
  return false;
}

Walk JointWalk(std::initializer_list<const Tile*> tiles) {
  const Tile& first = **tiles.begin();
  Walk walk;
  walk.strides.resize(tiles.size());
  const auto stride = [&](size_t t, int d) { return tiles.begin()[t]->strides[d]; };
  for (int d = 0; d < first.rank; ++d) {
    const int64_t n = first.extents[d];
    if (n == 1) continue;
    bool continues = walk.rank > 0;
    for (size_t t = 0; t < tiles.size() && continues; ++t) {
      continues = walk.strides[t][walk.rank - 1] == stride(t, d) * n;
    }
    if (!continues) ++walk.rank;
    int64_t& extent = walk.extents[walk.rank - 1];
    extent = continues ? extent * n : n;
    for (size_t t = 0; t < tiles.size(); ++t) walk.strides[t][walk.rank - 1] = stride(t, d);
  }
  if (walk.rank == 0) {
    walk.rank = 1;
    walk.extents[0] = 1;
    for (auto& strides : walk.strides) strides[0] = 1;
  }
  return walk;
}

int64_t CountLines(const Tile& tile) {
  int64_t lines = 0;
  ForEachRun(tile, [&](const Run& run) { lines += CeilDivide(run.bytes, kLine); });
  return lines;
}

int64_t CountVectors(const Tile& tile) {
  int64_t vectors = 0;
  ForEachRun(tile,
             [&](const Run& run) { vectors += CeilDivide(run.bytes, KILN_GCU_VECTOR_BYTES); });
  return vectors;
}

}  // namespace kiln::gcu_simulator
