#include "compiler/schedule/kept_values.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
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

class Finder {
 public:
  Finder(IntContext& ints, const Nest& nest, int num_values, KeptOptions options)
      : ints_(ints), nest_(nest), options_(options), numbers_(ints, nest, num_values) {}

  std::vector<KeptValue> Find() && {
    for (size_t i = 0; i < nest_.phases.size(); ++i) {
      IntExpr loop = OnlyLoop(nest_.phases[i]);
      if (loop && Extent(ints_, loop).is_const()) AddPhase(i, Extent(ints_, loop));
    }
    return std::move(kept_);
  }

 private:
  struct First {
    size_t phase;
    const Inst* inst;
  };

  void AddPhase(size_t number, IntExpr extent);
  // What an earlier phase computes as well, for the same points.
  const First* FindEarlier(size_t phase, const Inst& inst, IntExpr extent) const;
  std::vector<const Inst*> FindLast(size_t phase, const std::vector<const Inst*>& again) const;
  static int64_t Bytes(const std::vector<const Inst*>& values);
  void Keep(const First& first, size_t phase, const Inst& inst, int64_t extent);

  IntContext& ints_;
  const Nest& nest_;
  const KeptOptions options_;
  const ValueNumbers numbers_;
  absl::flat_hash_map<int, First> firsts_;
  absl::flat_hash_set<const Inst*> stored_;
  int64_t bytes_ = 0;
  std::vector<KeptValue> kept_;
};

const Finder::First* Finder::FindEarlier(size_t phase, const Inst& inst, IntExpr extent) const {
  if (inst.result < 0 || !numbers_.Varies(inst)) return nullptr;
  const auto found = firsts_.find(numbers_.Of(inst));
  if (found == firsts_.end() || found->second.phase == phase) return nullptr;
  const First& first = found->second;
  return Extent(ints_, OnlyLoop(nest_.phases[first.phase])) == extent ? &first : nullptr;
}

// Of the values `again` that a phase computes again those that the rest of it takes, before they
// are widened.
std::vector<const Inst*> Finder::FindLast(size_t phase,
                                          const std::vector<const Inst*>& again) const {
  absl::flat_hash_map<ir::ValueId, const Inst*> results;
  for (const Inst* inst : again) results[inst->result] = inst;
  std::vector<const Inst*> last;
  for (const Step& step : nest_.phases[phase].steps) {
    if (results.contains(step.inst->result)) continue;
    for (const ir::ValueId operand : step.inst->operands) {
      auto found = results.find(operand);
      if (found == results.end()) continue;
      while (found->second->op == ScalarOp::kCast) {
        const auto narrow = results.find(found->second->operands[0]);
        if (narrow == results.end() ||
            DTypeSize(narrow->second->dtype) > DTypeSize(found->second->dtype)) {
          break;
        }
        found = narrow;
      }
      if (!absl::c_linear_search(last, found->second)) last.push_back(found->second);
    }
  }
  return last;
}

int64_t Finder::Bytes(const std::vector<const Inst*>& values) {
  int64_t bytes = 0;
  for (const Inst* inst : values) bytes += DTypeSize(inst->dtype);
  return bytes;
}

void Finder::Keep(const First& first, size_t phase, const Inst& inst, int64_t extent) {
  const int64_t more = stored_.contains(first.inst) ? 0 : extent * DTypeSize(inst.dtype);
  if (bytes_ + more > options_.most_bytes) return;
  bytes_ += more;
  stored_.insert(first.inst);
  kept_.push_back({first.phase, first.inst, phase, &inst, extent});
}

void Finder::AddPhase(size_t number, IntExpr extent) {
  std::vector<const Inst*> again, loads, costly;
  for (const Step& step : nest_.phases[number].steps) {
    const Inst& inst = *step.inst;
    if (inst.op == ScalarOp::kIndex || FindEarlier(number, inst, extent) == nullptr) continue;
    again.push_back(&inst);
    const bool is_load = inst.op == ScalarOp::kLoad && inst.buffer >= 0;
    if (is_load) loads.push_back(&inst);
    if (IsElementary(inst.op) || (options_.loads && is_load)) costly.push_back(&inst);
  }
  // What several loads make may take less memory than they.
  if (options_.loads) {
    std::vector<const Inst*> last = FindLast(number, again);
    if (Bytes(last) < Bytes(loads)) costly = std::move(last);
  }
  for (const Inst* inst : costly) {
    Keep(*FindEarlier(number, *inst, extent), number, *inst, extent.value());
  }
  for (const Step& step : nest_.phases[number].steps) {
    if (step.inst->result < 0 || !numbers_.Varies(*step.inst)) continue;
    firsts_.emplace(numbers_.Of(*step.inst), First{number, step.inst});
  }
}

}  // namespace

std::vector<KeptValue> FindKeptValues(IntContext& ints, const Nest& nest, int num_values,
                                      KeptOptions options) {
  if (nest.phases.size() < 2) return {};
  return Finder(ints, nest, num_values, options).Find();
}

}  // namespace kiln::schedule
