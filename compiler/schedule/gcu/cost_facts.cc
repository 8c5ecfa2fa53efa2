#include "compiler/schedule/gcu/cost_facts.h"

#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"

namespace kiln::schedule::gcu {
namespace {

using ir::Inst;
using ir::ScalarOp;

constexpr size_t kMostLoops = 64;  // of a LoopSet

LoopSet Bit(size_t loop) {
  return loop < kMostLoops ? LoopSet{1} << loop : 0;
}

// The loops that the value has dimensions of.
LoopSet LoopsOf(const Form& form, const Inst& inst, const std::vector<LoopSet>& loops) {
  LoopSet out = 0;
  const bool clipped = inst.op == ScalarOp::kLoad && form.AccessOf(inst).mask_is_clip;
  if (!clipped) {
    for (ir::ValueId operand : inst.operands) out |= loops[operand];
  }
  for (size_t l = 0; l < form.loops.size(); ++l) {
    const bool outer = form.loops[l].phase < 0;
    if (inst.op == ScalarOp::kReduce && outer) out |= Bit(l);
    if (inst.op == ScalarOp::kReduce && !outer) out &= ~Bit(l);
    if (inst.op == ScalarOp::kIndex && ir::ContainsVar(inst.indices[0], form.loops[l].var)) {
      out |= Bit(l);
    }
    if (inst.op != ScalarOp::kLoad) continue;
    for (const Affine& index : form.AccessOf(inst).indices) {
      if (index.coefficients[l] != 0) out |= Bit(l);
    }
  }
  return out;
}

// Instructions of the device for one of a kernel, and their cycles a vector.
std::pair<int64_t, int64_t> PriceOf(ScalarOp op) {
  switch (op) {
    case ScalarOp::kSigmoid:
      return {4, 10};
    case ScalarOp::kExpm1:
      return {5, 11};
    case ScalarOp::kLog1p:
      return {9, 16};
    case ScalarOp::kExp2:
    case ScalarOp::kPow:
      return {1, 12};
    case ScalarOp::kLog2:
    case ScalarOp::kLog10:
      return {2, 5};
    case ScalarOp::kSin:
    case ScalarOp::kCos:
    case ScalarOp::kMod:
      return {1, 8};
    case ScalarOp::kDiv:
    case ScalarOp::kSqrt:
    case ScalarOp::kRsqrt:
      return {1, 4};
    default:
      return {1, ir::IsElementary(op) ? 4 : 1};
  }
}

// Outer loops with the same coefficients, inner loops with those of others that are as long.
bool IsSame(const Form& form, const Access& a, const Access& b) {
  if (a.inst->op != b.inst->op || a.inst->buffer != b.inst->buffer) return false;
  const auto coefficients = [&](const Affine& index, bool outer) {
    std::vector<std::pair<const ir::IntNode*, int64_t>> out;  // extent, coefficient
    for (size_t l = 0; l < form.loops.size(); ++l) {
      const bool is_outer = form.loops[l].phase < 0;
      if (is_outer != outer || (!outer && index.coefficients[l] == 0)) continue;
      out.emplace_back(form.loops[l].extent.node(), index.coefficients[l]);
    }
    if (!outer) absl::c_sort(out);
    return out;
  };
  for (size_t d = 0; d < a.indices.size(); ++d) {
    const Affine &x = a.indices[d], &y = b.indices[d];
    if (x.rest != y.rest || coefficients(x, true) != coefficients(y, true) ||
        coefficients(x, false) != coefficients(y, false)) {
      return false;
    }
  }
  return true;
}

// Nothing where the load stays inside, or bounds move from run to run of the kernel.
std::optional<CostModel::Facts::Reach::Clip> ClipOf(const ir::Module& module, const Access& access,
                                                    size_t dim) {
  const Clip& clip = access.clips.empty() ? Clip() : access.clips[dim];
  if (!clip.begin && !clip.end) return std::nullopt;
  const ir::IntExpr rest = access.indices[dim].rest;
  const ir::IntExpr size = module.buffers[access.inst->buffer].sizes[dim];
  for (const ir::IntExpr expr : {rest, clip.begin, clip.end}) {
    if (expr && ir::ContainsKind(expr, ir::IntKind::kVar)) return std::nullopt;
  }
  return CostModel::Facts::Reach::Clip{
      .rest = TypicalOf(*module.ints, rest),
      .begin = clip.begin ? TypicalOf(*module.ints, clip.begin) : 0,
      .end = TypicalOf(*module.ints, clip.end ? clip.end : size)};
}

}  // namespace

int64_t DeviceSize(DType dtype) {
  return dtype == DType::kI64 ? 4 : DTypeSize(dtype);
}

CostModel::Facts::Facts(const ir::Module& module, const Form& form, const InL2& in_l2)
    : form(form) {
  for (const Loop& loop : form.loops) {
    extents.push_back(TypicalOf(*module.ints, loop.extent));
    outer.push_back(loop.phase < 0);
  }
  for (const Access& access : form.accesses) {
    Reach& reach = reaches.emplace_back();
    const ir::Buffer& buffer = module.buffers[access.inst->buffer];
    reach.access = &access;
    reach.is_load = access.inst->op == ScalarOp::kLoad;
    reach.in_l2 = in_l2[access.inst->buffer];
    reach.given = !reach.in_l2 && (buffer.kind == ir::BufferKind::kInput ||
                                   buffer.kind == ir::BufferKind::kPrepared);
    is_lone = is_lone && !reach.in_l2;
    reach.size = DeviceSize(buffer.dtype);
    reach.linear.assign(form.loops.size(), 0);
    reach.depends.assign(form.loops.size(), false);
    for (size_t d = 0; d < access.indices.size(); ++d) {
      reach.strides.push_back(TypicalOf(*module.ints, buffer.strides[d]));
      reach.dims.push_back(static_cast<int>(d));
      reach.clips.push_back(ClipOf(module, access, d));
      for (size_t l = 0; l < form.loops.size(); ++l) {
        const int64_t c = access.indices[d].coefficients[l];
        reach.linear[l] += c * reach.strides[d];
        if (c != 0) reach.depends[l] = true;
      }
    }
    absl::c_stable_sort(reach.dims,
                        [&](int a, int b) { return reach.strides[a] > reach.strides[b]; });
    for (size_t i = 0; i + 1 < reaches.size() && reach.is_load; ++i) {
      if (IsSame(form, *reaches[i].access, access)) {
        reach.same_as = static_cast<int>(i);
        break;
      }
    }
  }
  const auto count = static_cast<size_t>(form.kernel.num_values);
  std::vector<LoopSet> loops(count, 0);
  std::vector<Operand> operands(count);
  std::vector<std::vector<Operand>> factors(count);  // by value that is a factor
  for (size_t p = 0; p < form.kernel.phases.size(); ++p) {
    Phase& phase = phases.emplace_back();
    phase.loops = form.LoopsOf(static_cast<int>(p));
    const std::vector<Inst>& body = form.kernel.phases[p].body;
    for (const Inst& inst : body) {
      if (inst.op == ScalarOp::kStore) phase.stored_bytes += DeviceSize(inst.dtype);
      if (inst.result == ir::kNoValue) continue;
      loops[inst.result] = LoopsOf(form, inst, loops);
      Operand& result = operands[inst.result];
      result = {.reach = -1, .loops = loops[inst.result], .size = DeviceSize(inst.dtype)};
      const bool is_load = inst.op == ScalarOp::kLoad;
      if (is_load) {
        const Access& access = form.AccessOf(inst);
        result.reach = static_cast<int>(&access - form.accesses.data());
        if (!inst.has_mask || access.mask_is_clip) continue;
      }
      if (inst.op == ScalarOp::kConst || !form.needed[inst.result]) continue;
      Step& step = phase.steps.emplace_back();
      std::tie(step.count, step.cycles) = PriceOf(inst.op);
      step.is_reduce = inst.op == ScalarOp::kReduce;
      step.is_factor = form.IsFactor(inst);
      step.loops = loops[inst.result];
      for (const ir::ValueId operand : inst.operands) {
        step.operands.push_back(operands[operand]);
        if (!step.is_reduce) continue;
        step.loops = loops[operand];
        step.factors = factors[operand];
      }
      if (step.is_factor) factors[inst.result] = step.operands;
      if (is_load) result.reach = -1;  // what the mask has chosen
    }
  }
}

}  // namespace kiln::schedule::gcu
