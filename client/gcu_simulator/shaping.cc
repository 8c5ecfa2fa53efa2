#include "client/gcu_simulator/shaping.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "client/gcu_simulator/element.h"

namespace kiln::gcu_simulator {
namespace {

constexpr size_t kRun = 8;  // numbers that are added from first to last

bool IsReduction(Code code) {
  return code >= Code::kReduceSum && code <= Code::kReduceProduct;
}

// What a reduction's result starts from, and how it goes on.
template <typename T>
T Identity(Code code, T least, T greatest) {
  switch (code) {
    case Code::kReduceSum:
      return 0;
    case Code::kReduceProduct:
      return 1;
    case Code::kReduceMaximum:
      return least;
    default:
      return greatest;
  }
}

template <typename T>
T Combine(Code code, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool is_sum = code == Code::kReduceSum || code == Code::kReduceProduct;
    if (!is_sum && (std::isnan(a) || std::isnan(b))) return std::numeric_limits<T>::quiet_NaN();
  }
  using Wrapping = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;
  switch (code) {
    case Code::kReduceSum:
      return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    case Code::kReduceProduct:
      return static_cast<T>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    case Code::kReduceMaximum:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}

// REQUIRES: n > 0.
template <typename T>
T Reduce(Code code, const T* values, size_t n) {
  if (n > kRun) {
    const size_t half = (n / 2 + kRun - 1) / kRun * kRun;
    return Combine(code, Reduce(code, values, half), Reduce(code, values + half, n - half));
  }
  T result = values[0];
  for (size_t i = 1; i < n; ++i) result = Combine(code, result, values[i]);
  return result;
}

// One dimension's worth of a tile: its elements from `data` on.
Tile Along(const Tile& tile, int axis) {
  Tile line = tile;
  line.rank = 1;
  line.extents = {tile.extents[axis], 1, 1, 1};
  line.strides = {tile.strides[axis], 0, 0, 0};
  return line;
}

// The tile with the dimensions that `keep` has not at extent 1.
template <typename Keep>
Tile Only(const Tile& tile, const Keep& keep) {
  Tile part = tile;
  for (int d = 0; d < tile.rank; ++d) {
    if (!keep(d)) part.extents[d] = 1;
  }
  return part;
}

std::optional<Fault> RunFill(Core& core, const Instruction& instruction, const Tile& out) {
  uint8_t* data = nullptr;
  if (auto fault = WriteL1(core, out, data)) return fault;
  const int64_t bits = core.scalars[instruction.registers[1]];
  const int size = ElementBytes(out.type);
  ForEachElement(out, [&](int64_t at) { std::memcpy(data + at * size, &bits, size); });
  return std::nullopt;
}

std::optional<Fault> RunIota(Core& core, const Instruction& instruction, const Tile& out) {
  if (out.type != ElementType::kI32 && out.type != ElementType::kF32)
    return Misfit("iota is of i32 or f32");
  const int axis = instruction.registers[1];
  if (axis >= out.rank) return Misfit("the tile has no such axis");
  uint8_t* data = nullptr;
  if (auto fault = WriteL1(core, out, data)) return fault;
  const int64_t base = core.scalars[instruction.registers[2]];
  const Tile others = Only(out, [&](int d) { return d != axis; });
  for (int64_t i = 0; i < out.extents[axis]; ++i) {
    const int64_t value = base + i;
    const float number = static_cast<float>(value);
    ForEachElement(others, [&](int64_t at) {
      uint8_t* to = data + (at + i * out.strides[axis]) * 4;
      out.type == ElementType::kI32 ? StoreIntegers(out.type, &value, 1, 1, to)
                                    : StoreFloats(out.type, &number, 1, 1, to);
    });
  }
  return std::nullopt;
}

// The values of `tile` at `data`, in row-major order.
template <typename T>
void Collect(const Tile& tile, const uint8_t* data, std::vector<T>& values) {
  const Walk walk = JointWalk({&tile});
  const int last = walk.rank - 1;
  const int64_t n = walk.extents[last];
  values.clear();
  if (tile.Elements() == 0) return;
  ForEachRow(walk, [&](const int64_t* offset) {
    const uint8_t* from = data + *offset * ElementBytes(tile.type);
    values.resize(values.size() + n);
    T* to = values.data() + values.size() - n;
    if constexpr (std::is_floating_point_v<T>) {
      LoadFloats(tile.type, from, walk.strides[0][last], n, to);
    } else {
      LoadIntegers(tile.type, from, walk.strides[0][last], n, to);
    }
  });
}

template <typename T>
void StoreOne(ElementType type, T value, uint8_t* to) {
  if constexpr (std::is_floating_point_v<T>) {
    StoreFloats(type, &value, 1, 1, to);
  } else {
    StoreIntegers(type, &value, 1, 1, to);
  }
}

template <typename T>
void ReduceInto(Code code, T identity, const Tile& out, uint8_t* target, const Tile& in,
                const uint8_t* source) {
  const auto is_kept = [&](int d) { return out.extents[d] == in.extents[d]; };
  const Tile kept_in = Only(in, is_kept), reduced = Only(in, [&](int d) { return !is_kept(d); });
  const Walk walk = JointWalk({&out, &kept_in});
  const int last = walk.rank - 1;
  std::vector<T> values;
  ForEachRow(walk, [&](const int64_t* offsets) {
    for (int64_t i = 0; i < walk.extents[last]; ++i) {
      const int64_t to = offsets[0] + i * walk.strides[0][last];
      const int64_t from = offsets[1] + i * walk.strides[1][last];
      Collect(reduced, source + from * ElementBytes(in.type), values);
      const T value = values.empty() ? identity : Reduce(code, values.data(), values.size());
      StoreOne(out.type, value, target + to * ElementBytes(out.type));
    }
  });
}

std::optional<Fault> RunReduction(Core& core, Code code, const Tile& out, const Tile& in) {
  if (in.rank != out.rank || in.type != out.type)
    return Misfit("the result has another rank or type");
  for (int d = 0; d < in.rank; ++d) {
    if (out.extents[d] != in.extents[d] && out.extents[d] != 1) {
      return Misfit("the result's dimension " + std::to_string(d) + " is neither kept nor 1");
    }
  }
  if (MayOverlap(in, out)) return Misfit("the result overlaps the operand");
  const uint8_t* source = nullptr;
  if (auto fault = ReadL1(core, in, source)) return fault;
  uint8_t* target = nullptr;
  if (auto fault = WriteL1(core, out, target)) return fault;
  if (IsFloating(in.type)) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    ReduceInto(code, Identity(code, -kInfinity, kInfinity), out, target, in, source);
  } else {
    ReduceInto(code, Identity(code, LeastOf(in.type), GreatestOf(in.type)), out, target, in,
               source);
  }
  return std::nullopt;
}

template <typename T>
int64_t FirstExtreme(bool is_maximum, const std::vector<T>& values) {
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(values[best])) break;
      if (std::isnan(values[i])) best = i;
    }
    if (is_maximum ? values[i] > values[best] : values[i] < values[best]) best = i;
  }
  return static_cast<int64_t>(best);
}

// v.argmax, v.argmin and v.cumsum: each line along the axis by itself.
std::optional<Fault> RunLines(Core& core, const Instruction& instruction, const Tile& out,
                              const Tile& in) {
  const int axis = instruction.registers[2];
  const bool sums = instruction.code == Code::kCumulativeSum;
  if (in.rank != out.rank || axis >= in.rank) return Misfit("the tiles have no such axis");
  Tile expected = in;
  if (!sums) expected.extents[axis] = 1;
  if (!out.SameExtents(expected)) return Misfit("the result has other extents");
  if (sums &&
      (in.type != out.type || (in.type != ElementType::kF32 && in.type != ElementType::kI32))) {
    return Misfit("sums along an axis are of f32 or i32");
  }
  if (!sums && (out.type != ElementType::kI32 || in.extents[axis] == 0)) {
    return Misfit("an index is an i32 of a dimension that has elements");
  }
  if (MayOverlap(in, out)) return Misfit("the result overlaps the operand");
  const uint8_t* source = nullptr;
  if (auto fault = ReadL1(core, in, source)) return fault;
  uint8_t* target = nullptr;
  if (auto fault = WriteL1(core, out, target)) return fault;
  const auto is_other = [&](int d) { return d != axis; };
  const Tile outs = Only(out, is_other), ins = Only(in, is_other), line = Along(in, axis);
  const Walk walk = JointWalk({&outs, &ins});
  const int last = walk.rank - 1;
  std::vector<float> floats;
  std::vector<int64_t> integers;
  ForEachRow(walk, [&](const int64_t* offsets) {
    for (int64_t i = 0; i < walk.extents[last]; ++i) {
      uint8_t* to = target + (offsets[0] + i * walk.strides[0][last]) * ElementBytes(out.type);
      const uint8_t* from =
          source + (offsets[1] + i * walk.strides[1][last]) * ElementBytes(in.type);
      const bool is_floating = IsFloating(in.type);
      is_floating ? Collect(line, from, floats) : Collect(line, from, integers);
      if (!sums) {
        const bool is_maximum = instruction.code == Code::kArgMaximum;
        StoreOne(
            out.type,
            is_floating ? FirstExtreme(is_maximum, floats) : FirstExtreme(is_maximum, integers),
            to);
        continue;
      }
      for (size_t k = 1; k < floats.size() && is_floating; ++k) floats[k] += floats[k - 1];
      for (size_t k = 1; k < integers.size() && !is_floating; ++k) integers[k] += integers[k - 1];
      is_floating
          ? StoreFloats(out.type, floats.data(), out.strides[axis], floats.size(), to)
          : StoreIntegers(out.type, integers.data(), out.strides[axis], integers.size(), to);
    }
  });
  return std::nullopt;
}

}  // namespace

bool IsShaping(Code code) {
  return code >= Code::kFill && code <= Code::kCumulativeSum;
}

std::optional<Fault> RunShaping(Core& core, const Instruction& instruction, const Tiles& tiles) {
  if (instruction.code == Code::kFill) return RunFill(core, instruction, *tiles[0]);
  if (instruction.code == Code::kIota) return RunIota(core, instruction, *tiles[0]);
  if (IsReduction(instruction.code))
    return RunReduction(core, instruction.code, *tiles[0], *tiles[1]);
  return RunLines(core, instruction, *tiles[0], *tiles[1]);
}

}  // namespace kiln::gcu_simulator
