#include "compiler/codegen/ptx/machine_functions.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kiln::codegen::ptx {
namespace {

using ir::Inst;
using ir::ScalarOp;
using ir::ValueId;
using schedule::AllocId;

// Whether the result is about as near to the true one as the operands are to theirs.
bool KeepsErrorsSmall(const Inst& inst) {
  switch (inst.op) {
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kDiv:
    case ScalarOp::kFma:
    case ScalarOp::kMin:
    case ScalarOp::kMax:
    case ScalarOp::kNeg:
    case ScalarOp::kAbs:
    case ScalarOp::kLog:
    case ScalarOp::kLog1p:
    case ScalarOp::kSqrt:
    case ScalarOp::kRsqrt:
    case ScalarOp::kTanh:
    case ScalarOp::kErf:
    case ScalarOp::kSigmoid:
    case ScalarOp::kSelect:  // a choice is a bool
      return true;
    case ScalarOp::kCast:
      return inst.dtype == DType::kF32 || inst.dtype == DType::kF64;
    default:
      return false;
  }
}

// Values, and memory of the kernel's own, which has to be exact for others to be.
class Needs {
 public:
  explicit Needs(const ir::Module& module, const schedule::Tree& tree)
      : module_(module), tree_(tree) {
    ForEachNode(tree.body, [this](const schedule::Node& node) { Add(node); });
  }

  absl::flat_hash_set<ValueId> Exact() {
    absl::flat_hash_map<int, std::vector<int>> sources;
    for (const auto& [from, to] : flows_) sources[to].push_back(from);
    absl::flat_hash_set<ValueId> exact;
    while (!pending_.empty()) {
      const int place = pending_.back();
      pending_.pop_back();
      if (!exact.insert(place).second) continue;
      const auto found = sources.find(place);
      if (found == sources.end()) continue;
      pending_.insert(pending_.end(), found->second.begin(), found->second.end());
    }
    return exact;
  }

 private:
  // Behind the values' numbers.
  int Memory(AllocId alloc) const { return tree_.num_values + alloc; }
  void NeedExact(int place) { pending_.push_back(place); }
  void Flow(int from, int to) { flows_.emplace_back(from, to); }

  void Add(const schedule::Node& node) {
    if (const auto* compute = std::get_if<schedule::Compute>(&node.value)) {
      AddCompute(*compute);
    } else if (const auto* update = std::get_if<schedule::Update>(&node.value)) {
      Flow(update->value, Memory(update->alloc));
      if (IsArg(*tree_.allocs[update->alloc].reduce)) NeedExact(Memory(update->alloc));
    } else if (const auto* fold = std::get_if<schedule::Fold>(&node.value)) {
      Flow(Memory(fold->from), Memory(fold->into));
    } else if (const auto* combine = std::get_if<schedule::Combine>(&node.value)) {
      Flow(Memory(combine->from), combine->result);
    } else if (const auto* micro = std::get_if<schedule::Micro>(&node.value)) {
      for (const schedule::Window& window : micro->windows) {
        if (window.alloc >= 0) NeedExact(Memory(window.alloc));
      }
    }
  }

  void AddCompute(const schedule::Compute& compute) {
    const Inst& inst = compute.inst;
    if (inst.op == ScalarOp::kStore) {
      for (size_t i = 0; i + 1 < inst.operands.size(); ++i) NeedExact(inst.operands[i]);
      const ValueId value = inst.operands.back();
      if (compute.alloc >= 0) {
        Flow(value, Memory(compute.alloc));
      } else if (!IsHalf(module_.buffers[inst.buffer].dtype)) {
        NeedExact(value);
      }
      return;
    }
    if (inst.op == ScalarOp::kLoad && compute.alloc >= 0) Flow(Memory(compute.alloc), inst.result);
    const bool is_rounded = IsHalf(inst.dtype);
    for (const ValueId operand : inst.operands) {
      if (KeepsErrorsSmall(inst)) {
        if (!is_rounded) Flow(operand, inst.result);
      } else if (!(is_rounded && inst.op == ScalarOp::kCast)) {
        NeedExact(operand);
      }
    }
  }

  const ir::Module& module_;
  const schedule::Tree& tree_;
  std::vector<std::pair<int, int>> flows_;
  std::vector<int> pending_;
};

}  // namespace

MachineFunctions::MachineFunctions(const ir::Module& module, const schedule::Tree& tree,
                                   bool of_products)
    : exact_(Needs(module, tree).Exact()), of_products_(of_products) {
  ForEachNode(tree.body, [this](const schedule::Node& node) {
    const auto* compute = std::get_if<schedule::Compute>(&node.value);
    if (compute != nullptr && compute->inst.result >= 0) {
      computed_[compute->inst.result] = &compute->inst;
    }
  });
}

const Inst* MachineFunctions::Maker(ValueId id) const {
  const auto found = computed_.find(id);
  return found == computed_.end() ? nullptr : found->second;
}

bool MachineFunctions::IsWhole(ValueId id) const {
  const Inst* made = Maker(id);
  const Inst* from =
      made != nullptr && made->op == ScalarOp::kCast ? Maker(made->operands[0]) : nullptr;
  return from != nullptr && from->op == ScalarOp::kIndex;
}

bool MachineFunctions::IsAboveOne(ValueId id) const {
  const Inst* sum = Maker(id);
  if (sum == nullptr || sum->op != ScalarOp::kAdd) return false;
  const Inst* x = Maker(sum->operands[0]);
  const Inst* y = Maker(sum->operands[1]);
  if (x == nullptr || y == nullptr) return false;
  if (x->op != ScalarOp::kExp) std::swap(x, y);
  return x->op == ScalarOp::kExp && y->op == ScalarOp::kConst && y->immediate_float >= 1;
}

std::optional<double> MachineFunctions::Constant(ValueId id) const {
  const Inst* made = Maker(id);
  if (made == nullptr) return std::nullopt;
  if (made->op == ScalarOp::kConst) {
    return IsFloat(made->dtype) ? made->immediate_float : static_cast<double>(made->immediate_int);
  }
  if (made->op == ScalarOp::kIndex && made->indices[0].is_const()) {
    return static_cast<double>(made->indices[0].value());
  }
  if (made->op == ScalarOp::kCast && IsFloat(made->dtype)) return Constant(made->operands[0]);
  if (made->op != ScalarOp::kSub && made->op != ScalarOp::kMax) return std::nullopt;
  const std::optional<double> x = Constant(made->operands[0]), y = Constant(made->operands[1]);
  if (!x || !y) return std::nullopt;
  return made->op == ScalarOp::kSub ? *x - *y : std::max(*x, *y);
}

std::optional<double> MachineFunctions::Count(ValueId id) const {
  constexpr double kMost = 0x1p60;  // far from where an inverse or a remainder is subnormal
  const std::optional<double> value = Constant(id);
  const bool has_inverse = value && std::abs(*value) <= kMost && std::abs(*value) >= 1 / kMost;
  return has_inverse ? value : std::nullopt;
}

std::string MachineFunctions::ShortOf(const Inst& inst) const {
  switch (inst.op) {
    case ScalarOp::kExp:
      return "KShortExp";
    case ScalarOp::kSigmoid:
      return "KShortSigmoid";
    case ScalarOp::kDiv:
      return IsAboveOne(inst.operands[1]) ? "KShortOver"
             : Count(inst.operands[1])    ? "KShortOverCount"
                                          : "KShortQuotient";
    case ScalarOp::kTanh:
      return of_products_ ? "KShortTanh" : "";
    case ScalarOp::kErf:
      return of_products_ ? "KShortErf" : "";
    default:
      return "";
  }
}

std::string MachineFunctions::FullOf(const Inst& inst) const {
  if (inst.op == ScalarOp::kRsqrt) return "KOneOverRoot";
  if (inst.op != ScalarOp::kDiv) return "";
  const Inst* dividend = Maker(inst.operands[0]);
  if (dividend != nullptr && dividend->op == ScalarOp::kConst && dividend->immediate_float == 1) {
    return "KOneOver";
  }
  const ValueId divisor = inst.operands[1];
  if (const std::optional<double> count = Count(divisor)) {
    int exponent = 0;  // of a power of two, by whose inverse LLVM multiplies itself
    const bool is_power = std::abs(std::frexp(*count, &exponent)) == 0.5;
    return is_power ? "" : "KOverCount";
  }
  return IsAboveOne(divisor) || IsWhole(divisor) ? "KOverOne" : "";
}

std::string MachineFunctions::Of(const Inst& inst) const {
  const bool is_short = IsHalf(inst.dtype) || (inst.dtype == DType::kF32 && inst.result >= 0 &&
                                               !exact_.contains(inst.result));
  const std::string function = is_short ? ShortOf(inst) : "";
  const bool in_float = inst.dtype == DType::kF32 || IsHalf(inst.dtype);
  return function.empty() && in_float ? FullOf(inst) : function;
}

}  // namespace kiln::codegen::ptx
