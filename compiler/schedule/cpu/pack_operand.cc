#include "compiler/schedule/cpu/pack_operand.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/cpu/contraction_plan.h"
#include "compiler/schedule/cpu/winograd_plan.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::ScalarOp;

using Loops = std::vector<IntExpr>;

// The loops of a kernel that each loop of its nest stands for, which has dropped those of one
// iteration and joined adjacent ones.
class Originals {
 public:
  explicit Originals(IntContext& ints) : ints_(ints) {}

  // False where the nest's loops are not made of the kernel's.
  bool Add(const Loops& joined, const Loops& loops) {
    size_t at = 0;
    for (IntExpr var : joined) {
      Loops& parts = parts_[var];
      IntExpr extent = ints_.Const(1);
      while (parts.empty() || extent != Extent(ints_, var)) {
        if (at == loops.size()) return false;
        const IntExpr part = loops[at++];
        if (Extent(ints_, part).is_const(1)) continue;
        extent = ints_.Mul(extent, Extent(ints_, part));
        parts.push_back(part);
      }
    }
    return true;
  }

  Loops Of(const Loops& joined) const {
    Loops out;
    for (IntExpr var : joined) {
      const Loops& parts = parts_.at(var);
      out.insert(out.end(), parts.begin(), parts.end());
    }
    return out;
  }

 private:
  IntContext& ints_;
  absl::flat_hash_map<IntExpr, Loops> parts_;
};

class Packer {
 public:
  Packer(ir::Module& module, Kernel& kernel, const Nest& nest, const ContractionPlan& plan,
         const Originals& originals)
      : module_(module),
        ints_(*module.ints),
        kernel_(kernel),
        closure_(Closure(nest.phases[0], plan.panel_value)),
        plan_(plan),
        batch_(originals.Of(plan.batch)),
        lanes_(originals.Of(plan.lanes)),
        k_(originals.Of(plan.k)) {}

  std::optional<Kernel> Pack(int64_t most_bytes, int64_t spare_bytes) {
    ir::Buffer buffer{absl::StrCat(kernel_.name, "_panels"),
                      plan_.panel_type,
                      PanelSizes(ints_, plan_),
                      {},
                      ir::BufferKind::kPrepared};
    buffer.strides = module_.ContiguousStrides(buffer.sizes);
    const IntExpr bytes = SizeBytes(ints_, buffer);
    if (!bytes.is_const() || bytes.value() > most_bytes) return std::nullopt;
    constexpr int kRows = kWinogradPlanes + kWinogradTaps;
    if (plan_.has_planes && bytes.value() / kRows * kWinogradPlanes > spare_bytes) {
      return std::nullopt;
    }
    panels_ = module_.AddBuffer(std::move(buffer));
    Kernel packing = plan_.has_planes ? MakeKernelOfPlanes() : MakeKernel();
    ReadPanels();
    return packing;
  }

 private:
  // The values that `loops` have at their point number `flat`.
  void Decode(IntExpr flat, const Loops& loops) {
    for (size_t i = loops.size(); i-- > 0;) {
      const IntExpr extent = Extent(ints_, loops[i]);
      at_[loops[i]] = i == 0 ? flat : ints_.Mod(flat, extent);
      flat = ints_.FloorDiv(flat, extent);
    }
  }

  Kernel EmptyKernel() {
    Kernel out;
    out.name = absl::StrCat(kernel_.name, "_panels");
    out.schedule = ir::Schedule::kPacking;
    out.origins = kernel_.origins;
    out.num_values = kernel_.num_values;
    for (const Loops* loops : {&kernel_.outer, &kernel_.phases[0].inner}) {
      for (IntExpr var : *loops) at_[var] = ints_.Const(0);  // those of one iteration stay so
    }
    return out;
  }

  // The last panel may have more places than there are lanes left: nobody reads those.
  void DecodeLane(IntExpr panel, IntExpr lane) {
    const IntExpr last = ints_.Add(plan_.num_lanes, -1);
    Decode(ints_.Min(ints_.Add(ints_.Mul(panel, plan_.panel_width()), lane), last), lanes_);
  }

  Inst StoreOf(ir::ValueId value, Loops indices) const {
    Inst store;
    store.op = ScalarOp::kStore;
    store.dtype = plan_.panel_type;
    store.operands = {value};
    store.buffer = panels_;
    store.indices = std::move(indices);
    return store;
  }

  Kernel MakeKernel() {
    Kernel out = EmptyKernel();
    for (IntExpr size : module_.buffers[panels_].sizes) out.outer.push_back(ints_.NewVar(size));
    const std::vector<IntExpr>& loop = out.outer;
    Decode(loop[0], batch_);
    DecodeLane(loop[1], loop[3]);
    Decode(plan_.pairs() ? ints_.Add(ints_.Mul(loop[2], 2), loop[4]) : loop[2], k_);
    std::vector<Inst>& body = out.phases.emplace_back().body;
    const ir::ValueId value = AddClosure(out);
    body.push_back(StoreOf(value, out.outer));
    return out;
  }

  // A panel's rows and those of its planes, of a channel and a lane at a time.
  Kernel MakeKernelOfPlanes() {
    Kernel out = EmptyKernel();
    const IntExpr width = ints_.Const(plan_.panel_width());
    const IntExpr channels = ints_.FloorDiv(plan_.num_k, ints_.Const(kWinogradTaps));
    for (IntExpr size : {module_.buffers[panels_].sizes[1], channels, width}) {
      out.outer.push_back(ints_.NewVar(size));
    }
    const IntExpr panel = out.outer[0], channel = out.outer[1], lane = out.outer[2];
    DecodeLane(panel, lane);
    std::vector<Inst>& body = out.phases.emplace_back().body;
    const auto make = [&](Inst inst) {
      inst.dtype = plan_.panel_type;
      inst.result = out.num_values++;
      body.push_back(std::move(inst));
      return body.back().result;
    };
    const auto op = [&](ScalarOp which, ir::ValueId a, ir::ValueId b) {
      return make({.op = which, .operands = {a, b}});
    };
    const auto store = [&](ir::ValueId value, IntExpr row) {
      body.push_back(StoreOf(value, {ints_.Const(0), panel, row, lane}));
    };

    constexpr int kTaps = 3, kPoints = 4;
    ir::ValueId taps[kTaps][kTaps];
    for (int tap = 0; tap < kWinogradTaps; ++tap) {
      const IntExpr k = ints_.Add(ints_.Mul(channel, kWinogradTaps), tap);
      Decode(k, k_);
      taps[tap / kTaps][tap % kTaps] = AddClosure(out);
      store(taps[tap / kTaps][tap % kTaps], k);
    }
    const ir::ValueId half = make({.op = ScalarOp::kConst, .immediate_float = 0.5});
    // The first, half of the sum of all with either sign of the middle one, and the last.
    const auto transform = [&](ir::ValueId a, ir::ValueId b, ir::ValueId c, ir::ValueId* to) {
      const ir::ValueId outer = op(ScalarOp::kMul, op(ScalarOp::kAdd, a, c), half);
      const ir::ValueId middle = op(ScalarOp::kMul, b, half);
      to[0] = a;
      to[1] = op(ScalarOp::kAdd, outer, middle);
      to[2] = op(ScalarOp::kSub, outer, middle);
      to[3] = c;
    };
    ir::ValueId columns[kTaps][kPoints];  // of each, what its taps give
    for (int i = 0; i < kTaps; ++i) transform(taps[0][i], taps[1][i], taps[2][i], columns[i]);
    for (int i = 0; i < kPoints; ++i) {
      ir::ValueId points[kPoints];
      transform(columns[0][i], columns[1][i], columns[2][i], points);
      for (int j = 0; j < kPoints; ++j) {
        const IntExpr plane = ints_.Mul(channels, kPoints * i + j);
        store(points[j], ints_.Add(ints_.Add(plan_.num_k, plane), channel));
      }
    }
    return out;
  }

  // The operand at the point at hand, computed anew; the value.
  ir::ValueId AddClosure(Kernel& out) {
    absl::flat_hash_map<ir::ValueId, ir::ValueId> made;
    for (const Step* step : closure_) {
      Inst& inst = out.phases[0].body.emplace_back(*step->inst);
      for (IntExpr& index : inst.indices) index = ints_.Substitute(index, at_);
      for (ir::ValueId& operand : inst.operands) operand = made.at(operand);
      inst.result = made[inst.result] = out.num_values++;
    }
    return made.at(plan_.panel_value);
  }

  // Makes the contraction load its operand from the panels.
  void ReadPanels() {
    std::vector<Inst>& body = kernel_.phases[0].body;
    Inst load;
    load.op = ScalarOp::kLoad;
    load.dtype = plan_.panel_type;
    load.result = plan_.panel_value;
    load.buffer = panels_;
    load.indices = PanelIndices(ints_, plan_, PointNumber(ints_, batch_),
                                PointNumber(ints_, lanes_), PointNumber(ints_, k_));
    for (Inst& inst : body) {
      if (inst.result == plan_.panel_value) inst = load;
    }
    // What only the operand needed.
    std::vector<bool> needed(kernel_.num_values, false);
    for (size_t i = body.size(); i-- > 0;) {
      const bool ends = i + 1 == body.size();
      if (!ends && !needed[body[i].result]) {
        body.erase(body.begin() + static_cast<ptrdiff_t>(i));
        continue;
      }
      for (ir::ValueId operand : body[i].operands) needed[operand] = true;
    }
  }

  ir::Module& module_;
  IntContext& ints_;
  Kernel& kernel_;
  const std::vector<const Step*> closure_;
  const ContractionPlan& plan_;
  const Loops batch_, lanes_, k_;  // of the kernel
  IntContext::VarMap at_;
  ir::BufferId panels_ = -1;
};

}  // namespace

absl::StatusOr<std::optional<Kernel>> PackOperand(ir::Module& module, Kernel& kernel,
                                                  int64_t most_bytes, int64_t spare_bytes,
                                                  const DeviceInfo& device) {
  if (kernel.schedule != ir::Schedule::kContraction) return std::nullopt;
  KILN_ASSIGN_OR_RETURN(Nest nest, BuildNest(module, kernel, /*collapse=*/true));
  for (const Preparing prepare : {Preparing::kPlanes, Preparing::kPanels}) {
    const std::optional<ContractionPlan> plan = PlanContraction(module, nest, device, prepare);
    if (!plan || !plan->may_prepare) return std::nullopt;
    Originals originals(*module.ints);
    if (!originals.Add(nest.outer, kernel.outer) ||
        !originals.Add(nest.phases[0].inner, kernel.phases[0].inner)) {
      return std::nullopt;
    }
    auto packing = Packer(module, kernel, nest, *plan, originals).Pack(most_bytes, spare_bytes);
    if (packing || !plan->has_planes) return packing;
  }
  return std::nullopt;
}

}  // namespace kiln::schedule::cpu
