#include "client/gcu_simulator/copy.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace kiln::gcu_simulator {
namespace {

Fault Undefined() {
  return {FaultCode::kPoison, "a copy reads what was not written before"};
}

// The bytes of a tile, wherever it lies.
struct Side {
  uint8_t* data = nullptr;  // of the element at index 0
  ByteSet* defined = nullptr;
  uint64_t first = 0;  // what `defined` calls the byte at `address`
};

std::optional<Fault> FindSide(Core& core, const Memories& memories, const Tile& tile, Side& side) {
  uint64_t begin = 0, end = 0;
  tile.Range(begin, end);
  if (tile.space == Space::kL1) {
    if (end > core.l1.size()) {
      return Fault{FaultCode::kBounds, "a copy's tile at " + std::to_string(tile.address) +
                                           " is not inside of L1, which has " +
                                           std::to_string(core.l1.size()) + " bytes"};
    }
    side = {core.l1.data() + tile.address, &core.defined, tile.address};
    return std::nullopt;
  }
  if (begin == end) return std::nullopt;
  Memory::Place place;
  const Memory& memory = tile.space == Space::kL2 ? *memories.l2 : *memories.l3;
  if (auto fault = memory.Find(begin, end - begin, place)) return fault;
  const uint64_t low = tile.address - begin;
  side = {place.data() + low, &place.block->defined, place.offset + low};
  return std::nullopt;
}

bool IsDefined(const Tile& tile, const Side& side) {
  bool all = true;
  ForEachRun(tile, [&](const Run& run) {
    all &= side.defined->HasAll(run.begin - tile.address + side.first, run.bytes);
  });
  return all;
}

void Define(const Tile& tile, const Side& side) {
  ForEachRun(tile, [&](const Run& run) {
    side.defined->Add(run.begin - tile.address + side.first, run.bytes);
  });
}

void CopyRow(int size, int64_t n, const uint8_t* from, int64_t from_stride, uint8_t* to,
             int64_t to_stride) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, n * size);
    return;
  }
  const auto move = [&](auto element) {
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(&element, from + i * from_stride * size, sizeof element);
      std::memcpy(to + i * to_stride * size, &element, sizeof element);
    }
  };
  size == 4 ? move(uint32_t{}) : size == 2 ? move(uint16_t{}) : move(uint8_t{});
}

// REQUIRES: equal extents.
void CopyElements(const Tile& to, uint8_t* to_data, const Tile& from, const uint8_t* from_data) {
  const Walk walk = JointWalk({&to, &from});
  const int last = walk.rank - 1, size = ElementBytes(to.type);
  if (to.Elements() == 0) return;
  ForEachRow(walk, [&](const int64_t* offsets) {
    CopyRow(size, walk.extents[last], from_data + offsets[1] * size, walk.strides[1][last],
            to_data + offsets[0] * size, walk.strides[0][last]);
  });
}

// The part of D that reads inside of S, and where; empty where no element does.
void PlacePadded(const std::array<int64_t, 4>& low, Tile& to, uint8_t*& to_data, Tile& from,
                 const uint8_t*& from_data) {
  const int size = ElementBytes(to.type);
  for (int d = 0; d < to.rank; ++d) {
    const int64_t begin = std::clamp<int64_t>(low[d], 0, to.extents[d]);
    const int64_t end = std::clamp<int64_t>(low[d] + from.extents[d], begin, to.extents[d]);
    to_data += begin * to.strides[d] * size;
    if (end > begin) from_data += (begin - low[d]) * from.strides[d] * size;
    to.extents[d] = from.extents[d] = end - begin;
  }
}

std::optional<Fault> Pad(Core& core, const Instruction& instruction, const Tile& to,
                         const Side& to_side, const Tile& from, const Side& from_side) {
  std::array<int64_t, 4> low{};
  for (int d = 0; d < 4; ++d) {
    low[d] = core.scalars[instruction.registers[3 + d]];
    if (std::abs(low[d]) > kMostElements)
      return Misfit("padding of " + std::to_string(low[d]) + " elements");
  }
  const int64_t fill = core.scalars[instruction.registers[7]];
  const int size = ElementBytes(to.type);
  ForEachElement(to, [&](int64_t at) { std::memcpy(to_side.data + at * size, &fill, size); });
  Tile to_part = to, from_part = from;
  uint8_t* to_data = to_side.data;
  const uint8_t* from_data = from_side.data;
  PlacePadded(low, to_part, to_data, from_part, from_data);
  CopyElements(to_part, to_data, from_part, from_data);
  return std::nullopt;
}

// Row `i` of a gather's or scatter's side.
Tile RowOf(const Tile& tile, int64_t i = 0) {
  Tile row = tile;
  row.address += i * tile.strides[0] * ElementBytes(tile.type);
  row.extents[0] = 1;
  return row;
}

Side RowOf(const Tile& tile, const Side& side, int64_t i) {
  const int64_t bytes = i * tile.strides[0] * ElementBytes(tile.type);
  return {side.data + bytes, side.defined, side.first + bytes};
}

std::optional<Fault> MoveRows(bool gathers, const Tile& to, const Side& to_side, const Tile& from,
                              const Side& from_side, const Tile& index, const uint8_t* indices) {
  const Tile& indexed = gathers ? from : to;
  for (int64_t i = 0; i < index.extents[0]; ++i) {
    int32_t at = 0;
    std::memcpy(&at, indices + i * index.strides[0] * 4, sizeof at);
    if (at < 0 || at >= indexed.extents[0]) {
      return Fault{FaultCode::kIndex, "index " + std::to_string(at) + " at " + std::to_string(i) +
                                          " is outside of " + std::to_string(indexed.extents[0]) +
                                          " rows"};
    }
    const int64_t to_row = gathers ? i : at, from_row = gathers ? at : i;
    const Side source = RowOf(from, from_side, from_row), target = RowOf(to, to_side, to_row);
    if (!IsDefined(RowOf(from, from_row), source)) return Undefined();
    CopyElements(RowOf(to), target.data, RowOf(from), source.data);
    Define(RowOf(to, to_row), target);
  }
  return std::nullopt;
}

// `rows` times what the tile takes.
void Count(const Tile& tile, int64_t rows, PendingCopy& copy) {
  if (tile.space == Space::kL3) copy.l3_lines += rows * CountLines(tile);
  if (tile.space == Space::kL2) copy.l2_lines += rows * CountLines(tile);
}

void Take(Core& core, const PendingCopy& copy) {
  for (const Tile& tile : copy.read) {
    if (tile.space != Space::kL1) continue;
    ForEachRun(tile, [&](const Run& run) { core.being_read.Add(run.begin, run.bytes); });
  }
  for (const Tile& tile : copy.written) {
    if (tile.space != Space::kL1) continue;
    ForEachRun(tile, [&](const Run& run) { core.being_written.Add(run.begin, run.bytes); });
  }
}

std::optional<Fault> CheckShapes(Code code, const Tile& to, const Tile& from, const Tile* index) {
  if (to.type != from.type) return Misfit("a copy's tiles have different types");
  if (to.space == Space::kL3 && from.space == Space::kL3) return Misfit("a copy is from L3 to L3");
  if (to.rank != from.rank) return Misfit("a copy's tiles have different ranks");
  if (code == Code::kCopy && !to.SameExtents(from))
    return Misfit("a copy's tiles have different extents");
  if (index == nullptr) return std::nullopt;
  const Tile& listed = code == Code::kGather ? to : from;
  if (index->rank != 1 || index->type != ElementType::kI32 || index->space != Space::kL1) {
    return Misfit("indices are an i32 tile of rank 1 in L1");
  }
  if (to.rank == 0 || listed.extents[0] != index->extents[0])
    return Misfit("there is not one index a row");
  Tile to_row = RowOf(to), from_row = RowOf(from);
  return to_row.SameExtents(from_row) ? std::nullopt
                                      : std::optional(Misfit("the rows have different extents"));
}

}  // namespace

std::optional<Fault> RunCopy(Core& core, const Memories& memories, const Instruction& instruction,
                             const Tiles& tiles, PendingCopy& copy) {
  const Tile &to = *tiles[0], &from = *tiles[1];
  const Tile* index = tiles.size() > 2 ? tiles[2] : nullptr;
  if (auto fault = CheckShapes(instruction.code, to, from, index)) return fault;
  Side to_side, from_side;
  if (auto fault = FindSide(core, memories, to, to_side)) return fault;
  if (auto fault = FindSide(core, memories, from, from_side)) return fault;
  if (MayOverlap(to, from)) return Misfit("a copy's tiles overlap");
  if (HasTwice(to)) return Misfit("a copy writes an element twice");
  const uint8_t* indices = nullptr;
  if (index != nullptr) {
    if (auto fault = ReadL1(core, *index, indices)) return fault;
  }
  const bool is_indexed = index != nullptr;
  if (!is_indexed && from.Elements() > 0 && !IsDefined(from, from_side)) return Undefined();
  std::optional<Fault> fault;
  if (instruction.code == Code::kCopy) {
    CopyElements(to, to_side.data, from, from_side.data);
  } else if (instruction.code == Code::kCopyPadded) {
    fault = Pad(core, instruction, to, to_side, from, from_side);
  } else {
    fault =
        MoveRows(instruction.code == Code::kGather, to, to_side, from, from_side, *index, indices);
  }
  if (fault) return fault;
  if (!is_indexed && to.Elements() > 0) Define(to, to_side);
  copy.read = {from};
  copy.written = {to};
  const int64_t rows = is_indexed ? index->extents[0] : 1;
  if (is_indexed) copy.read.push_back(*index);
  copy.bytes = rows * (is_indexed ? RowOf(to) : to).Elements() * ElementBytes(to.type);
  Count(is_indexed ? RowOf(to) : to, rows, copy);
  Count(is_indexed ? RowOf(from) : from, rows, copy);
  Take(core, copy);
  return std::nullopt;
}

void Retire(Core& core, int token) {
  const auto it = std::find_if(core.copies.begin(), core.copies.end(),
                               [&](const PendingCopy& copy) { return copy.token == token; });
  const auto release = [&](const std::vector<Tile>& tiles, ByteSet& taken) {
    for (const Tile& tile : tiles) {
      if (tile.space != Space::kL1) continue;
      ForEachRun(tile, [&](const Run& run) { taken.Remove(run.begin, run.bytes); });
    }
  };
  release(it->read, core.being_read);
  release(it->written, core.being_written);
  if (it - core.copies.begin() < static_cast<ptrdiff_t>(core.begun)) --core.begun;
  core.copies.erase(it);
  for (const PendingCopy& copy : core.copies)
    Take(core, copy);  // what others have of the same bytes
}

}  // namespace kiln::gcu_simulator
