// Materialise or inline: a producer is computed where it is used if that costs less than a round
// trip through memory.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "compiler/fusion/cost.h"
#include "compiler/fusion/passes.h"
#include "compiler/fusion/simplify_kernel.h"
#include "compiler/fusion/strides.h"
#include "compiler/fusion/substitute.h"
#include "compiler/ir/packed_weights.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;

namespace {

// Starting from TorchInductor's thresholds (30 to 50 operations of any kind, 8 to 12 reads), lower
// where work repeats, for the merge pass picks up what stays.
constexpr double kMaxCheapOperations = 4;
constexpr double kMaxOperandOperations = 2;  // into a contraction's operand, read many times
constexpr double kMaxFreeOperations = 8;     // of producers that read no memory
constexpr size_t kMaxProducerInstructions = 100;
constexpr char kPlainOperands[] = "the device reads operands of contractions as they lie in memory";

// How a consumer uses the producer.
struct Use {
  bool in_operand = false;  // of a contraction
  bool in_windows = true;   // where in an operand: of one that overlapping windows are read of
  bool in_loops = false;    // in a kernel with inner loops
  double evaluations = 0;   // loads times points
};

// Whether one index moves with the kernel's outer and with its inner loops, as a convolution's do.
bool ReadsWindows(const Inst& load, const Kernel& consumer, const Phase& phase) {
  const auto has_any = [](IntExpr index, const std::vector<IntExpr>& loops) {
    return std::any_of(loops.begin(), loops.end(),
                       [&](IntExpr var) { return ContainsVar(index, var); });
  };
  return std::any_of(load.indices.begin(), load.indices.end(), [&](IntExpr index) {
    return has_any(index, consumer.outer) && has_any(index, phase.inner);
  });
}

Use UseOf(const ir::IntContext& ints, const Kernel& consumer, BufferId buffer) {
  Use use;
  const bool is_contraction = consumer.schedule == ir::Schedule::kContraction;
  use.in_loops = !is_contraction && !IsPointwise(consumer);
  const double outer = Points(ints, consumer.outer);
  for (size_t p = 0; p < consumer.phases.size(); ++p) {
    const Phase& phase = consumer.phases[p];
    for (const Inst& inst : phase.body) {
      if (inst.op != ScalarOp::kLoad || inst.buffer != buffer) continue;
      if (is_contraction && p == 0) {
        use.in_operand = true;
        use.in_windows &= ReadsWindows(inst, consumer, phase);
      } else {
        use.evaluations += outer * Points(ints, phase.inner);
      }
    }
  }
  return use;
}

// True where the producer reads a contraction's result that nobody else reads: it will become
// that contraction's epilogue.
bool IsEpilogue(FusionGraph& graph, int producer) {
  for (BufferId b : graph.op(producer).reads) {
    const int source = graph.ProducerOf(b);
    const Kernel* kernel = source < 0 ? nullptr : graph.Fusible(source);
    if (kernel != nullptr && kernel->schedule == ir::Schedule::kContraction &&
        graph.ReadersOf(b).size() == 1) {
      return true;
    }
  }
  return false;
}

struct Verdict {
  bool inlined;
  const char* reason;
};

Verdict Judge(FusionGraph& graph, int producer, const InlineSource& source,
              const std::vector<int>& readers, bool is_needed) {
  const BufferId buffer = source.store->buffer;
  const BodyCost cost = CostOf(graph.module(), *source.kernel);
  const double points = Points(graph.ints(), source.kernel->outer);
  if (source.kernel->phases[0].body.size() > kMaxProducerInstructions) {
    return {false, "the producer is too large"};
  }
  double evaluations = 0;
  bool in_operand = false, in_windows = true, in_loops = false;
  for (int reader : readers) {
    const Kernel& consumer = *graph.Changeable(reader);
    if (!FitsTogether(*source.kernel, consumer)) {
      return {false, "the kernels together are too large"};
    }
    if (!KeepsChecks(graph.module(), source, consumer)) {
      return {false, "nothing would check an index into the producer, or all of its divisors"};
    }
    const Use use = UseOf(graph.ints(), consumer, buffer);
    in_operand |= use.in_operand;
    in_windows &= use.in_windows;
    in_loops |= use.in_loops;
    evaluations += use.evaluations;
  }
  if (in_operand && graph.plain_operands()) {
    if (!is_needed && ir::WidensBytes(graph.module(), *source.kernel)) {
      return {true, "the device widens the operand where it multiplies"};
    }
    if (!is_needed && ir::UnpacksWeights(graph.module(), *source.kernel)) {
      return {true, "the device unpacks the operand where it multiplies"};
    }
    return {false, kPlainOperands};
  }
  if (cost.loads == 0 && cost.operations <= kMaxFreeOperations && !cost.is_expensive) {
    return {true, "the producer reads no memory"};
  }
  if (is_needed) return {false, "the producer's buffer is needed in memory anyway"};
  if (IsPadding(*source.kernel) && (!in_operand || in_windows)) {
    return {true, "the consumer reads the padding as a constant"};
  }
  const bool is_move = cost.operations == 0 && cost.loads <= 1;
  const bool is_epilogue = IsEpilogue(graph, producer);
  if (in_operand) {
    if (is_epilogue) return {false, "the producer is an epilogue of a contraction"};
    if (cost.operations > kMaxOperandOperations || cost.is_expensive || cost.large_loads > 1) {
      return {false, "a contraction reads the producer many times"};
    }
    return {true, "the producer costs little more than a load"};
  }
  if (is_move) return {true, "the producer only moves data"};
  if (is_epilogue && (in_loops || readers.size() > 1)) {
    return {false, "the producer is an epilogue of a contraction"};
  }
  if (evaluations <= points) return {true, "each element is used once"};
  if (cost.is_expensive) return {false, "the producer is expensive and used more than once"};
  if (cost.operations <= kMaxCheapOperations && cost.large_loads <= 1) {
    return {true, "computing the producer again costs less than storing it"};
  }
  return {false, "the producer is used more than once"};
}

void TryInline(FusionGraph& graph, int producer) {
  const Kernel* kernel = graph.Fusible(producer);
  if (kernel == nullptr) return;
  const std::optional<InlineSource> source = AsInlineSource(graph.module(), *kernel);
  if (!source) return;
  const BufferId buffer = source->store->buffer;
  const std::vector<int> readers = graph.ReadersOf(buffer);
  std::vector<int> kernels;
  for (int reader : readers) {
    if (graph.Changeable(reader) != nullptr) kernels.push_back(reader);
  }
  if (kernels.empty()) return;
  const bool is_needed = graph.IsKept(buffer) || kernels.size() < readers.size();
  Verdict verdict = Judge(graph, producer, *source, kernels, is_needed);
  std::vector<Kernel> joined;
  for (size_t i = 0; i < kernels.size() && verdict.inlined; ++i) {
    const Kernel& consumer = *graph.Changeable(kernels[i]);
    joined.push_back(consumer);
    InlineInto(graph.module(), *source, joined.back());
    SimplifyKernel(joined.back());
    if (AreIndicesTooLong(joined.back(), *kernel, consumer)) verdict = {false, kLongIndices};
    if (graph.plain_operands() && UseOf(graph.ints(), consumer, buffer).in_operand &&
        !graph.TakesOperandsOf(joined.back())) {
      verdict = {false, kPlainOperands};
    }
    if (WouldCrossRows(graph, joined.back(), {kernel, &consumer})) {
      verdict = {false, kCrossedRows};
    }
  }
  for (int reader : kernels) graph.Record(producer, reader, verdict.inlined, verdict.reason);
  if (!verdict.inlined) return;
  for (size_t i = 0; i < kernels.size(); ++i) {
    std::vector<std::string> origins = kernel->origins;
    AppendOrigins(joined[i].origins, origins);
    joined[i].origins = std::move(origins);
    *graph.Changeable(kernels[i]) = std::move(joined[i]);
    graph.Update(kernels[i]);
  }
  if (!is_needed) graph.Remove(producer);
}

// Operations that read what the kernel stores; 0 of one that is there no more.
size_t NumReaders(FusionGraph& graph, int id) {
  if (graph.Fusible(id) == nullptr) return 0;
  absl::flat_hash_set<int> readers;
  for (BufferId buffer : graph.op(id).writes) {
    for (int reader : graph.ReadersOf(buffer)) readers.insert(reader);
  }
  return readers.size();
}

}  // namespace

void InlineProducers(FusionGraph& graph) {
  const std::vector<int> order = graph.order();
  // What is padded stays with the kernel that makes it, and does not weigh the padding down.
  for (int id : order) {
    const Kernel* kernel = graph.Fusible(id);
    if (kernel != nullptr && IsPadding(*kernel)) TryInline(graph, id);
  }
  // Some readers are one kernel in the end. A CPU, which reads tables of functions into registers,
  // is as well off with kernels apart.
  std::vector<int> shared;
  for (int id : order) {
    TryInline(graph, id);
    if (graph.costly_launches() && NumReaders(graph, id) > 1) shared.push_back(id);
  }
  for (int id : shared) {
    if (NumReaders(graph, id) == 1) TryInline(graph, id);
  }
}

}  // namespace kiln::fusion
