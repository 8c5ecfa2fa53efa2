#include "compiler/schedule/ptx/split_reductions.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/ptx/team_plan.h"
#include "compiler/schedule/split_sums.h"

namespace kiln::schedule::ptx {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

// Elements that a thread should reduce of a part before cutting costs more than it gives.
constexpr int64_t kLeastPart = 32;
// Of columns the kernel that reduces the parts takes them one after another. Of few columns a
// column's parts lie beside each other, for threads to share: so they may be more.
constexpr int64_t kMostPartsOfColumns = 256, kMostParts = 1024;
constexpr int64_t kMostScattered = 1 << 18;  // parts of all columns
// Of those, for each element that is read: what is written and read again takes no time beside it.
constexpr int64_t kElementsOfPart = 128, kLeastMoreParts = 1 << 16;

// Whether all that the kernel's loops do is to reduce, and to store what only other kernels load;
// later phases take the results.
bool IsReduction(const Kernel& kernel) {
  if (kernel.schedule != ir::Schedule::kLoops || kernel.phases.empty()) return false;
  const Phase& first = kernel.phases[0];
  if (first.inner.empty() || ir::IsOrdered(first)) return false;
  const auto has_loops = [](const Phase& phase) { return !phase.inner.empty(); };
  if (std::any_of(kernel.phases.begin() + 1, kernel.phases.end(), has_loops)) return false;
  absl::flat_hash_set<ir::BufferId> stored;
  bool reduces = false;
  for (const Inst& inst : first.body) {
    if (inst.op == ScalarOp::kStore) {
      stored.insert(inst.buffer);
      const bool by_all = absl::c_all_of(first.inner, [&](IntExpr var) {
        return absl::c_any_of(inst.indices, [&](IntExpr e) { return ir::ContainsVar(e, var); });
      });
      if (!by_all) return false;
    }
    if (inst.op != ScalarOp::kReduce) continue;
    if (ir::IsArg(inst.reduce_kind) || inst.dtype != ComputeType(inst.dtype)) return false;
    reduces = true;
  }
  return reduces &&
         std::all_of(kernel.phases.begin() + 1, kernel.phases.end(), [&](const Phase& phase) {
           return absl::c_none_of(phase.body, [&](const Inst& inst) {
             return inst.op != ScalarOp::kReduce && stored.contains(inst.buffer);
           });
         });
}

bool Stores(const Phase& phase) {
  return absl::c_any_of(phase.body, [](const Inst& i) { return i.op == ScalarOp::kStore; });
}

class Splitter {
 public:
  Splitter(ir::Module& module, const DeviceInfo& device)
      : module_(module), ints_(*module.ints), device_(device) {}

  // The kernel that reduces parts, and changes `kernel`; nothing where it stays as it is.
  std::optional<Kernel> Split(Kernel& kernel) {
    // What is made once for many calls needs no haste.
    if (!IsReduction(kernel) || ir::StoresPrepared(module_, {&kernel, 1})) return std::nullopt;
    const int64_t wanted = CountParts(kernel);
    if (wanted < 2) return std::nullopt;
    parts_beside_ = of_columns_ && wanted * PointsHint(ints_, kernel.outer) <= kMostScattered;
    // A store has no mask.
    ChooseLoops(kernel.phases[0].inner, wanted, /*exactly=*/Stores(kernel.phases[0]));
    if (!loop_ && PointsHint(ints_, whole_) < 2) return std::nullopt;
    return Cut(kernel);
  }

 private:
  // How many parts of all that a point reduces are worth while.
  int64_t CountParts(const Kernel& kernel) {
    absl::StatusOr<Nest> nest = BuildNest(module_, kernel, /*collapse=*/true);
    if (!nest.ok()) return 1;
    const TeamPlan plan = PlanTeam(ints_, *nest, device_);
    of_columns_ = static_cast<bool>(plan.outer);
    const int64_t points = PointsHint(ints_, kernel.outer);
    int64_t threads = points;
    if (plan.outer) {
      threads /= plan.most_lanes;
    } else {
      threads *= plan.team;
    }
    // Of a row a thread's share is what its team leaves it.
    const int64_t length = PointsHint(ints_, kernel.phases[0].inner);
    const int64_t most = length / (kLeastPart * (plan.outer ? 1 : plan.team));
    const int64_t fill = plan.outer ? kThreadsOfColumns : kThreadsOfRows;
    const int64_t wanted = ComputeUnits(device_) * fill / std::max<int64_t>(1, threads);
    const int64_t more =
        std::clamp(length * points / kElementsOfPart, kLeastMoreParts, kMostScattered);
    const int64_t of_columns = std::max(kMostPartsOfColumns, more / std::max<int64_t>(1, points));
    return std::min({wanted, most, plan.outer ? std::min(kMostParts, of_columns) : kMostParts});
  }

  // Loops that make some `wanted` parts: outer ones whole, one after another, then pieces of the
  // next, equal ones where parts are to be made `exactly`.
  void ChooseLoops(const std::vector<IntExpr>& loops, int64_t wanted, bool exactly) {
    whole_.clear();
    loop_ = IntExpr();
    for (IntExpr var : loops) {
      const int64_t extent = ExtentHint(ints_, var);
      if (extent > wanted) {
        pieces_ = DivideInto(Extent(ints_, var), wanted, exactly);
        if (pieces_ > 1) loop_ = var;
        return;
      }
      whole_.push_back(var);
      wanted /= std::max<int64_t>(1, extent);
    }
  }

  // Whether all pieces of the loop that is cut are equally long.
  bool IsExact() {
    const IntExpr extent = Extent(ints_, loop_);
    return extent.is_const() && extent.value() % pieces_ == 0;
  }

  // As near to `wanted` pieces as make them equal, where some do; else 1 if they have to be.
  static int64_t DivideInto(IntExpr extent, int64_t wanted, bool exactly) {
    if (!extent.is_const()) return exactly ? 1 : wanted;
    const auto divides = [&](int64_t n) { return extent.value() % n == 0; };
    for (int64_t n = wanted; 2 * n > wanted && n > 1; --n) {
      if (divides(n)) return n;
    }
    if (!exactly) return wanted;
    int64_t n = wanted + 1;
    while (n < 2 * wanted && !divides(n)) ++n;
    return divides(n) ? n : 1;
  }

  Kernel Cut(Kernel& kernel) {
    Kernel first;
    first.name = absl::StrCat(kernel.name, "_parts");
    first.origins = kernel.origins;
    first.num_values = kernel.num_values;

    // Its loops: those of the parts, those of the kernel, and the rest of the cut ones.
    IntContext::VarMap vars;
    Phase merge;
    const auto add_part = [&](IntExpr extent) {
      merge.inner.push_back(ints_.NewVar(extent));
      first.outer.push_back(ints_.NewVar(extent));
      return first.outer.back();
    };
    for (IntExpr var : whole_) vars[var] = add_part(var.extent());
    IntExpr part, extent, length;
    if (loop_) {
      extent = Extent(ints_, loop_);
      length = ints_.CeilDiv(extent, ints_.Const(pieces_));
      part = add_part(ints_.Const(pieces_));
    }
    for (IntExpr var : kernel.outer) {
      first.outer.push_back(vars[var] = ints_.NewVar(var.extent()));
    }
    Phase& body = first.phases.emplace_back();
    IntExpr place;  // in the cut loop
    for (IntExpr var : kernel.phases[0].inner) {
      if (absl::c_linear_search(whole_, var)) continue;
      const IntExpr mine = ints_.NewVar(var == loop_ ? length : var.extent());
      body.inner.push_back(mine);
      vars[var] = var == loop_ ? place = ints_.Add(ints_.Mul(part, length), mine) : mine;
    }
    const bool exact = !loop_ || IsExact();
    AddBody(kernel.phases[0], vars, exact ? IntExpr() : place, extent, first, body);

    // One buffer for each result: a part after another, or a column after another.
    const size_t parts = merge.inner.size();
    const auto in_order = [&](std::vector<IntExpr> at) {
      if (parts_beside_) std::rotate(at.begin(), at.begin() + parts, at.end());
      return at;
    };
    Phase& last = first.phases.emplace_back();
    for (const Inst& inst : kernel.phases[0].body) {
      if (inst.op != ScalarOp::kReduce) continue;
      const ir::BufferId buffer = AddParts(kernel, in_order(first.outer), inst);
      Inst store;
      store.op = ScalarOp::kStore;
      store.dtype = inst.dtype;
      store.operands = {inst.result};
      store.buffer = buffer;
      store.indices = in_order(first.outer);
      last.body.push_back(std::move(store));
      Inst load;
      load.op = ScalarOp::kLoad;
      load.dtype = inst.dtype;
      load.result = kernel.num_values++;
      load.buffer = buffer;
      load.indices = merge.inner;
      for (IntExpr var : kernel.outer) load.indices.push_back(var);
      load.indices = in_order(std::move(load.indices));
      Inst reduce = inst;
      reduce.operands = {load.result};
      merge.body.push_back(std::move(load));
      merge.body.push_back(std::move(reduce));
    }
    kernel.phases[0] = std::move(merge);
    return first;
  }

  // The phase's instructions at the parts' places; where `place` is set those past `extent` count
  // as what changes no result, and nothing is read there.
  void AddBody(const Phase& from, const IntContext::VarMap& vars, IntExpr place, IntExpr extent,
               Kernel& kernel, Phase& to) {
    const auto add = [&](Inst inst) {
      inst.result = kernel.num_values++;
      to.body.push_back(std::move(inst));
      return to.body.back().result;
    };
    const auto index = [&](IntExpr e) {
      Inst inst;
      inst.op = ScalarOp::kIndex;
      inst.dtype = DType::kI64;
      inst.indices = {e};
      return add(std::move(inst));
    };
    const auto operation = [&](ScalarOp op, DType dtype, std::vector<ValueId> operands) {
      Inst inst;
      inst.op = op;
      inst.dtype = dtype;
      inst.operands = std::move(operands);
      return add(std::move(inst));
    };
    ValueId inside = ir::kNoValue;
    if (place) {
      inside = operation(ScalarOp::kLt, DType::kBool, {index(place), index(extent)});
    }
    for (const Inst& original : from.body) {
      Inst inst = original;
      for (IntExpr& e : inst.indices) e = ints_.Substitute(e, vars);
      for (IntExpr& e : inst.checks) e = ints_.Substitute(e, vars);
      if (place && inst.op == ScalarOp::kLoad) {
        if (inst.has_mask) {
          inst.operands.back() =
              operation(ScalarOp::kAnd, DType::kBool, {inst.operands.back(), inside});
        } else {
          inst.operands.push_back(inside);
          inst.has_mask = true;
        }
      }
      if (place && inst.op == ScalarOp::kReduce) {
        Inst identity;
        identity.op = ScalarOp::kConst;
        identity.dtype = inst.dtype;
        SetIdentity(inst.reduce_kind, identity);
        const ValueId other = add(std::move(identity));
        inst.operands = {
            operation(ScalarOp::kSelect, inst.dtype, {inside, inst.operands[0], other})};
      }
      to.body.push_back(std::move(inst));
    }
  }

  ir::BufferId AddParts(const Kernel& kernel, const std::vector<IntExpr>& loops,
                        const Inst& reduce) {
    ir::Buffer buffer;
    buffer.name = absl::StrCat(kernel.name, "_part", reduce.result);
    buffer.dtype = reduce.dtype;
    buffer.kind = ir::BufferKind::kTemp;
    for (IntExpr var : loops) buffer.sizes.push_back(var.extent());
    buffer.strides = module_.ContiguousStrides(buffer.sizes);
    return module_.AddBuffer(std::move(buffer));
  }

  ir::Module& module_;
  IntContext& ints_;
  const DeviceInfo& device_;
  std::vector<IntExpr> whole_;  // loops of which each iteration is a part
  IntExpr loop_;                // the one that is cut into pieces_, or null
  int64_t pieces_ = 1;
  bool of_columns_ = false;    // lanes are of an outer loop
  bool parts_beside_ = false;  // in memory, those of a column
};

}  // namespace

void SplitReductions(ir::Module& module, const DeviceInfo& device) {
  Splitter splitter(module, device);
  std::vector<ir::Operation> operations;
  for (ir::Operation& operation : module.operations) {
    if (auto* kernel = std::get_if<Kernel>(&operation)) {
      if (std::optional<Kernel> parts = splitter.Split(*kernel)) {
        operations.emplace_back(*std::move(parts));
      }
    }
    operations.push_back(std::move(operation));
  }
  module.operations = std::move(operations);
}

}  // namespace kiln::schedule::ptx
