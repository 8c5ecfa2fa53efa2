// A long reduction over few outer points runs on few threads. It becomes two kernels: partial
// results over chunks of the loop, then the rest of the kernel over the partial results.
#include <algorithm>
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

// -1 where an extent is symbolic or the product overflows.
int64_t ConstPoints(const std::vector<IntExpr>& loops) {
  int64_t points = 1;
  for (IntExpr var : loops) {
    if (!var.extent().is_const() || var.extent().value() < 1 ||
        __builtin_mul_overflow(points, var.extent().value(), &points)) {
      return -1;
    }
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

// The chunks are the loops before `split_at` and `pieces` parts of that loop.
struct Chunking {
  size_t split_at = 0;
  int64_t before = 1;  // points of the loops before
  int64_t pieces = 0;  // 0: there is no good chunking
};

Chunking FindChunking(const std::vector<IntExpr>& inner) {
  Chunking chunking;
  for (size_t i = 0; i < inner.size() && chunking.before <= kMaxChunks; ++i) {
    const int64_t extent = inner[i].extent().value();
    for (int64_t pieces = std::min(extent, kMaxChunks / chunking.before); pieces > 0; --pieces) {
      if (extent % pieces != 0 || chunking.before * pieces < kMinChunks) continue;
      chunking.split_at = i;
      chunking.pieces = pieces;
      return chunking;
    }
    chunking.before *= extent;
  }
  return chunking;
}

// Splits one kernel. The first part keeps the loops of the first phase, cut into chunks.
class Splitter {
 public:
  Splitter(FusionGraph& graph, int id) : graph_(graph), id_(id), rest_(*graph.Fusible(id)) {}

  void Run(const Chunking& chunking) {
    const std::string name = rest_.name;
    Kernel part = MakePart(chunking);
    part.name = absl::StrCat(name, "_partial");
    part.origins = rest_.origins;
    StorePartials(part);
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
    const int64_t length = split.extent().value() / chunking.pieces;
    IntExpr start = ints().Mul(ints().Mod(chunk_, ints().Const(chunking.pieces)), length);
    if (length > 1) {
      left.push_back(ints().NewVar(ints().Const(length)));
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
    const int64_t outer = ConstPoints(kernel->outer);
    const int64_t inner = ConstPoints(kernel->phases[0].inner);
    if (outer < 0 || outer >= kMaxOuterPoints || inner < kMinInnerPoints) continue;
    const Chunking chunking = FindChunking(kernel->phases[0].inner);
    if (chunking.pieces > 0) Splitter(graph, id).Run(chunking);
  }
}

}  // namespace kiln::fusion
