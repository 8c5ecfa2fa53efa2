// Matrix instructions.
#include <algorithm>
#include <string>
#include <vector>

#include "client/gcu_simulator/arithmetic.h"
#include "client/gcu_simulator/core.h"
#include "client/gcu_simulator/element.h"

namespace kiln::gcu_simulator {
namespace {

constexpr int64_t kIssueCycles = 16, kSide = 16;
constexpr int64_t kRows = 4, kColumns = 16;  // of a block that stays in registers

// c[r][n] += sum over k of a[r][k] * b[k][n], in ascending k; each product is rounded before it is
// added. `b` has rows of `columns`, a multiple of kColumns.
template <typename T>
__attribute__((always_inline)) inline void AddProducts(const T* a, const T* b, T* c, int64_t rows,
                                                       int64_t depth, int64_t columns) {
  for (int64_t r = 0; r < rows; r += kRows) {
    const int64_t count = std::min(kRows, rows - r);
    for (int64_t n = 0; n < columns; n += kColumns) {
      T sums[kRows][kColumns] = {};
      const T* lines[kRows];
      for (int64_t i = 0; i < kRows; ++i) lines[i] = a + (r + std::min(i, count - 1)) * depth;
      for (int64_t i = 0; i < count; ++i) std::copy_n(c + (r + i) * columns + n, kColumns, sums[i]);
      for (int64_t k = 0; k < depth; ++k) {
        const T* line = b + k * columns + n;
        for (int64_t i = 0; i < kRows; ++i) {
          const T factor = lines[i][k];
          for (int64_t j = 0; j < kColumns; ++j) sums[i][j] += factor * line[j];
        }
      }
      for (int64_t i = 0; i < count; ++i) std::copy_n(sums[i], kColumns, c + (r + i) * columns + n);
    }
  }
}

__attribute__((target("avx2"))) void AddFloatsWide(const float* a, const float* b, float* c,
                                                   int64_t rows, int64_t depth, int64_t columns) {
  AddProducts(a, b, c, rows, depth, columns);
}

void AddFloats(const float* a, const float* b, float* c, int64_t rows, int64_t depth,
               int64_t columns) {
  static const bool is_wide = __builtin_cpu_supports("avx2") != 0;
  is_wide ? AddFloatsWide(a, b, c, rows, depth, columns)
          : AddProducts(a, b, c, rows, depth, columns);
}

// Sums wrap in 32 bits.
void AddIntegers(const uint32_t* a, const uint32_t* b, uint32_t* c, int64_t rows, int64_t depth,
                 int64_t columns) {
  AddProducts(a, b, c, rows, depth, columns);
}

// Rows along the last dimension, whose extent this is: as many as all others have elements.
int64_t RowsOf(const Tile& tile, int64_t extent) {
  return tile.Elements() / std::max<int64_t>(extent, 1);
}

// Calls visit(byte offset) for each row along the last dimension, in row-major order.
template <typename Visit>
void ForEachLine(const Tile& tile, const Visit& visit) {
  Tile starts = tile;
  starts.extents[tile.rank - 1] = 1;
  if (tile.Elements() == 0) return;
  ForEachElement(starts, [&](int64_t offset) { visit(offset * ElementBytes(tile.type)); });
}

// Elements in row-major order, rows of `columns`; what is past the tile's is 0.
template <typename T>
void Gather(const Tile& tile, const uint8_t* data, int64_t columns, std::vector<T>& out) {
  const int64_t n = tile.extents[tile.rank - 1], stride = tile.strides[tile.rank - 1];
  out.assign(RowsOf(tile, n) * columns, 0);
  std::vector<int64_t> integers(n);
  T* to = out.data();
  ForEachLine(tile, [&](int64_t offset) {
    if constexpr (std::is_floating_point_v<T>) {
      LoadFloats(tile.type, data + offset, stride, n, to);
    } else {
      LoadIntegers(tile.type, data + offset, stride, n, integers.data());
      std::copy_n(integers.data(), n, to);
    }
    to += columns;
  });
}

template <typename T>
void Spread(const Tile& tile, const std::vector<T>& values, int64_t columns, uint8_t* data) {
  const int64_t n = tile.extents[tile.rank - 1], stride = tile.strides[tile.rank - 1];
  std::vector<int64_t> integers(n);
  const T* from = values.data();
  ForEachLine(tile, [&](int64_t offset) {
    if constexpr (std::is_floating_point_v<T>) {
      StoreFloats(tile.type, from, stride, n, data + offset);
    } else {
      std::copy_n(from, n, integers.data());
      StoreIntegers(tile.type, integers.data(), stride, n, data + offset);
    }
    from += columns;
  });
}

template <typename T, typename Add>
void Multiply(const Tile& c, uint8_t* c_data, bool adds, const Tile& a, const uint8_t* a_data,
              const Tile& b, const uint8_t* b_data, const Add& add) {
  const int64_t depth = b.extents[0], n = b.extents[1], rows = RowsOf(a, depth);
  const int64_t columns = CeilDivide(n, kColumns) * kColumns;
  static thread_local std::vector<T> left, right, sums;
  Gather(b, b_data, columns, right);
  if (adds) {
    Gather(c, c_data, columns, sums);
  } else {
    sums.assign(RowsOf(c, n) * columns, 0);
  }
  if (depth > 0) {
    Gather(a, a_data, depth, left);
    add(left.data(), right.data(), sums.data(), rows, depth, columns);
  }
  Spread(c, sums, columns, c_data);
}

std::optional<Fault> CheckShapes(const Tile& c, const Tile& a, const Tile& b) {
  const bool fits =
      b.rank == 2 && a.rank == c.rank && (a.rank == 2 || a.rank == 3) &&
      a.extents[a.rank - 1] == b.extents[0] && c.extents[c.rank - 1] == b.extents[1] &&
      std::equal(a.extents.begin(), a.extents.begin() + a.rank - 1, c.extents.begin());
  if (!fits) return Misfit("the extents of a product do not fit");
  const bool is_integral = a.type == ElementType::kI8;
  const bool has_types = a.type == b.type && (is_integral || IsFloating(a.type)) &&
                         c.type == (is_integral ? ElementType::kI32 : ElementType::kF32);
  if (!has_types) return Misfit("a product has no such types");
  return std::nullopt;
}

int MacsOf(const Profile& profile, ElementType type) {
  if (type == ElementType::kF32) return profile.f32_macs;
  return type == ElementType::kI8 ? profile.i8_macs : profile.f16_macs;
}

}  // namespace

std::optional<Fault> RunMatrix(Core& core, const Profile& profile, const Instruction& instruction,
                               const Tiles& tiles, int64_t& cycles, int64_t& macs) {
  const Tile &c = *tiles[0], &a = *tiles[1], &b = *tiles[2];
  if (auto fault = CheckShapes(c, a, b)) return fault;
  if (MayOverlap(c, a) || MayOverlap(c, b)) {
    return Misfit("the result overlaps an operand");
  }
  const uint8_t *a_data = nullptr, *b_data = nullptr, *old = nullptr;
  if (auto fault = ReadL1(core, a, a_data)) return fault;
  if (auto fault = ReadL1(core, b, b_data)) return fault;
  const bool adds = instruction.code == Code::kMatrixMultiplyAdd;
  if (adds) {
    if (auto fault = ReadL1(core, c, old)) return fault;
  }
  uint8_t* c_data = nullptr;
  if (auto fault = WriteL1(core, c, c_data)) return fault;
  if (a.type == ElementType::kI8) {
    Multiply<uint32_t>(c, c_data, adds, a, a_data, b, b_data, AddIntegers);
  } else {
    Multiply<float>(c, c_data, adds, a, a_data, b, b_data, AddFloats);
  }
  const int64_t depth = b.extents[0], n = b.extents[1], rows = RowsOf(c, n);
  cycles = kIssueCycles +
           rows * CeilDivide(depth, MacsOf(profile, a.type) / kSide) * CeilDivide(n, kSide);
  macs = rows * depth * n;
  return std::nullopt;
}

}  // namespace kiln::gcu_simulator
