// The schedule tree: how a kernel runs on one device.
//
// The loop IR (compiler/ir/module.h) says what a kernel computes; a tree says in which order, on
// how many lanes and tasks, and what is kept where. Loops carry a binding; memory of the kernel's
// own is opened where it begins to live and dies with the block that it stands in; instructions of
// the loop IR are the leaves, with linear indices. Every node means the same on every target. A
// target's folder (schedule/cpu) chooses a tree for a kernel, its code generator prints it, and the
// interpreter (interpret.h) runs it without the target.
//
// Text, as print.h writes and parse.h reads it, for a softmax over rows on 16 lanes:
//
//   schedule @softmax {
//     for d0 < 128, task {
//       open @0 f32[16] max in reg
//       for r0 < 768, vector 16 {
//         %0 = load f32 @x[768*d0 + r0]
//         update @0[mod(r0, 16)], %0
//       }
//       %1 = combine f32 @0
//       ...
//     }
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/launch_plan.h"

namespace kiln::schedule {

// Who runs the iterations of a loop.
enum class Binding : uint8_t {
  kSerial,      // one after another
  kTask,        // tasks of a thread pool, each a run of neighbouring iterations; in any order
  kVector,      // `width` neighbouring iterations at a time, in lanes
  kTaskVector,  // both: tasks are runs of whole vectors
  // Spread over groups of `width` threads of the team, in any order; lanes in it are theirs.
  kGroup,
};
inline bool IsParallel(Binding binding) {
  return binding != Binding::kSerial;
}
inline bool HasLanes(Binding binding) {
  return binding == Binding::kVector || binding == Binding::kTaskVector;
}
inline bool HasTasks(Binding binding) {
  return binding == Binding::kTask || binding == Binding::kTaskVector;
}

// Where memory of the kernel's own lies.
enum class Space : uint8_t {
  kRegister,  // "reg"
  kL1,        // "l1": the stack of a task
  kL2,        // "l2": scratch memory of a thread
  kGlobal,    // "global": scratch memory of the launch, which all tasks see
};
absl::string_view SpaceName(Space space);

using AllocId = int;  // index into Tree::allocs

struct Alloc {
  DType dtype = DType::kF32;
  ir::IntExpr size;  // elements; a constant in kRegister and kL1
  Space space = Space::kRegister;
  // An accumulator: each element starts at the identity of `reduce`, and only Update, Fold and
  // Combine touch it. Opened outside of a vector loop it has an element for each of the loop's
  // lanes, `mod(variable, width)`, or one; opened inside, one.
  std::optional<ir::ReduceKind> reduce;
  // Of a sum: what is folded into it is added up by levels, so that the rounding error grows with
  // the logarithm of the number of terms.
  bool cascade = false;
  // Of kArgMax or kArgMin: numbers have 32 bits, and all that is taken in has its order.
  bool narrow = false;
};

struct Node;
using Block = std::vector<Node>;

// begin <= var < end in steps of `step`; a vector loop's step is 1. `var` may be used by loops that
// stand beside each other.
struct For {
  ir::IntExpr var, begin, end, step;
  Binding binding = Binding::kSerial;
  int width = 1;  // lanes, of a vector loop; threads, of one of groups
  Block body;
};

// Whether `less` < `than` for the point at which it stands.
struct If {
  ir::IntExpr less, than;
  Block then, otherwise;
};

// `var` stands for `value` in the rest of its block.
struct Let {
  ir::IntExpr var, value;
};

// From here to the end of its block, anew in each iteration.
struct Open {
  AllocId alloc = -1;
};

// An instruction of the loop IR. Loads, stores and kIndex have one index, in elements from the
// start of what they access: `inst.buffer`, or `alloc` where that is set.
struct Compute {
  ir::Inst inst;
  AllocId alloc = -1;
  bool stream = false;  // a store that need not stay in the caches
};

// Of an accumulator of kArgMax or kArgMin: whether it is known that nothing was taken in before, or
// that something was and none of it with a greater number.
enum class UpdateOrder : uint8_t { kAny, kFirst, kLater };

// Takes `value` into element `index` of an accumulator; `number` (kArgMax, kArgMin) is the place of
// the value among all.
struct Update {
  AllocId alloc = -1;
  ir::IntExpr index;
  ir::ValueId value = ir::kNoValue;
  ir::IntExpr number;
  UpdateOrder order = UpdateOrder::kAny;
};

// Takes each element of the accumulator `from` into the same one of `into`.
struct Fold {
  AllocId into = -1, from = -1;
};

// The elements of an accumulator as one value: of kArgMax or kArgMin the place of the best or,
// where `best`, that value itself.
struct Combine {
  ir::ValueId result = ir::kNoValue;
  DType dtype = DType::kF32;
  AllocId from = -1;
  bool best = false;
};

// `count` elements will soon be read from `index` on, which may lie outside.
struct Prefetch {
  ir::BufferId buffer = -1;
  ir::IntExpr index;
  int count = 0;
};

// A place in a buffer of the module or in memory of the kernel's own.
struct Window {
  ir::BufferId buffer = -1;
  AllocId alloc = -1;
  ir::IntExpr index;  // elements
};

// A hand-tuned piece of a target's prelude. The table in micro.h says what each reads and writes,
// and by which loops it may be replaced.
enum class MicroKind : uint8_t {
  kZero,
  kCopyRows,
  kPackTransposed,
  kPackPairs,
  kInterleave,
  kTranspose,
  kWinogradImage,
  kWinogradSums,
  kMultiply,
  kMultiplyPairs,
  kMultiplyTile,
  kMultiplyRows,
  kMultiplyWarps,
  kAttendTile,
  kAttendWarps,
  kAttendGradients,
  kAttend,
  kAttendMasked,
  kSort,
  kSelect,
};
struct Micro {
  MicroKind kind = MicroKind::kZero;
  std::vector<int> constants;
  std::vector<Window> windows;  // those which are written first
  std::vector<ir::IntExpr> sizes;
};

struct Node {
  std::variant<For, If, Let, Open, Compute, Update, Fold, Combine, Prefetch, Micro> value;
};

inline constexpr int64_t kMostThreads = 1 << 12;  // Tree::threads is below this
inline constexpr int kMostTeam = 1024;

struct Tree {
  std::string name;                  // the kernel's
  std::vector<std::string> origins;  // the same
  ir::IntExpr threads;  // a variable: how many threads the launch may use; null where it counts not
  // How many threads run a task together: a power of two, 1 on a CPU. They share the lanes of
  // vector loops, `width / team` neighbouring ones each; what stands outside of those all of them
  // compute, and one stores. What one loop stores is there for the loops after it.
  int team = 1;
  // Buffers that are zero when the tasks begin, to which micro-kernels alone add: several tasks to
  // one element, in any order.
  std::vector<ir::BufferId> zeroed;
  std::vector<Alloc> allocs;
  Block body;
  int num_values = 0;  // ValueIds are below this
  // How it was chosen, for people: what was taken, and what the others would have cost.
  std::vector<std::string> reasons;
  std::vector<LaunchPlan> plans;  // of targets that have them: one for each range of sizes
};

// Calls `visit(node)` for each node, parents first. `Root` is Block or const Block.
template <typename Root, typename Visit>
void ForEachNode(Root& block, const Visit& visit) {
  for (auto& node : block) {
    visit(node);
    if (auto* loop = std::get_if<For>(&node.value)) ForEachNode(loop->body, visit);
    if (auto* branch = std::get_if<If>(&node.value)) {
      ForEachNode(branch->then, visit);
      ForEachNode(branch->otherwise, visit);
    }
  }
}

}  // namespace kiln::schedule
