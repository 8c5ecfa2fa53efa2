#include "compiler/fusion/value_numbers.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/hash/hash.h"
#include "compiler/fusion/match_loops.h"
#include "compiler/ir/index_nodes.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::IntKind;
using ir::Kernel;
using ir::Operation;
using ir::Phase;
using ir::Repeat;
using ir::ScalarOp;
using ir::ValueId;

namespace {

// Operations of one fingerprint that are not the same are rare: those beyond are not looked at.
constexpr size_t kMostCandidates = 8;

// Equal for indices that differ in nothing but which variables they are of.
uint64_t ShapeOf(IntExpr expr) {
  const uint64_t kind = static_cast<uint64_t>(expr.kind());
  switch (expr.kind()) {
    case IntKind::kConst:
      return absl::HashOf(kind, expr.value());
    case IntKind::kVar:
      return absl::HashOf(kind, expr.extent());
    case IntKind::kSymbol:
    case IntKind::kIndirect:
      return absl::HashOf(kind, expr.id());
    default:
      break;
  }
  uint64_t sum = 0;  // operands of sums and products come in any order
  for (IntExpr operand : expr.operands()) sum += ShapeOf(operand);
  return absl::HashOf(kind, sum);
}

uint64_t ShapeOf(const std::vector<IntExpr>& indices) {
  if (ir::IndexNodes(indices) > ir::kMostIndexNodes) return indices.size();
  uint64_t shape = indices.size();
  for (IntExpr index : indices) shape = absl::HashOf(shape, ShapeOf(index));
  return shape;
}

uint64_t ExtentsOf(uint64_t hash, const std::vector<IntExpr>& loops) {
  for (IntExpr var : loops) hash = absl::HashOf(hash, var.extent());
  return absl::HashOf(hash, loops.size());
}

// The same with operands that have the same names.
bool IsSameCall(Inst a, const Inst& b) {
  a.buffer = b.buffer;
  return ir::DoesSame(a, b);
}

bool HaveSameType(const ir::Buffer& a, const ir::Buffer& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides;
}

}  // namespace

ValueNumbers::ValueNumbers(FusionGraph& graph)
    : graph_(graph), number_(graph.module().buffers.size()) {
  std::iota(number_.begin(), number_.end(), 0);
}

ValueNumbers::Same ValueNumbers::Add(int id) {
  std::vector<int>& candidates = known_[Fingerprint(graph_.op(id))];
  for (const int candidate : candidates) {
    Same same{candidate, {}};
    if (!AreSame(graph_.op(candidate).operation, graph_.op(id).operation, same.stored)) continue;
    for (const auto& [first, second] : same.stored) number_[second] = number_[first];
    return same;
  }
  if (candidates.size() < kMostCandidates) candidates.push_back(id);
  return {};
}

uint64_t ValueNumbers::Fingerprint(const Op& op) const {
  uint64_t hash = 0;
  for (const Kernel& kernel : KernelsOf(op.operation)) {
    hash = ExtentsOf(absl::HashOf(hash, kernel.schedule, kernel.phases.size()), kernel.outer);
    for (const Phase& phase : kernel.phases) {
      hash = ExtentsOf(absl::HashOf(hash, phase.body.size()), phase.inner);
      for (const Inst& inst : phase.body) {
        hash = absl::HashOf(hash, inst.op, inst.dtype, inst.operands.size(), inst.has_mask,
                            inst.accumulates, inst.reduce_kind, inst.immediate_int,
                            std::bit_cast<uint64_t>(inst.immediate_float));
        if (!inst.indices.empty()) hash = absl::HashOf(hash, ShapeOf(inst.indices));
        // What it stores itself has no number yet.
        if (inst.op == ScalarOp::kLoad && absl::c_binary_search(op.reads, inst.buffer)) {
          hash = absl::HashOf(hash, number_[inst.buffer]);
        }
      }
    }
  }
  return hash;
}

bool ValueNumbers::AreSame(const Operation& a, const Operation& b, Pairs& stored) {
  const auto *repeat_a = std::get_if<Repeat>(&a), *repeat_b = std::get_if<Repeat>(&b);
  if ((repeat_a == nullptr) != (repeat_b == nullptr)) return false;
  const absl::Span<const Kernel> kernels_a = KernelsOf(a), kernels_b = KernelsOf(b);
  if (kernels_a.size() != kernels_b.size()) return false;
  for (size_t k = 0; k < kernels_a.size(); ++k) {
    if (!AreSame(kernels_a[k], kernels_b[k], stored)) return false;
  }
  return true;
}

bool ValueNumbers::AreSame(const Kernel& a, const Kernel& b, Pairs& stored) {
  if (a.schedule != b.schedule || a.phases.size() != b.phases.size() ||
      !EqualExtents(a.outer, b.outer)) {
    return false;
  }
  ir::IntContext::VarMap vars = RenameLoops(b.outer, a.outer);
  std::vector<ValueId> values(b.num_values, ir::kNoValue);
  for (size_t p = 0; p < a.phases.size(); ++p) {
    const Phase &phase_a = a.phases[p], &phase_b = b.phases[p];
    if (phase_a.body.size() != phase_b.body.size() || !EqualExtents(phase_a.inner, phase_b.inner)) {
      return false;
    }
    for (const auto& [from, to] : RenameLoops(phase_b.inner, phase_a.inner)) vars[from] = to;
    for (size_t i = 0; i < phase_a.body.size(); ++i) {
      const Inst& inst = phase_a.body[i];
      Inst other = phase_b.body[i];
      for (ValueId& operand : other.operands) operand = values[operand];
      if (other.result != ir::kNoValue) values[other.result] = inst.result;
      SubstituteIndices(graph_.ints(), vars, other);
      if (!IsSameCall(inst, other) || !HoldSame(inst, other, stored)) return false;
    }
  }
  return true;
}

// Of a load or store: whether what the buffers hold, or will, is the same.
bool ValueNumbers::HoldSame(const Inst& a, const Inst& b, Pairs& stored) const {
  if (a.buffer < 0 || b.buffer < 0) return a.buffer == b.buffer;
  for (const auto& [first, second] : stored) {
    if (first == a.buffer || second == b.buffer) return first == a.buffer && second == b.buffer;
  }
  if (a.op == ScalarOp::kLoad) return number_[a.buffer] == number_[b.buffer];
  const std::vector<ir::Buffer>& buffers = graph_.module().buffers;
  if (!HaveSameType(buffers[a.buffer], buffers[b.buffer])) return false;
  stored.emplace_back(a.buffer, b.buffer);
  return true;
}

}  // namespace kiln::fusion
