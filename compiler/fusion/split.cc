// A long reduction over few outer points runs on few threads. It becomes two kernels: partial
// results over chunks of the loop, then the rest of the kernel over the partial results. A loop
// that no good number of chunks divides, or whose length only a run knows, leaves a remainder,
// which the rest of the kernel reduces itself.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/fusion/match_loops.h"
#include "compiler/fusion/passes.h"
#include "compiler/fusion/simplify_kernel.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ReduceKind;
using ir::ScalarOp;

namespace {

constexpr int64_t kMaxOuterPoints = 64;  // from here on there is parallelism enough
constexpr int64_t kMinInnerPoints = 32768;
constexpr int64_t kMinChunks = 8;
constexpr int64_t kMaxChunks = 256;

constexpr int64_t kUnevenChunks = 64;

// With symbols at their hints; -1 where the product overflows.
int64_t Points(IntContext& ints, const std::vector<IntExpr>& loops) {
  int64_t points = 1;
  for (IntExpr var : loops) {
    const int64_t extent = std::max<int64_t>(ints.EvaluateAtHints(var.extent()), 1);
    if (__builtin_mul_overflow(points, extent, &points)) return -1;
  }
  return points;
}

// Whether the first phase does nothing but reduce, in any order of its elements.
bool IsSplittable(const Phase& phase) {
  bool reduces = false;
  for (const Inst& inst : phase.body) {
    if (inst.op == ScalarOp::kStore || inst.op == ScalarOp::kScan) return false;
    if (inst.op != ScalarOp::kReduce) continue;
    reduces = true;
    if (IsArg(inst.reduce_kind)) return false;
  }
  return reduces;
}

// The chunks are the loops before `split_at` and `pieces` equal parts of that loop, but for a
// remainder.
struct Chunking {
  size_t split_at = 0;
  int64_t before = 1;  // points of the loops before
  int64_t pieces = 0;  // 0: there is no good chunking
  bool has_remainder = false;
};

Chunking FindEvenChunking(const std::vector<IntExpr>& inner) {
  Chunking chunking;
  for (size_t i = 0; i < inner.size() && chunking.before <= kMaxChunks; ++i) {
    if (!inner[i].extent().is_const()) break;
    const int64_t extent = inner[i].extent().value();
    if (extent == 0) break;
    for (int64_t pieces = std::min(extent, kMaxChunks / chunking.before); pieces > 0; --pieces) {
      if (extent % pieces != 0 || chunking.before * pieces < kMinChunks) continue;
      chunking.split_at = i;
      chunking.pieces = pieces;
      return chunking;
    }
    chunking.before *= extent;
  }
  return {};
}

// The first loop is cut where it is long.
Chunking FindUnevenChunking(IntContext& ints, const Phase& phase) {
  for (const Inst& inst : phase.body) {
    if (inst.op == ScalarOp::kReduce && !CombinerOf(inst.reduce_kind)) return {};
  }
  const int64_t extent = ints.EvaluateAtHints(phase.inner[0].extent());
  return {.pieces = extent < 2 * kUnevenChunks ? 0 : kUnevenChunks, .has_remainder = true};
}

// Splits one kernel. The first part keeps the loops of the first phase, cut into chunks.
class Splitter {
 public:
  Splitter(FusionGraph& graph, int id) : graph_(graph), id_(id), rest_(*graph.Fusible(id)) {}

  void Run(const Chunking& chunking) {
    const std::string name = rest_.name;
    const Phase whole = rest_.phases[0];
    Kernel part = MakePart(chunking);
    part.name = absl::StrCat(name, "_partial");
    part.origins = rest_.origins;
    StorePartials(part);
    if (chunking.has_remainder) AddRemainder(whole, chunking);
    SimplifyKernel(part);
    SimplifyKernel(rest_);
    const int part_id = graph_.InsertBefore(id_, std::move(part));
    // rest_ may dangle from here on.
    graph_.Update(id_);
    graph_.Record(part_id, id_, false, "split: a long reduction with few outer points");
  }

 private:
  IntContext& ints() { return graph_.ints(); }

  Kernel MakePart(const Chunking& chunking) {
    const std::vector<IntExpr> inner = rest_.phases[0].inner;
    const IntExpr split = inner[chunking.split_at];
    chunk_count_ = ints().Const(chunking.before * chunking.pieces);
    chunk_ = ints().NewVar(chunk_count_);
    Kernel part;
    IntContext::VarMap map;
    part.outer = CloneLoops(ints(), rest_.outer);
    map = RenameLoops(rest_.outer, part.outer);
    part.outer.push_back(chunk_);

    IntExpr stride = ints().Const(chunking.pieces);
    for (size_t i = chunking.split_at; i-- > 0;) {
      map[inner[i]] = ints().Mod(ints().FloorDiv(chunk_, stride), inner[i].extent());
      stride = ints().Mul(stride, inner[i].extent());
    }
    std::vector<IntExpr> left;
    const IntExpr length = ChunkLength(split, chunking);
    IntExpr start = ints().Mul(ints().Mod(chunk_, ints().Const(chunking.pieces)), length);
    if (!length.is_const() || length.value() > 1) {
      left.push_back(ints().NewVar(length));
      start = ints().Add(start, left.back());
    }
    map[split] = start;
    for (size_t i = chunking.split_at + 1; i < inner.size(); ++i) {
      left.push_back(ints().NewVar(inner[i].extent()));
      map[inner[i]] = left.back();
    }
    part.num_values = rest_.num_values;
    Phase& phase = part.phases.emplace_back();
    phase.inner = std::move(left);
    phase.body = rest_.phases[0].body;
    for (Inst& inst : phase.body) SubstituteIndices(ints(), map, inst);
    return part;
  }

  IntExpr ChunkLength(IntExpr loop, const Chunking& chunking) {
    return ints().FloorDiv(loop.extent(), ints().Const(chunking.pieces));
  }

  // The rest reduces what is after the last chunk before it reduces the partial results, and gives
  // both together under the old results' names.
  void AddRemainder(const Phase& whole, const Chunking& chunking) {
    const IntExpr loop = whole.inner[0];
    const IntExpr done = ints().Mul(ChunkLength(loop, chunking), chunking.pieces);
    Phase remainder;
    IntContext::VarMap map;
    remainder.inner.push_back(ints().NewVar(ints().Sub(loop.extent(), done)));
    map[loop] = ints().Add(done, remainder.inner[0]);
    for (size_t i = 1; i < whole.inner.size(); ++i) {
      remainder.inner.push_back(ints().NewVar(whole.inner[i].extent()));
      map[whole.inner[i]] = remainder.inner[i];
    }
    std::map<ir::ValueId, ir::ValueId> names;
    for (Inst inst : whole.body) {
      SubstituteIndices(ints(), map, inst);
      for (ir::ValueId& operand : inst.operands) {
        if (auto found = names.find(operand); found != names.end()) operand = found->second;
      }
      names[inst.result] = rest_.num_values++;
      inst.result = names[inst.result];
      remainder.body.push_back(std::move(inst));
    }
    Phase together;
    for (Inst& inst : rest_.phases[0].body) {
      if (inst.op != ScalarOp::kReduce) continue;
      Inst both{*CombinerOf(inst.reduce_kind), inst.dtype};
      both.result = inst.result;
      inst.result = rest_.num_values++;
      both.operands = {names.at(both.result), inst.result};
      together.body.push_back(std::move(both));
    }
    rest_.phases.insert(rest_.phases.begin() + 1, std::move(together));
    rest_.phases.insert(rest_.phases.begin(), std::move(remainder));
  }

  // Each reduction of the part goes to a buffer that the rest reduces again.
  void StorePartials(Kernel& part) {
    Phase again;
    const IntExpr chunk = ints().NewVar(chunk_count_);
    again.inner.push_back(chunk);
    part.phases.emplace_back();
    for (const Inst& inst : part.phases[0].body) {
      if (inst.op != ScalarOp::kReduce) continue;
      Inst load{ScalarOp::kLoad, inst.dtype};
      load.buffer = AddPartialBuffer(inst.dtype);
      load.indices = rest_.outer;
      load.indices.push_back(chunk);
      load.result = rest_.num_values++;
      Inst store{ScalarOp::kStore, inst.dtype};
      store.buffer = load.buffer;
      store.indices = part.outer;
      store.operands = {inst.result};
      part.phases[1].body.push_back(std::move(store));
      Inst reduce = inst;
      reduce.operands = {load.result};
      again.body.push_back(std::move(load));
      again.body.push_back(std::move(reduce));
    }
    rest_.phases[0] = std::move(again);
  }

  BufferId AddPartialBuffer(DType dtype) {
    ir::Buffer buffer;
    buffer.name = absl::StrCat(rest_.name, "_partial", num_buffers_++);
    buffer.dtype = dtype;
    for (IntExpr var : rest_.outer) buffer.sizes.push_back(var.extent());
    buffer.sizes.push_back(chunk_count_);
    buffer.strides = graph_.module().ContiguousStrides(buffer.sizes);
    return graph_.module().AddBuffer(std::move(buffer));
  }

  FusionGraph& graph_;
  const int id_;
  Kernel& rest_;
  IntExpr chunk_, chunk_count_;
  int num_buffers_ = 0;
};

}  // namespace

void SplitReductions(FusionGraph& graph) {
  const std::vector<int> order = graph.order();
  for (int id : order) {
    const Kernel* kernel = graph.Fusible(id);
    if (kernel == nullptr || kernel->schedule != ir::Schedule::kLoops || kernel->phases.empty() ||
        !IsSplittable(kernel->phases[0])) {
      continue;
    }
    IntContext& ints = graph.ints();
    const Phase& phase = kernel->phases[0];
    const int64_t outer = Points(ints, kernel->outer);
    const int64_t inner = Points(ints, phase.inner);
    if (outer < 0 || outer >= kMaxOuterPoints || inner < kMinInnerPoints) continue;
    Chunking chunking = FindEvenChunking(phase.inner);
    if (chunking.pieces == 0) chunking = FindUnevenChunking(ints, phase);
    if (chunking.pieces > 0) Splitter(graph, id).Run(chunking);
  }
}

}  // namespace kiln::fusion
