#include "compiler/fusion/value_numbers.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "compiler/fusion/match_loops.h"

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
// Of index expressions nothing below counts for a fingerprint.
constexpr int kMostDepth = 3;

// Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), so that the same
// fingerprints come out in every process.
uint64_t Mix(uint64_t hash, uint64_t value) {
  return std::rotl((hash ^ value) * 0x9e3779b97f4a7c15u, 29);
}

// Equal for indices that differ in nothing but which variables they are of.
uint64_t ShapeOf(IntExpr expr, int depth = kMostDepth) {
  const uint64_t kind = static_cast<uint64_t>(expr.kind());
  switch (expr.kind()) {
    case IntKind::kConst:
      return Mix(kind, static_cast<uint64_t>(expr.value()));
    case IntKind::kVar:
      return depth == 0 ? kind : Mix(kind, ShapeOf(expr.extent(), depth - 1));
    case IntKind::kSymbol:
    case IntKind::kIndirect:
      return Mix(kind, static_cast<uint64_t>(expr.id()));
    default:
      break;
  }
  uint64_t sum = expr.operands().size();  // those of sums and products come in any order
  if (depth == 0) return Mix(kind, sum);
  for (IntExpr operand : expr.operands()) sum += ShapeOf(operand, depth - 1);
  return Mix(kind, sum);
}

uint64_t MixShapes(uint64_t hash, const std::vector<IntExpr>& exprs) {
  for (IntExpr expr : exprs) hash = Mix(hash, ShapeOf(expr));
  return Mix(hash, exprs.size());
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
  uint64_t hash = op.writes.size();
  for (const Kernel& kernel : KernelsOf(op.operation)) {
    hash = MixShapes(Mix(hash, static_cast<uint64_t>(kernel.schedule)), kernel.outer);
    for (const Phase& phase : kernel.phases) {
      hash = MixShapes(hash, phase.inner);
      for (const Inst& inst : phase.body) {
        hash = Mix(hash, static_cast<uint64_t>(inst.op) | static_cast<uint64_t>(inst.dtype) << 8 |
                             static_cast<uint64_t>(inst.reduce_kind) << 16);
        if (inst.op == ScalarOp::kConst) {
          hash = Mix(hash, static_cast<uint64_t>(inst.immediate_int));
          hash = Mix(hash, std::bit_cast<uint64_t>(inst.immediate_float));
        }
        if (!inst.indices.empty()) hash = MixShapes(hash, inst.indices);
        // What it stores itself has no number yet.
        if (inst.op == ScalarOp::kLoad && absl::c_binary_search(op.reads, inst.buffer)) {
          hash = Mix(hash, static_cast<uint64_t>(number_[inst.buffer]));
        }
      }
    }
  }
  return hash;
}

// Before fusion a Repeat is its kernels and nothing else: see Fuse.
bool ValueNumbers::AreSame(const Operation& a, const Operation& b, Pairs& stored) {
  if (std::holds_alternative<Repeat>(a) != std::holds_alternative<Repeat>(b)) return false;
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
      if (inst.op != phase_b.body[i].op) return false;
      Inst other = phase_b.body[i];
      const BufferId buffer = std::exchange(other.buffer, inst.buffer);
      for (ValueId& operand : other.operands) operand = values[operand];
      if (other.result != ir::kNoValue) values[other.result] = inst.result;
      SubstituteIndices(graph_.ints(), vars, other);
      if (!ir::DoesSame(inst, other) || !HoldSame(inst, buffer, stored)) return false;
    }
  }
  return true;
}

// Whether `buffer` holds, or will, what the buffer that `inst` loads or stores does.
bool ValueNumbers::HoldSame(const Inst& inst, BufferId buffer, Pairs& stored) const {
  if (inst.buffer < 0 || buffer < 0) return inst.buffer == buffer;
  for (const auto& [first, second] : stored) {
    if (first == inst.buffer || second == buffer) {
      return first == inst.buffer && second == buffer;
    }
  }
  if (inst.op == ScalarOp::kLoad) return number_[inst.buffer] == number_[buffer];
  const std::vector<ir::Buffer>& buffers = graph_.module().buffers;
  if (!HaveSameType(buffers[inst.buffer], buffers[buffer])) return false;
  stored.emplace_back(inst.buffer, buffer);
  return true;
}

}  // namespace kiln::fusion
