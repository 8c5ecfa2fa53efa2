// The loop IR: a module is a list of operations over buffers.
//
// There is one kind of computation, the Kernel: a parallel outer loop nest around a sequence of
// phases, each a (possibly empty) inner loop nest around a small SSA block of scalar operations.
//
//   pointwise op         outer = all dimensions, one phase without inner loops
//   reduction            outer = kept dimensions; a phase with inner loops that ends in `reduce`,
//                        then a phase without that stores the result
//   softmax, layer norm  several phases over the same inner extents
//   matmul, convolution  a reduction `sum(mul(a, b))` with Schedule::kContraction: the code
//                        generator uses its blocked template; later phases are its epilogue
//
// So fusion is surgery on one structure, and the interpreter, the verifier and the textual form
// serve every stage alike. Views (reshape, permute, slice, expand, ...) are index arithmetic in
// loads; they are no operations.
//
// Text, as print.h writes and parse.h reads it:
//
//   module {
//     symbol s0 [2, 512] hint 128
//     buffer @x f32[s0,768] strides[768,1] input(0)
//     buffer @m f32[s0] strides[1] temp
//     buffer @y f32[s0,768] strides[768,1] output
//     kernel @softmax (d0: s0) from "softmax_1" {
//       phase (r0: 768) {
//         %0 = load f32 @x[d0, r0]
//         %1 = reduce.max f32 %0
//       }
//       phase (r0: 768) {
//         %2 = load f32 @x[d0, r0]
//         %3 = sub f32 %2, %1
//         %4 = exp f32 %3
//         %5 = reduce.sum f32 %4
//       }
//       phase (r0: 768) {
//         %6 = load f32 @x[d0, r0]
//         ...
//         store f32 @y[d0, r0], %9
//       }
//     }
//     repeat @attention steps(1, 1, 64) before(1) after(1) {
//       kernel @scores contraction (d0: 8, d1: 12, d2: s0, d3: s0) { ... }
//       ...
//     }
//     repeat @pooled steps(8) {
//       window(2 from -1 to 1)
//       kernel @convolution contraction (d0: 112, d1: 64, d2: 112) { ... }
//       kernel @pool (d0: 56, d1: 64, d2: 56) { ... }
//     }
//     repeat @layers by(s0) {
//       version most(64) keeps(@a, @b)
//       version step 32 loops(0, 1) keeps(@a)
//       kernel @first (d0: s0, d1: 768) { ... }
//       kernel @second (d0: 768, d1: s0) { ... }
//     }
//     library "aten.topk.default" from "topk" (@y sizes[...] ..., int 5) -> (_, @indices)
//     output @y ...
//   }
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/ir/int_expr.h"
#include "compiler/ir/scalar_op.h"
#include "proto/base/dtype.h"

namespace kiln::ir {

using BufferId = int;  // index into Module::buffers
using ValueId = int;   // SSA value, unique within its kernel
inline constexpr int kNoValue = -1;

enum class BufferKind : uint8_t {
  kInput,     // `index` is the graph's input
  kConstant,  // `index` is the graph's constant
  kTemp,      // lives in the workspace
  kOutput,    // allocated by the client for each run; an output of the graph views it
  kLibrary,   // made by a library step, with its own strides
  kTile,      // of a Repeat: of all its elements only those of one tile exist at a time
  // Made by the operations before all others, which read fixed values only (fixed_values.h): the
  // client keeps it for as long as those values stay.
  kPrepared,
};

struct Buffer {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<IntExpr> sizes;    // elements
  std::vector<IntExpr> strides;  // elements; same length as sizes
  BufferKind kind = BufferKind::kTemp;
  int index = -1;          // for kInput and kConstant
  bool parameter = false;  // a kInput whose contents stay, until the client sees that they changed
};

// One scalar instruction. Which fields count depends on `op`:
//   kConst   immediate_int (integral types) or immediate_float
//   kIndex   indices[0]
//   kLoad    buffer, indices (one a dimension of the buffer); operands: first one i64 value for
//   each
//            kIndirect in indices, then, where has_mask, a bool: where it is false nothing is read
//            and the result is immediate_float / immediate_int
//   kStore   buffer, indices; operands: the i64 values of kIndirect, then the value stored; where
//            `accumulates`, it is taken into the element by reduce_kind, one that FoldsNumbers
//   kReduce  reduce_kind; operands[0]
//   kScan    reduce_kind, one that FoldsNumbers; operands[0]
//   kSort    operands[0]; where immediate_int is not 0, what follows runs in that many iterations
// The value of each kIndirect of a load or store must lie in its extent, or the run fails. `checks`
// are more such values, which no index has: those of dimensions of size 1 or of repeated ones.
// `dtype` is the type of the result (of the stored value for kStore).
struct Inst {
  ScalarOp op = ScalarOp::kConst;
  DType dtype = DType::kF32;
  ValueId result = kNoValue;  // kNoValue for kStore
  std::vector<ValueId> operands;
  BufferId buffer = -1;
  std::vector<IntExpr> indices;
  std::vector<IntExpr> checks;  // kIndirect each
  bool has_mask = false;
  bool accumulates = false;
  ReduceKind reduce_kind = ReduceKind::kSum;
  int64_t immediate_int = 0;
  double immediate_float = 0;
};

// An inner loop nest and its body. A value is visible to later instructions of its own phase; the
// result of a `reduce`, and every value of a phase without inner loops, also to all later phases.
// Within a phase the result of its own `reduce` is not visible. A buffer stored in one phase may be
// loaded in a later phase of the same kernel at the same outer point only.
//
// Iterations of the inner loops may run in any order, but in an ordered phase they run one after
// another, in row-major order: one with a `scan`, whose result is visible in the same iteration, or
// with a scatter, a `store` that accumulates or has a kIndirect index. So of scatters to one
// element the last one counts, and accumulation has one order. Outer points stay parallel: each
// variable of the outer loops is itself one of a scatter's indices. What a scatter accumulates into
// is stored in an earlier phase.
struct Phase {
  std::vector<IntExpr> inner;  // kVar each, outermost first; empty: the body runs once a point
  std::vector<Inst> body;
};

enum class Schedule : uint8_t {
  kLoops,
  // Phase 0 is: instructions for `a`, instructions for `b`, `mul a, b`, `reduce.sum`; it is the
  // kernel's only reduction. Later phases have no inner loops.
  kContraction,
  // Loops that lay out an operand for contractions, which read it in place: it is cheap to compute
  // where it is used, but not in that order. Fusion leaves it alone.
  kPacking,
  // One phase of one inner loop with one `sort`, which rows are sorted by; fusion leaves it alone.
  kSorting,
};

struct Kernel {
  std::string name;
  std::vector<IntExpr> outer;  // kVar each, outermost first
  std::vector<Phase> phases;
  Schedule schedule = Schedule::kLoops;
  std::vector<std::string> origins;  // names of the graph's nodes that this computes
  int num_values = 0;                // ValueIds are below this
};

// Whether both do the same with the same operands, whatever their results are called.
bool DoesSame(const Inst& a, const Inst& b);
// A store whose place is known at run time only, or that takes its value into what is there.
bool IsScatter(const Inst& inst);
bool HasScatter(const Kernel& kernel);
bool IsOrdered(const Phase& phase);

// Makes `constant`, of a dtype, what a reduction of no elements gives. REQUIRES: no kind that gives
// a place.
void SetIdentity(ReduceKind kind, Inst& constant);

// What a kernel of a Repeat runs of its tiled loop for the tile [begin, end) of the repeat's loop:
// the iterations from scale * begin + low to scale * (end - 1) + high, but for those that there are
// not: before 0, or past the loop's end.
struct TileWindow {
  int64_t scale = 1, low = 0, high = 0;

  bool IsTile() const { return *this == TileWindow(); }
  // The most iterations for `step` of the repeat's.
  int64_t Span(int64_t step) const { return scale * (step - 1) + high - low + 1; }
  friend bool operator==(const TileWindow&, const TileWindow&) = default;
};

// How a Repeat runs for some sizes of its symbols.
struct RepeatVersion {
  std::vector<int64_t> most;   // by symbol: sizes above are for a later version; none: of the last
  int64_t step = 0;            // iterations of a tile; 0: everything is one tile
  std::vector<int64_t> loops;  // where there is a step, by kernel: which outer loop is tiled
  // Temporary buffers of this repeat alone of which but one tile exists at a time.
  std::vector<BufferId> keeps;
};

// Kernels that give what they would give one after another, but are run tile by tile: all of them
// on one tile, then on the next, so that what one hands to a later one need never lie in memory
// whole. The first loops of `Kernel::outer` are tiled, as many as there are steps, and equally long
// in all kernels; a tile is `steps[i]` iterations of the i-th. What one kernel stores and a later
// one loads has, for each of these loops, a dimension whose index is that loop's variable in every
// access, so tiles do not depend on each other; no kernel stores to an input.
//
// Windows: where a later kernel loads more of that dimension than its own iterations, as a
// convolution does, those before it run more of theirs, and compute again what two tiles need.
// `windows` says how much. The repeat's loops are those of the last kernel then, which runs the
// tile itself; those of others may have other lengths. What is stored for two tiles, or not for all
// of a loop, is a kTile buffer.
//
// Without steps everything is one tile: kernels that are one launch of a device, where what they
// hand on may stay on the chip.
//
// Sums over the last tiled loop: the first `before` and the last `after` kernels lack that loop,
// and run before and after all of its tiles. Of the kernels between, one that AddsUp has it as the
// loop of its first phase and adds the sum of each tile to a buffer that a kernel before has made
// and that only those after load; tiles of that loop run in order then.
//
// Versions: where sizes are known at run time only, the first one whose `most` are not exceeded is
// run. Each is a repeat of its own (OfVersion), without windows and sums; `steps` are none then.
struct Repeat {
  std::string name;
  std::vector<int64_t> steps;   // each at least 1; none: everything is one tile
  std::vector<Kernel> kernels;  // in an order that respects every dependence
  size_t before = 0, after = 0;
  // By kernel, for each step; empty where every kernel runs the tile itself, as it does where there
  // are sums.
  std::vector<std::vector<TileWindow>> windows;
  std::vector<IntExpr> by;  // symbols, which versions are chosen by
  std::vector<RepeatVersion> versions;

  TileWindow WindowOf(size_t kernel, size_t loop) const {
    return windows.empty() ? TileWindow() : windows[kernel][loop];
  }
};

// Whether kernel `number` runs in each tile of the last loop, and not before or after all of them.
bool IsBetween(const Repeat& repeat, size_t number);
// Whether a kernel of a Repeat is a contraction that adds its sums to what lies where it stores.
bool AddsUp(const Kernel& kernel);
// The tiled loops of kernel `number`, one for each step; the last is null where the kernel lacks
// it.
std::vector<IntExpr> TiledLoops(const Repeat& repeat, size_t number);

// What the version runs: tiled loops come first in its kernels.
Repeat OfVersion(const Repeat& repeat, const RepeatVersion& version);

// A window on a buffer as a library step sees it.
struct BufferWindow {
  BufferId buffer = -1;
  std::vector<IntExpr> sizes;
  std::vector<IntExpr> strides;  // elements
  IntExpr offset;                // elements
  // So many elements at the end of each row, of the dimension of stride 1, are no part of the
  // tensor that the window stands for: the step that takes it may write them.
  int64_t row_padding = 0;
};

struct LibraryArg;
using LibraryArgs = std::vector<LibraryArg>;
struct NoneArg {
  friend bool operator==(NoneArg, NoneArg) = default;
};
struct LibraryArg {
  std::string name;  // empty for a positional argument
  std::variant<NoneArg, BufferWindow, IntExpr, double, bool, std::string, DType, LibraryArgs,
               std::complex<double>>
      value;
};

// A call of an ATen operator that the client executes.
struct Library {
  std::string op;                 // "aten.topk.default"
  std::string origin;             // the graph's node
  LibraryArgs args;               // positional ones first
  std::vector<BufferId> results;  // kLibrary buffers
  // Which of the operator's results those are, ascending, one each; empty: 0, 1, 2, ...
  std::vector<int> positions;
};

// Calls `visit` with each window among the arguments and in lists of them, in order. `Args` is
// LibraryArgs or const LibraryArgs.
template <typename Args, typename Visit>  // void(BufferWindow&) or void(const BufferWindow&)
void ForEachWindow(Args& args, const Visit& visit) {
  for (auto& arg : args) {
    if (auto* window = std::get_if<BufferWindow>(&arg.value)) visit(*window);
    if (auto* items = std::get_if<LibraryArgs>(&arg.value)) ForEachWindow(*items, visit);
  }
}

using Operation = std::variant<Kernel, Library, Repeat>;

// The operation's kernels: one, those of a Repeat, or none.
absl::Span<const Kernel> KernelsOf(const Operation& operation);
// Calls `visit` with each instruction of the kernel, or of all of them, in order.
template <typename Visit>  // void(const Inst&)
void ForEachInst(const Kernel& kernel, const Visit& visit) {
  for (const Phase& phase : kernel.phases) {
    for (const Inst& inst : phase.body) visit(inst);
  }
}
template <typename Visit>
void ForEachInst(const Operation& operation, const Visit& visit) {
  for (const Kernel& kernel : KernelsOf(operation)) ForEachInst(kernel, visit);
}
// The name of a Kernel or Repeat, the node of a Library.
absl::string_view NameOf(const Operation& operation);

// An output of the graph: a window on a buffer, a size, or nothing.
struct ModuleOutput {
  std::variant<NoneArg, BufferWindow, IntExpr> value;
};

struct Module {
  std::unique_ptr<IntContext> ints = std::make_unique<IntContext>();
  std::vector<Buffer> buffers;
  std::vector<Operation> operations;  // in an order that respects every dependence
  std::vector<ModuleOutput> outputs;

  // Row-major strides for `sizes`.
  std::vector<IntExpr> ContiguousStrides(const std::vector<IntExpr>& sizes);
  BufferId AddBuffer(Buffer buffer);
};

// Whether all that the kernel does is to give integers of 8 bits another type.
bool WidensBytes(const Module& module, const Kernel& kernel);

// Number of elements.
IntExpr NumElements(IntContext& ints, const Buffer& buffer);
// Bytes from the first to past the last reachable element; 0 for an empty buffer.
IntExpr SizeBytes(IntContext& ints, const Buffer& buffer);
// Sum of index * stride, in elements.
IntExpr LinearIndex(IntContext& ints, const Buffer& buffer, const std::vector<IntExpr>& indices);

}  // namespace kiln::ir
