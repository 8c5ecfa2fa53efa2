#include "compiler/joint_launches.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "compiler/ir/fixed_values.h"

namespace kiln {
namespace {

using ir::BufferId;
using ir::BufferKind;

constexpr size_t kMostBetween = 256;  // operations, so that the search ends soon

struct Range {
  int64_t begin = 0, end = 0;  // bytes of the workspace
  friend auto operator<=>(const Range&, const Range&) = default;
};

// Sorted, each once.
struct Places {
  std::vector<BufferId> own;  // buffers that have a place of their own
  std::vector<Range> ranges;  // of others

  bool Meets(const Places& other) const {
    for (auto a = own.begin(), b = other.own.begin(); a != own.end() && b != other.own.end();) {
      if (*a == *b) return true;
      ++(*a < *b ? a : b);
    }
    return absl::c_any_of(ranges, [&](const Range& mine) {
      return absl::c_any_of(other.ranges, [&](const Range& its) {
        return mine.begin < its.end && its.begin < mine.end;
      });
    });
  }
};

template <typename T>
void SortOnce(std::vector<T>& values) {
  absl::c_sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

struct Accesses {
  Places reads, writes;
};

bool Conflict(const Accesses& a, const Accesses& b) {
  return a.writes.Meets(b.writes) || a.writes.Meets(b.reads) || a.reads.Meets(b.writes);
}

class Finder {
 public:
  Finder(const ir::Module& module, const memory::Plan& plan) : module_(module), plan_(plan) {
    for (size_t id = 0; id < module.buffers.size(); ++id) {
      const ir::Buffer& buffer = module.buffers[id];
      if (buffer.kind == BufferKind::kInput) inputs_.try_emplace(buffer.index, id);
    }
  }

  std::vector<std::vector<size_t>> Find(const std::vector<ir::Identity>& identities,
                                        size_t most_buffers) {
    const size_t count = module_.operations.size();
    std::vector<std::vector<size_t>> groups(count);
    absl::flat_hash_map<size_t, size_t> open;  // by what they equal: the first of the last group
    size_t begin = 0;                          // after what nothing moves across
    accesses_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const ir::Operation& operation = module_.operations[i];
      if (std::holds_alternative<ir::Library>(operation) ||
          ir::StoresPrepared(module_, KernelsOf(operation))) {
        begin = i + 1;
        continue;
      }
      accesses_[i] = AccessesOf(operation);
      const size_t buffers = identities[i].buffers.size();
      const auto [first, is_new] = open.try_emplace(identities[i].first, i);
      std::vector<size_t>& group = groups[first->second];
      if (!is_new && first->second >= begin && i - first->second <= kMostBetween &&
          (group.size() + 1) * buffers <= most_buffers && MayJoin(group, i)) {
        group.push_back(i);
      } else {
        first->second = i;
        groups[i] = {i};
      }
    }
    for (std::vector<size_t>& group : groups) {
      if (group.size() == 1) group.clear();
    }
    return groups;
  }

 private:
  // Whether the operation may run with the group, and so before all that is between.
  bool MayJoin(const std::vector<size_t>& group, size_t operation) const {
    for (size_t i = group[0]; i < operation; ++i) {
      if (Conflict(accesses_[i], accesses_[operation])) return false;
    }
    return true;
  }

  Accesses AccessesOf(const ir::Operation& operation) const {
    Accesses accesses;
    ForEachInst(operation, [&](const ir::Inst& inst) {
      if (inst.op == ir::ScalarOp::kLoad) Add(inst.buffer, accesses.reads);
      if (inst.op == ir::ScalarOp::kStore) Add(inst.buffer, accesses.writes);
    });
    for (Places* places : {&accesses.reads, &accesses.writes}) {
      SortOnce(places->own);
      SortOnce(places->ranges);
    }
    return accesses;
  }

  void Add(BufferId id, Places& places) const {
    while (plan_.in_place_of[id] >= 0) id = plan_.in_place_of[id];
    const ir::Buffer& buffer = module_.buffers[id];
    // Several buffers may be one input.
    if (buffer.kind == BufferKind::kInput) id = inputs_.at(buffer.index);
    if (buffer.kind != BufferKind::kTemp) return places.own.push_back(id);
    const ir::IntExpr begin = plan_.offsets[id], bytes = SizeBytes(*module_.ints, buffer);
    if (!begin || !begin.is_const() || !bytes.is_const()) {
      return places.ranges.push_back({0, INT64_MAX});
    }
    places.ranges.push_back({begin.value(), begin.value() + bytes.value()});
  }

  const ir::Module& module_;
  const memory::Plan& plan_;
  absl::flat_hash_map<int, BufferId> inputs_;  // by number: the first buffer that is it
  std::vector<Accesses> accesses_;             // by operation
};

}  // namespace

std::vector<std::vector<size_t>> FindJointLaunches(const ir::Module& module,
                                                   const memory::Plan& plan,
                                                   const std::vector<ir::Identity>& identities,
                                                   size_t most_buffers) {
  return Finder(module, plan).Find(identities, most_buffers);
}

}  // namespace kiln
