#include "compiler/memory/plan_memory.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/memory/in_place.h"
#include "compiler/memory/write_inputs.h"
#include "proto/base/status_macros.h"

namespace kiln::memory {
namespace {

using ir::BufferId;
using ir::BufferKind;
using ir::IntContext;
using ir::IntExpr;
using ir::Module;

constexpr int kNever = -1;

// The first and last operation that touches a buffer, both inclusive: an operation's result and its
// operands overlap, so they never share storage but in place.
struct Lifetime {
  int first = kNever;
  int last = kNever;
  bool used() const { return first != kNever; }
};

bool Overlap(const Lifetime& a, const Lifetime& b) {
  return a.first <= b.last && b.first <= a.last;
}

void Extend(Lifetime& life, int operation) {
  if (!life.used()) life.first = operation;
  life.last = operation;
}

std::vector<Lifetime> FindLifetimes(const Module& module) {
  std::vector<Lifetime> lives(module.buffers.size());
  for (size_t i = 0; i < module.operations.size(); ++i) {
    int operation = static_cast<int>(i);
    ForEachInst(module.operations[i], [&](const ir::Inst& inst) {
      if (inst.buffer >= 0) Extend(lives[inst.buffer], operation);
    });
    if (const auto* library = std::get_if<ir::Library>(&module.operations[i])) {
      ir::ForEachWindow(library->args, [&](const ir::BufferWindow& window) {
        Extend(lives[window.buffer], operation);
      });
      for (BufferId result : library->results) Extend(lives[result], operation);
    }
  }
  // Past the last operation, for what the caller looks at afterwards.
  int end = static_cast<int>(module.operations.size());
  for (const ir::ModuleOutput& output : module.outputs) {
    if (const auto* window = std::get_if<ir::BufferWindow>(&output.value)) {
      if (lives[window->buffer].used()) lives[window->buffer].last = end;
    }
  }
  return lives;
}

bool LiesInWorkspace(const Module& module, const std::vector<BufferId>& in_place_of, BufferId b) {
  const bool in_input =
      in_place_of[b] >= 0 && module.buffers[in_place_of[b]].kind == BufferKind::kInput;
  return module.buffers[b].kind == BufferKind::kTemp && !in_input;
}

// Adds to `in_place_of` the temporary buffers that take over another one's storage.
void FindInPlace(Module& module, const std::vector<Lifetime>& lives,
                 std::vector<BufferId>& in_place_of) {
  std::vector<std::vector<BufferId>> made(module.operations.size());
  std::vector<std::vector<BufferId>> dying(module.operations.size());
  for (size_t b = 0; b < module.buffers.size(); ++b) {
    const Lifetime& life = lives[b];
    const bool planned = LiesInWorkspace(module, in_place_of, static_cast<BufferId>(b));
    if (!planned || !life.used()) continue;
    made[life.first].push_back(static_cast<BufferId>(b));
    if (life.first < life.last && life.last < static_cast<int>(module.operations.size())) {
      dying[life.last].push_back(static_cast<BufferId>(b));
    }
  }
  for (size_t i = 0; i < module.operations.size(); ++i) {
    const auto* kernel = std::get_if<ir::Kernel>(&module.operations[i]);
    if (kernel == nullptr || made[i].empty() || dying[i].empty()) continue;
    std::vector<BufferId> chosen = ChooseInPlace(module, *kernel, made[i], dying[i]);
    for (size_t k = 0; k < chosen.size(); ++k) in_place_of[made[i][k]] = chosen[k];
  }
}

// Buffers that take over one storage from each other, one after the other.
struct Group {
  BufferId first = -1;  // the buffer that the others inherit from
  Lifetime life;
  IntExpr bytes;
  IntExpr size;  // `bytes` rounded up to a multiple of kAlignment
  IntExpr offset;
};

struct Groups {
  std::vector<Group> groups;
  std::vector<int> group_of;  // by BufferId; -1 for buffers outside the workspace
};

absl::StatusOr<Groups> GroupBuffers(Module& module, const std::vector<Lifetime>& lives,
                                    const std::vector<BufferId>& in_place_of) {
  IntContext& ints = *module.ints;
  Groups result;
  result.group_of.assign(module.buffers.size(), -1);
  std::vector<BufferId> order;  // by first use, so that a buffer comes after the one it inherits
  for (size_t b = 0; b < module.buffers.size(); ++b) {
    const bool planned = LiesInWorkspace(module, in_place_of, static_cast<BufferId>(b));
    if (planned && lives[b].used()) order.push_back(static_cast<BufferId>(b));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](BufferId a, BufferId b) { return lives[a].first < lives[b].first; });
  for (BufferId b : order) {
    if (in_place_of[b] >= 0) {
      int group = result.group_of[in_place_of[b]];
      result.group_of[b] = group;
      result.groups[group].life.last = lives[b].last;
      continue;
    }
    IntExpr bytes = SizeBytes(ints, module.buffers[b]);
    if (!bytes.is_const() && !ContainsKind(bytes, ir::IntKind::kSymbol)) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer @", module.buffers[b].name, " has more bytes than 64 bits count"));
    }
    IntExpr size = RoundUp(ints, bytes);
    result.group_of[b] = static_cast<int>(result.groups.size());
    result.groups.push_back({b, lives[b], bytes, size, IntExpr()});
  }
  return result;
}

// Places groups of constant size; returns the bytes they take.
absl::StatusOr<int64_t> PlaceConstantSizes(IntContext& ints, std::vector<Group*> groups) {
  std::stable_sort(groups.begin(), groups.end(), [](const Group* a, const Group* b) {
    return a->size.value() > b->size.value();
  });
  struct Placed {
    int64_t begin, end;
    Lifetime life;
  };
  std::vector<Placed> placed;  // by begin
  int64_t total = 0;
  for (Group* group : groups) {
    int64_t size = group->size.value();
    int64_t begin = 0, end = 0;
    bool overflow = __builtin_add_overflow(begin, size, &end);
    for (const Placed& other : placed) {
      if (other.begin >= end) break;
      if (other.end <= begin || !Overlap(other.life, group->life)) continue;
      begin = other.end;
      overflow |= __builtin_add_overflow(begin, size, &end);
    }
    if (overflow) return absl::ResourceExhaustedError("the workspace exceeds 64 bits of bytes");
    group->offset = ints.Const(begin);
    if (size == 0) continue;
    total = std::max(total, end);
    auto at = std::upper_bound(placed.begin(), placed.end(), begin,
                               [](int64_t b, const Placed& p) { return b < p.begin; });
    placed.insert(at, {begin, end, group->life});
  }
  return total;
}

IntExpr End(IntContext& ints, const Plan::Region& region) {
  return ints.Add(region.begin, region.size);
}

// Places groups of symbolic size in regions of their own, which are appended to `regions` and
// shared where one is provably large enough.
void PlaceSymbolicSizes(IntContext& ints, std::vector<Group*> groups,
                        std::vector<Plan::Region>& regions) {
  auto hint = [&](const Group* g) { return ints.EvaluateAtHints(g->size); };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const Group* a, const Group* b) { return hint(a) > hint(b); });
  const size_t first = regions.size();
  std::vector<std::vector<Lifetime>> lives(first);  // by region
  for (Group* group : groups) {
    auto fits = [&](size_t region) {
      return std::none_of(lives[region].begin(), lives[region].end(),
                          [&](const Lifetime& l) { return Overlap(l, group->life); }) &&
             ints.ProvablyLessEqual(group->bytes, regions[region].size);
    };
    size_t region = first;
    while (region < regions.size() && !fits(region)) ++region;
    if (region == regions.size()) {
      regions.push_back({End(ints, regions.back()), group->size});
      lives.emplace_back();
    }
    lives[region].push_back(group->life);
    group->offset = regions[region].begin;
  }
}

// One after the other: all of them live on.
absl::Status PlacePrepared(Module& module, Plan& plan) {
  IntContext& ints = *module.ints;
  for (size_t b = 0; b < module.buffers.size(); ++b) {
    if (module.buffers[b].kind != BufferKind::kPrepared) continue;
    plan.offsets[b] = ints.Const(plan.prepared_bytes);
    const IntExpr size = RoundUp(ints, SizeBytes(ints, module.buffers[b]));
    if (!size.is_const() ||
        __builtin_add_overflow(plan.prepared_bytes, size.value(), &plan.prepared_bytes)) {
      return absl::ResourceExhaustedError("prepared buffers exceed 64 bits of bytes");
    }
  }
  return absl::OkStatus();
}

}  // namespace

IntExpr RoundUp(IntContext& ints, IntExpr bytes) {
  return ints.Mul(ints.CeilDiv(bytes, ints.Const(kAlignment)), kAlignment);
}

absl::StatusOr<Plan> PlanMemory(Module& module) {
  IntContext& ints = *module.ints;
  Plan plan;
  plan.in_place_of = WriteInputsInPlace(module);
  const std::vector<Lifetime> lives = FindLifetimes(module);
  FindInPlace(module, lives, plan.in_place_of);
  KILN_ASSIGN_OR_RETURN(Groups grouped, GroupBuffers(module, lives, plan.in_place_of));

  std::vector<Group*> constant, symbolic;
  for (Group& group : grouped.groups) {
    (group.size.is_const() ? constant : symbolic).push_back(&group);
  }
  KILN_ASSIGN_OR_RETURN(int64_t constant_bytes, PlaceConstantSizes(ints, std::move(constant)));
  plan.regions.push_back({ints.Const(0), ints.Const(constant_bytes)});
  PlaceSymbolicSizes(ints, std::move(symbolic), plan.regions);
  plan.workspace_bytes = End(ints, plan.regions.back());

  plan.offsets.resize(module.buffers.size());
  for (size_t b = 0; b < module.buffers.size(); ++b) {
    int group = grouped.group_of[b];
    if (group >= 0) plan.offsets[b] = grouped.groups[group].offset;
  }
  KILN_RETURN_IF_ERROR(PlacePrepared(module, plan));
  return plan;
}

}  // namespace kiln::memory
