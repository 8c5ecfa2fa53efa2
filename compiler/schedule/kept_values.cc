#include "compiler/schedule/kept_values.h"

#include <cstring>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace kiln::schedule {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;

namespace {

// Numbers values so that two of equal number are equal wherever the inner loops of their phases
// stand at the same place.
class ValueNumbers {
 public:
  ValueNumbers(IntContext& ints, const Nest& nest, int num_values)
      : ints_(ints), numbers_(num_values, 0) {
    for (const NestPhase& phase : nest.phases) {
      for (const Step& step : phase.steps) {
        if (step.inst->op == ScalarOp::kStore) stored_.insert(step.inst->buffer);
      }
    }
    place_ = ints.NewVar(ints.Const(1));
    for (const NestPhase& phase : nest.phases) {
      for (const Step& step : phase.steps) Add(phase, step);
    }
  }
  int Of(const Inst& inst) const { return numbers_[inst.result]; }
  // Along the inner loop.
  bool Varies(const Inst& inst) const { return varying_.contains(inst.result); }

 private:
  void Add(const NestPhase& phase, const Step& step) {
    const Inst& inst = *step.inst;
    if (inst.result < 0) return;
    std::string text = absl::StrCat(static_cast<int>(inst.op), " ", static_cast<int>(inst.dtype));
    bool varies = false;
    for (ir::ValueId id : inst.operands) {
      absl::StrAppend(&text, " %", numbers_[id]);
      varies |= varying_.contains(id);
    }
    if (inst.op == ScalarOp::kReduce || stored_.contains(inst.buffer)) {
      absl::StrAppend(&text, " only ", inst.result);
    }
    if (step.index) {
      IntExpr index = step.index;
      if (phase.inner.size() == 1) index = ints_.Substitute(index, {{phase.inner[0], place_}});
      varies |= ContainsVar(index, place_);
      const int number = static_cast<int>(indices_.size());
      absl::StrAppend(&text, " @", inst.buffer, "[", indices_.emplace(index, number).first->second,
                      "]");
    }
    if (varies && inst.op != ScalarOp::kReduce) varying_.insert(inst.result);
    int64_t immediate_bits;
    std::memcpy(&immediate_bits, &inst.immediate_float, sizeof(immediate_bits));
    absl::StrAppend(&text, " ", inst.immediate_int, " ", immediate_bits, inst.has_mask ? "m" : "");
    const int number = static_cast<int>(by_text_.size());
    numbers_[inst.result] = by_text_.emplace(std::move(text), number).first->second;
  }

  IntContext& ints_;
  std::vector<int> numbers_;
  absl::flat_hash_set<ir::ValueId> varying_;
  IntExpr place_;
  absl::flat_hash_set<ir::BufferId> stored_;
  absl::flat_hash_map<IntExpr, int> indices_;
  absl::flat_hash_map<std::string, int> by_text_;
};

IntExpr OnlyLoop(const NestPhase& phase) {
  return phase.inner.size() == 1 ? phase.inner[0] : IntExpr();
}

}  // namespace

std::vector<KeptValue> FindKeptValues(IntContext& ints, const Nest& nest, int num_values,
                                      KeptOptions options) {
  std::vector<KeptValue> kept;
  if (nest.phases.size() < 2) return kept;
  const ValueNumbers numbers(ints, nest, num_values);
  struct First {
    size_t phase;
    const Inst* inst;
  };
  absl::flat_hash_map<int, First> firsts;
  absl::flat_hash_set<const Inst*> stored;
  int64_t bytes = 0;
  for (size_t i = 0; i < nest.phases.size(); ++i) {
    IntExpr loop = OnlyLoop(nest.phases[i]);
    if (!loop || !Extent(ints, loop).is_const()) continue;
    const int64_t extent = Extent(ints, loop).value();
    for (const Step& step : nest.phases[i].steps) {
      const Inst& inst = *step.inst;
      const bool costly = IsElementary(inst.op) ||
                          (options.loads && inst.op == ScalarOp::kLoad && inst.buffer >= 0);
      if (!costly || !numbers.Varies(inst)) continue;
      const auto [found, is_first] = firsts.emplace(numbers.Of(inst), First{i, &inst});
      const First& first = found->second;
      if (is_first || first.phase == i) continue;
      if (Extent(ints, OnlyLoop(nest.phases[first.phase])) != Extent(ints, loop)) continue;
      const int64_t more = stored.contains(first.inst) ? 0 : extent * DTypeSize(inst.dtype);
      if (bytes + more > options.most_bytes) continue;
      bytes += more;
      stored.insert(first.inst);
      kept.push_back({first.phase, first.inst, i, &inst, extent});
    }
  }
  return kept;
}

}  // namespace kiln::schedule
