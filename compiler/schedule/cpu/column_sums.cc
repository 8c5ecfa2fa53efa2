#include "compiler/schedule/cpu/column_sums.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/cache_hints.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

constexpr int64_t kMostPoints = 4;  // outer points that a task takes together
constexpr int64_t kColumns = 4096;  // of a task: their sums stay in the first-level cache
constexpr int64_t kTotals = 256;    // of a task that adds up parts
constexpr int64_t kLeastRows = 32;  // of a task
constexpr int64_t kMostRows = 512;  // the same: longer sums lose precision
constexpr int64_t kParts = 8;       // of the rows, where neither says otherwise

// Sums, and the greatest and least of them, which begin with what Clear stores.
bool IsTaken(ir::ReduceKind kind) {
  return kind == ir::ReduceKind::kSum || kind == ir::ReduceKind::kMax ||
         kind == ir::ReduceKind::kMin;
}

class ColumnSums {
 public:
  ColumnSums(ir::Module& module, const ir::Kernel& kernel, const Nest& nest, const VectorPlan& plan,
             VectorIsa isa, const DeviceInfo& device)
      : ints_(*module.ints),
        nest_(nest),
        lanes_(plan.lanes.var),
        width_(VectorBytes(isa) / 2),  // two vectors of floats
        builder_(module, kernel, nest) {
    builder_.tree().reasons.push_back(plan.reason);
    for (IntExpr var : nest.outer) {
      if (var != lanes_) points_.push_back(var);
    }
    may_ = plan.outer && !plan.row_var && plan.lanes.width > 1 && nest.tile == nullptr &&
           OnlySums() && FindMatrices(module, device.l2_bytes);
  }

  bool may() const { return may_; }
  Tree Run() &&;

 private:
  struct Sum {
    const Inst* inst;
    AllocId parts = -1;  // [outer point][part][column]
  };
  // Steps of one trip over the columns, and by sum and outer point the values to add up.
  struct Trip {
    std::vector<const Step*> steps;
    std::vector<std::vector<ValueId>> terms;
  };

  bool OnlySums();
  bool FindMatrices(const ir::Module& module, int64_t l2_bytes);
  DType TypeOf(ValueId value) const;
  int64_t PointsHint() { return ints_.EvaluateAtHints(NumPoints(ints_, points_)); }
  ValueId Clone(size_t step, int64_t point, int64_t row);
  Trip MakeTrip(int64_t rows);
  void AddTrip(int64_t rows, IntExpr begin, IntExpr end, Block& out);
  void AddParts(Block& out);
  void Finish(Block& out);
  void Clear(const Sum& sum, Block& out);
  Step& NewStep(Inst inst, IntExpr index = IntExpr());
  // Where the sum of `part` for `column` is, of the outer point at hand or of number `point`.
  IntExpr At(IntExpr point, IntExpr part, IntExpr column) {
    const IntExpr row = ints_.Add(ints_.Mul(point, num_parts_), part);
    return ints_.Add(ints_.Mul(row, Extent(ints_, lanes_)), column);
  }
  IntExpr PointAt(int64_t point) {
    return num_points_ > 1 ? ints_.Const(point) : PointNumber(ints_, points_);
  }

  ir::IntContext& ints_;
  const Nest& nest_;
  const IntExpr lanes_;
  const int width_;
  Builder builder_;
  std::vector<IntExpr> points_;  // outer loops but for the columns'
  int64_t num_points_ = 1;       // that are taken together
  // Rows of the matrix: each is a stream of memory. Side by side they share the reads and writes of
  // the sums, and memory has much under way. Of narrow elements it has too little in each of
  // several: those are read row by row, with rows to come fetched ahead.
  int64_t rows_at_once_ = 8;
  bool fetches_ahead_ = false;
  bool may_ = false;
  std::vector<Sum> sums_;
  IntExpr num_parts_, part_, begin_, end_;  // the columns under way
  std::deque<std::pair<Inst, Step>> made_;
  std::map<std::tuple<size_t, int64_t, int64_t>, ValueId> clones_;
  std::vector<const Step*> trip_;
  std::vector<std::pair<ir::BufferId, IntExpr>> ahead_;  // what the trip fetches
  std::vector<int> varies_;   // by step of phase 0: 1 with the row, 2 with the outer point
  std::vector<bool> matrix_;  // by step of phase 0: a load of FindMatrices
};

DType ColumnSums::TypeOf(ValueId value) const {
  for (const Step& step : nest_.phases[0].steps) {
    if (step.inst->result == value) return step.inst->dtype;
  }
  return DType::kBool;
}

// Whether the nest is a phase of sums, then what is done with them; sets what that needs.
bool ColumnSums::OnlySums() {
  const NestPhase& phase = nest_.phases[0];
  if (!IsOneReduction(nest_)) return false;
  absl::flat_hash_map<ValueId, int> varies;
  for (const Step& step : phase.steps) {
    const Inst& inst = *step.inst;
    if (inst.op == ScalarOp::kStore || inst.op == ScalarOp::kScan) return false;
    int how = (Uses(step, {phase.inner.back()}) ? 1 : 0) + (Uses(step, points_) ? 2 : 0);
    for (ValueId id : inst.operands) how |= varies[id];
    if (inst.result >= 0) varies[inst.result] = how;
    varies_.push_back(how);
    if (inst.op != ScalarOp::kReduce) continue;
    const DType dtype = TypeOf(inst.operands[0]);
    if (!IsTaken(inst.reduce_kind) || dtype != inst.dtype || !IsFloat(dtype)) return false;
    // Sums of narrow elements would be rounded again and again.
    if (inst.reduce_kind == ir::ReduceKind::kSum && DTypeSize(dtype) < 4) return false;
    sums_.push_back({&inst});
  }
  return !sums_.empty();
}

// The loads that walk rows of many columns of what the cache does not hold.
bool ColumnSums::FindMatrices(const ir::Module& module, int64_t l2_bytes) {
  constexpr int64_t kLeastRowBytes = 512;
  const NestPhase& phase = nest_.phases[0];
  const IntExpr k = phase.inner.back(), rows = Extent(ints_, k);
  bool found = false, shared = false;  // by outer points
  matrix_.assign(phase.steps.size(), false);
  for (size_t i = 0; i < phase.steps.size(); ++i) {
    const Step& step = phase.steps[i];
    const Inst& inst = *step.inst;
    if (inst.op != ScalarOp::kLoad || !inst.operands.empty()) continue;
    const IntExpr along_lane = ints_.CoefficientOf(step.index, lanes_);
    const IntExpr along_row = ints_.CoefficientOf(step.index, k);
    if (!along_lane || !along_lane.is_const(1) || !along_row) continue;
    const int64_t size = DTypeSize(inst.dtype);
    const IntExpr bytes = SizeBytes(ints_, module.buffers[inst.buffer]);
    if (ints_.EvaluateAtHints(bytes) < l2_bytes) continue;
    if (ints_.EvaluateAtHints(along_row) * size < kLeastRowBytes) continue;
    found = true;
    matrix_[i] = true;
    shared |= (varies_[i] & 2) == 0;
    fetches_ahead_ |= size < 4;
  }
  if (!found || ExtentHint(ints_, k) < kLeastRows || ExtentHint(ints_, lanes_) < width_) {
    return false;
  }
  // Many outer points are tasks enough.
  const bool is_many = PointsHint() >= 2 * kParts;
  num_parts_ =
      ints_.Max(ints_.CeilDiv(rows, ints_.Const(kMostRows)), ints_.Const(is_many ? 1 : kParts));
  num_parts_ = ints_.Min(num_parts_, ints_.CeilDiv(rows, ints_.Const(kLeastRows)));
  num_parts_ = ints_.Max(num_parts_, ints_.Const(1));
  // The outer points share a matrix, or each has tasks of its own.
  const IntExpr count = NumPoints(ints_, points_);
  if (shared && count.is_const() && count.value() <= kMostPoints) {
    num_points_ = count.value();
  } else {
    for (int& how : varies_) how &= 1;
  }
  rows_at_once_ = fetches_ahead_ ? 1 : num_points_ > 1 ? 4 : 8;
  return true;
}

Step& ColumnSums::NewStep(Inst inst, IntExpr index) {
  auto& [kept, step] = made_.emplace_back(std::move(inst), Step{nullptr, index});
  step.inst = &kept;
  return step;
}

// The value that step number `number` of phase 0 has for an outer point and a row after the trip's
// first; the steps that give it are appended to the trip.
ValueId ColumnSums::Clone(size_t number, int64_t point, int64_t row) {
  const NestPhase& phase = nest_.phases[0];
  const Step& step = phase.steps[number];
  if ((varies_[number] & 1) == 0) row = 0;
  if ((varies_[number] & 2) == 0) point = 0;
  const auto [known, is_new] = clones_.try_emplace({number, point, row}, ir::kNoValue);
  if (!is_new) return known->second;
  Inst inst = *step.inst;
  for (ValueId& id : inst.operands) {
    for (size_t i = 0; i < number; ++i) {
      if (phase.steps[i].inst->result != id) continue;
      id = Clone(i, point, row);
      break;
    }
  }
  inst.result = builder_.NewValue();
  IntExpr index = step.index;
  if (index) {
    ir::IntContext::VarMap at;
    const IntExpr k = phase.inner.back();
    if (row > 0) at[k] = ints_.Add(k, row);
    int64_t rest = point;
    for (size_t i = points_.size(); num_points_ > 1 && i-- > 0;) {
      const int64_t extent = Extent(ints_, points_[i]).value();
      at[points_[i]] = ints_.Const(rest % extent);
      rest /= extent;
    }
    index = ints_.Substitute(index, at);
  }
  if (fetches_ahead_ && matrix_[number]) {
    const IntExpr k = phase.inner.back();
    const int64_t row_bytes =
        ints_.EvaluateAtHints(ints_.CoefficientOf(index, k)) * DTypeSize(inst.dtype);
    const int64_t rows = std::max<int64_t>(kBytesAhead / std::max<int64_t>(row_bytes, 1), 1);
    ahead_.emplace_back(inst.buffer, ints_.Substitute(index, {{k, ints_.Add(k, rows)}}));
  }
  trip_.push_back(&NewStep(inst, index));
  return clones_[{number, point, row}] = inst.result;
}

ColumnSums::Trip ColumnSums::MakeTrip(int64_t rows) {
  clones_.clear();
  trip_.clear();
  ahead_.clear();
  Trip trip;
  const std::vector<Step>& steps = nest_.phases[0].steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].inst->op != ScalarOp::kReduce) continue;
    size_t term = 0;
    while (steps[term].inst->result != steps[i].inst->operands[0]) ++term;
    for (int64_t point = 0; point < num_points_; ++point) {
      std::vector<ValueId>& terms = trip.terms.emplace_back();
      for (int64_t row = 0; row < rows; ++row) terms.push_back(Clone(term, point, row));
    }
  }
  trip.steps = trip_;
  return trip;
}

// `rows` rows from each of [begin, end) in such steps on are added to the part's sums.
void ColumnSums::AddTrip(int64_t rows, IntExpr begin, IntExpr end, Block& out) {
  const IntExpr k = nest_.phases[0].inner.back();
  out.push_back({For{k, begin, end, ints_.Const(rows), Binding::kSerial, 1, {}}});
  Block& body = std::get<For>(out.back().value).body;
  Trip trip = MakeTrip(rows);
  // Pairs of terms, pairs of those, and then the sum.
  std::vector<std::pair<ValueId, ValueId>> sums;  // before, after
  for (size_t s = 0; s < trip.terms.size(); ++s) {
    std::vector<ValueId>& terms = trip.terms[s];
    const auto add = [&](ValueId a, ValueId b) {
      Inst inst;
      inst.op = *CombinerOf(sums_[s / num_points_].inst->reduce_kind);
      inst.dtype = sums_[s / num_points_].inst->dtype;
      inst.operands = {a, b};
      inst.result = builder_.NewValue();
      trip.steps.push_back(&NewStep(inst));
      return inst.result;
    };
    while (terms.size() > 1) {
      std::vector<ValueId> next;
      for (size_t i = 0; i + 1 < terms.size(); i += 2) next.push_back(add(terms[i], terms[i + 1]));
      if (terms.size() % 2 != 0) next.push_back(terms.back());
      terms = std::move(next);
    }
    const ValueId before = builder_.NewValue();
    builder_.SetLevel(before, 1);
    sums.emplace_back(before, add(before, terms[0]));
  }
  const auto for_each = [&](const auto& visit) {
    for (size_t s = 0; s < sums.size(); ++s) {
      const int64_t point = static_cast<int64_t>(s) % num_points_;
      visit(sums_[s / num_points_], sums[s], At(PointAt(point), part_, lanes_));
    }
  };
  builder_.AddNest(
      trip.steps, {{lanes_, begin_, end_, Binding::kVector, width_}},
      [&](Block& at) {
        for (const auto& [buffer, index] : ahead_) at.push_back({Prefetch{buffer, index, width_}});
        for_each([&](const Sum& sum, const auto& values, IntExpr index) {
          builder_.AddLoad(values.first, sum.inst->dtype, sum.parts, index, at);
        });
      },
      [&](Block& at) {
        for_each([&](const Sum& sum, const auto& values, IntExpr index) {
          builder_.AddStore(values.second, sum.inst->dtype, sum.parts, index, at);
        });
      },
      body);
}

// What the columns under way begin with.
void ColumnSums::Clear(const Sum& sum, Block& out) {
  const ir::ReduceKind kind = sum.inst->reduce_kind;
  for (int64_t point = 0; point < num_points_; ++point) {
    if (kind == ir::ReduceKind::kSum) {
      const Window to{-1, sum.parts, At(PointAt(point), part_, begin_)};
      out.push_back({Micro{MicroKind::kZero, {}, {to}, {ints_.Sub(end_, begin_)}}});
      continue;
    }
    Inst identity;
    identity.op = ScalarOp::kConst;
    identity.dtype = sum.inst->dtype;
    const double infinity = std::numeric_limits<double>::infinity();
    identity.immediate_float = kind == ir::ReduceKind::kMax ? -infinity : infinity;
    identity.result = builder_.NewValue();
    const Step& step = NewStep(identity);
    builder_.AddNest(
        {&step}, {{lanes_, begin_, end_, Binding::kVector, width_}}, [](Block&) {},
        [&](Block& at) {
          builder_.AddStore(identity.result, identity.dtype, sum.parts,
                            At(PointAt(point), part_, lanes_), at);
        },
        out);
  }
}

// The sums of each part of the rows.
void ColumnSums::AddParts(Block& out) {
  const IntExpr columns = Extent(ints_, lanes_), zero = ints_.Const(0), one = ints_.Const(1);
  const IntExpr size = ints_.Mul(ints_.Mul(NumPoints(ints_, points_), num_parts_), columns);
  for (Sum& sum : sums_) {
    sum.parts = builder_.Open({sum.inst->dtype, size, Space::kGlobal, {}, false}, out);
  }
  Block* at = &out;
  if (num_points_ == 1) {
    for (IntExpr var : points_) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  }
  at = &builder_.AddSteps(part_, num_parts_, zero, num_parts_, one, Binding::kTask, *at);
  const int64_t together = kColumns / num_points_;
  at = &builder_.AddSteps(begin_, columns, zero, columns, ints_.Const(together), Binding::kTask,
                          *at);
  end_ = builder_.Let(ints_.Min(ints_.Add(begin_, together), columns), columns, *at);
  for (const Sum& sum : sums_) Clear(sum, *at);
  // Whole trips for each part but the last.
  const IntExpr rows = Extent(ints_, nest_.phases[0].inner.back());
  const IntExpr each = ints_.Mul(
      ints_.CeilDiv(rows, ints_.Mul(num_parts_, ints_.Const(rows_at_once_))), rows_at_once_);
  const IntExpr first = builder_.Let(ints_.Min(ints_.Mul(part_, each), rows), rows, *at);
  const IntExpr last = builder_.Let(ints_.Min(ints_.Add(first, each), rows), rows, *at);
  const IntExpr rest = ints_.Mod(ints_.Sub(last, first), rows_at_once_);
  const IntExpr whole = builder_.Let(ints_.Sub(last, rest), rows, *at);
  AddTrip(rows_at_once_, first, whole, *at);
  if (rows_at_once_ > 1) AddTrip(1, whole, last, *at);
}

// The sums of all parts, and the later phases.
void ColumnSums::Finish(Block& out) {
  const std::vector<const Step*> steps = LaterSteps(nest_);
  Block* at = &out;
  for (IntExpr var : points_) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  const IntExpr columns = Extent(ints_, lanes_);
  IntExpr begin;
  at = &builder_.AddSteps(begin, columns, ints_.Const(0), columns, ints_.Const(kTotals),
                          Binding::kTask, *at);
  const IntExpr end = builder_.Let(ints_.Min(ints_.Add(begin, kTotals), columns), columns, *at);
  for (const Sum& sum : sums_) builder_.SetLevel(sum.inst->result, 1);
  builder_.AddNest(
      steps, {{lanes_, begin, end, Binding::kVector, width_}},
      [&](Block& vectors) {
        for (const Sum& sum : sums_) {
          const DType dtype = sum.inst->dtype;
          const Alloc all{dtype, ints_.Const(1), Space::kRegister, sum.inst->reduce_kind, false};
          const AllocId total = builder_.Open(all, vectors);
          IntExpr part;
          Block& body = builder_.AddSteps(part, num_parts_, ints_.Const(0), num_parts_,
                                          ints_.Const(1), Binding::kSerial, vectors);
          const ValueId value = builder_.NewValue();
          const IntExpr index = At(PointNumber(ints_, points_), part, lanes_);
          builder_.AddLoad(value, dtype, sum.parts, index, body);
          body.push_back({Update{total, ints_.Const(0), value, {}}});
          vectors.push_back({Combine{sum.inst->result, dtype, total}});
        }
      },
      [](Block&) {}, *at);
}

Tree ColumnSums::Run() && {
  builder_.tree().reasons.push_back(absl::StrCat(
      "columns are summed in parts, each of rows that lie together",
      num_points_ > 1 ? absl::StrCat(", for ", num_points_, " outer points at once") : ""));
  Block root;
  AddParts(root);
  Finish(root);
  builder_.tree().body = std::move(root);
  return std::move(builder_.tree());
}

}  // namespace

std::optional<Tree> ScheduleColumnSums(ir::Module& module, const ir::Kernel& kernel,
                                       const Nest& nest, const VectorPlan& plan, VectorIsa isa,
                                       const DeviceInfo& device) {
  ColumnSums sums(module, kernel, nest, plan, isa, device);
  if (!sums.may()) return std::nullopt;
  return std::move(sums).Run();
}

}  // namespace kiln::schedule::cpu
