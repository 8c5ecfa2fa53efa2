#include "compiler/schedule/gcu/form.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/gcu/split.h"
#include "proto/base/status_macros.h"

namespace kiln::schedule::gcu {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::IntKind;
using ir::ScalarOp;

constexpr int kMostSplits = 64;

class FormMaker {
 public:
  FormMaker(ir::Module& module, Form& form) : module_(module), ints_(*module.ints), form_(form) {}

  absl::Status Run() {
    ir::Kernel& kernel = form_.kernel;
    if (kernel.schedule == ir::Schedule::kSorting) return Lacks("sort");
    for (int i = 0; i < kMostSplits; ++i) {
      const std::optional<Split> split = FindSplit(ints_, kernel);
      if (!split) break;
      Apply(ints_, *split, kernel);
    }
    for (IntExpr var : kernel.outer) form_.loops.push_back({var, var.extent(), -1});
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      for (IntExpr var : kernel.phases[p].inner) {
        form_.loops.push_back({var, var.extent(), static_cast<int>(p)});
      }
    }
    for (const Loop& loop : form_.loops) {
      // Of an inner loop it must be known that it is not.
      const bool may_be_empty =
          loop.phase >= 0 && !ints_.ProvablyLessEqual(ints_.Const(1), loop.extent);
      if (loop.extent.is_const(0) || may_be_empty) return Lacks("empty loop");
    }
    form_.types.assign(static_cast<size_t>(kernel.num_values), DType::kF32);
    ranges_.resize(form_.types.size());
    definitions_.assign(form_.types.size(), nullptr);
    for (const ir::Phase& phase : kernel.phases) {
      if (ir::IsOrdered(phase)) return Lacks("scan or scatter");
    }
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      for (const Inst& inst : kernel.phases[p].body) {
        if (inst.result != ir::kNoValue) definitions_[inst.result] = &inst;
        KILN_RETURN_IF_ERROR(Type(inst));
        if (inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore) {
          KILN_RETURN_IF_ERROR(AddAccess(static_cast<int>(p), inst));
        }
      }
    }
    FindNeeded();
    return absl::OkStatus();
  }

 private:
  void FindNeeded() {
    form_.needed.assign(form_.types.size(), false);
    for (auto phase = form_.kernel.phases.rbegin(); phase != form_.kernel.phases.rend(); ++phase) {
      for (auto inst = phase->body.rbegin(); inst != phase->body.rend(); ++inst) {
        if (inst->result != ir::kNoValue && !form_.needed[inst->result]) continue;
        if (inst->op == ScalarOp::kLoad && form_.AccessOf(*inst).mask_is_clip) continue;
        for (ir::ValueId operand : inst->operands) form_.needed[operand] = true;
      }
    }
  }

  struct Range {
    int64_t min = 0, max = 0;
  };

  static bool IsOnDevice(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
           dtype == DType::kI32 || dtype == DType::kI8 || dtype == DType::kU8 ||
           dtype == DType::kBool;
  }

  absl::Status Type(const Inst& inst) {
    if (inst.result == ir::kNoValue) {
      return IsOnDevice(inst.dtype)
                 ? absl::OkStatus()
                 : Lacks(absl::StrCat("elements of type ", DTypeName(inst.dtype)));
    }
    if (inst.dtype == DType::kI64) return TypeIndex(inst);
    if (!IsOnDevice(inst.dtype)) {
      return Lacks(absl::StrCat("numbers of type ", DTypeName(inst.dtype)));
    }
    form_.types[inst.result] = inst.dtype;
    return absl::OkStatus();
  }

  // A 64-bit value that provably fits 32 bits, as all that led to it does.
  absl::Status TypeIndex(const Inst& inst) {
    Range range;
    const auto of = [&](size_t i) { return ranges_[inst.operands[i]]; };
    const auto wide = [&](size_t i) {
      return definitions_[inst.operands[i]]->dtype == DType::kI64;
    };
    switch (inst.op) {
      case ScalarOp::kConst:
        range = {inst.immediate_int, inst.immediate_int};
        break;
      case ScalarOp::kIndex: {
        const ir::IntRange bounds = inst.indices[0].range();
        range = {bounds.min, bounds.max};
        break;
      }
      case ScalarOp::kAdd:
        range = {of(0).min + of(1).min, of(0).max + of(1).max};
        break;
      case ScalarOp::kSub:
        range = {of(0).min - of(1).max, of(0).max - of(1).min};
        break;
      case ScalarOp::kMul: {
        const auto [low, high] = std::minmax({of(0).min * of(1).min, of(0).min * of(1).max,
                                              of(0).max * of(1).min, of(0).max * of(1).max});
        range = {low, high};
        break;
      }
      case ScalarOp::kNeg:
        range = {-of(0).max, -of(0).min};
        break;
      case ScalarOp::kMin:
        range = {std::min(of(0).min, of(1).min), std::min(of(0).max, of(1).max)};
        break;
      case ScalarOp::kMax:
        range = {std::max(of(0).min, of(1).min), std::max(of(0).max, of(1).max)};
        break;
      case ScalarOp::kSelect:
        range = {std::min(of(1).min, of(2).min), std::max(of(1).max, of(2).max)};
        break;
      case ScalarOp::kFloorDiv:
      case ScalarOp::kMod:
        if (of(1).min != of(1).max || of(1).min <= 0 || of(1).max > kMostIndex) {
          return Lacks("64-bit division");
        }
        range = inst.op == ScalarOp::kMod
                    ? Range{0, of(1).max - 1}
                    : Range{std::min<int64_t>(of(0).min, 0), std::max<int64_t>(of(0).max, 0)};
        break;
      case ScalarOp::kCast: {
        const DType from = definitions_[inst.operands[0]]->dtype;
        if (wide(0)) {
          range = of(0);
        } else if (from == DType::kBool || from == DType::kU8) {
          range = {0, 255};
        } else if (from == DType::kI8) {
          range = {-128, 127};
        } else {
          return Lacks("numbers of type i64");
        }
        break;
      }
      default:
        return Lacks("numbers of type i64");
    }
    if (range.min < -kMostIndex || range.max > kMostIndex) return Lacks("indices beyond 2^30");
    ranges_[inst.result] = range;
    form_.types[inst.result] = DType::kI32;
    return absl::OkStatus();
  }

  absl::Status AddAccess(int phase, const Inst& inst) {
    if (inst.accumulates) return Lacks("scatter");
    Access access;
    access.inst = &inst;
    access.phase = phase;
    for (IntExpr index : inst.indices) {
      std::optional<Affine> affine;
      if (!ir::ContainsKind(index, IntKind::kIndirect)) {
        affine = AffineOf(ints_, form_.loops, index);
      }
      if (!affine) return Lacks("access at an index that is no sum of loops");
      access.indices.push_back(*std::move(affine));
    }
    if (!inst.checks.empty()) return Lacks("check of an index");
    access.clips.resize(inst.indices.size());
    if (inst.has_mask) FindClips(inst, access);
    form_.accesses.push_back(std::move(access));
    return absl::OkStatus();
  }

  void FindClips(const Inst& inst, Access& access) {
    access.mask_is_clip = AddTerms(inst, inst.operands.back(), access);
    const ir::Buffer& buffer = module_.buffers[inst.buffer];
    for (size_t d = 0; d < access.clips.size(); ++d) {
      Clip& clip = access.clips[d];
      const IntExpr index = inst.indices[d];
      const bool inside = ints_.ProvablyLessEqual(ints_.Const(0), index) &&
                          ints_.ProvablyLess(index, buffer.sizes[d]);
      if (!access.mask_is_clip) clip = Clip();
      if (inside || clip.begin || clip.end) continue;
      clip.begin = ints_.Const(0);
    }
  }

  // Whether the value is a conjunction of bounds of the load's own indices, which it adds.
  bool AddTerms(const Inst& load, ir::ValueId value, Access& access) {
    const Inst* inst = definitions_[value];
    if (inst->op == ScalarOp::kAnd) {
      return AddTerms(load, inst->operands[0], access) && AddTerms(load, inst->operands[1], access);
    }
    ScalarOp op = inst->op;
    if (op != ScalarOp::kGe && op != ScalarOp::kGt && op != ScalarOp::kLt && op != ScalarOp::kLe) {
      return false;
    }
    const IntExpr left = IndexOf(inst->operands[0]), right = IndexOf(inst->operands[1]);
    if (!left || !right) return false;
    // left - right >= 0, or > 0, ...
    for (size_t d = 0; d < load.indices.size(); ++d) {
      for (const bool swapped : {false, true}) {
        const IntExpr side = swapped ? right : left, other = swapped ? left : right;
        if (HasLoops(other)) continue;
        const IntExpr shift = ints_.Sub(load.indices[d], side);
        if (HasLoops(shift)) continue;
        if (HasLoops(load.indices[d]) == false) continue;
        // side OP other  <=>  index OP other + shift
        const IntExpr bound = ints_.Add(other, shift);
        const bool lower = (op == ScalarOp::kGe || op == ScalarOp::kGt) != swapped;
        const bool strict = op == ScalarOp::kGt || op == ScalarOp::kLt;
        Clip& clip = access.clips[d];
        if (lower) {
          const IntExpr begin = strict ? ints_.Add(bound, 1) : bound;
          clip.begin = clip.begin ? ints_.Max(clip.begin, begin) : begin;
        } else {
          const IntExpr end = strict ? bound : ints_.Add(bound, 1);
          clip.end = clip.end ? ints_.Min(clip.end, end) : end;
        }
        return true;
      }
    }
    return false;
  }

  // Other variables are known before a tile begins.
  bool HasLoops(IntExpr expr) const {
    return absl::c_any_of(form_.loops,
                          [&](const Loop& loop) { return ir::ContainsVar(expr, loop.var); });
  }

  // The value as an expression: an index or a constant; null for others.
  IntExpr IndexOf(ir::ValueId value) const {
    const Inst* inst = definitions_[value];
    if (inst->op == ScalarOp::kIndex) return inst->indices[0];
    if (inst->op == ScalarOp::kConst && inst->dtype == DType::kI64) {
      return ints_.Const(inst->immediate_int);
    }
    return IntExpr();
  }

  static constexpr int64_t kMostIndex = int64_t{1} << 30;

  ir::Module& module_;
  ir::IntContext& ints_;
  Form& form_;
  std::vector<Range> ranges_;             // by value, of 64-bit ones
  std::vector<const Inst*> definitions_;  // by value
};

}  // namespace

absl::Status Lacks(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("the GCU has no ", what));
}

const Access& Form::AccessOf(const Inst& inst) const {
  return *absl::c_find_if(accesses, [&](const Access& access) { return access.inst == &inst; });
}

bool Form::IsFactor(const ir::Inst& product) const {
  if (product.op != ScalarOp::kMul || product.dtype != DType::kF32) return false;
  int uses = 0;
  bool summed = false;
  for (const ir::Phase& phase : kernel.phases) {
    const bool own =
        absl::c_any_of(phase.body, [&](const Inst& inst) { return inst.result == product.result; });
    for (const Inst& inst : phase.body) {
      uses += static_cast<int>(absl::c_count(inst.operands, product.result));
      summed = summed ||
               (own && inst.op == ScalarOp::kReduce && inst.reduce_kind == ir::ReduceKind::kSum &&
                inst.operands[0] == product.result && inst.dtype == DType::kF32);
    }
  }
  return summed && uses == 1;
}

std::vector<int> Form::LoopsOf(int phase) const {
  std::vector<int> out;
  for (size_t i = 0; i < loops.size(); ++i) {
    if (loops[i].phase < 0 || loops[i].phase == phase) out.push_back(static_cast<int>(i));
  }
  return out;
}

std::optional<Affine> AffineOf(ir::IntContext& ints, const std::vector<Loop>& loops, IntExpr expr) {
  Affine affine;
  ir::IntContext::VarMap zeros;
  for (const Loop& loop : loops) {
    const IntExpr coefficient = ints.CoefficientOf(expr, loop.var);
    if (!coefficient || !coefficient.is_const()) return std::nullopt;
    affine.coefficients.push_back(coefficient.value());
    if (coefficient.value() != 0) zeros[loop.var] = ints.Const(0);
  }
  affine.rest = zeros.empty() ? expr : ints.Substitute(expr, zeros);
  return affine;
}

absl::StatusOr<Form> MakeForm(ir::Module& module, ir::Kernel kernel) {
  Form form;
  form.kernel = std::move(kernel);
  KILN_RETURN_IF_ERROR(FormMaker(module, form).Run());
  if (module.ints->IsExhausted()) return absl::UnimplementedError("indices grow too long");
  return form;
}

namespace {

// The loops that the value depends on, through all that it is made of.
void AddLoops(const Form& form, const std::vector<const Inst*>& definitions, ir::ValueId value,
              std::vector<bool>& loops) {
  const Inst& inst = *definitions[value];
  if (inst.op == ScalarOp::kLoad) {
    for (const Affine& index : form.AccessOf(inst).indices) {
      for (size_t l = 0; l < loops.size(); ++l) loops[l] = loops[l] || index.coefficients[l] != 0;
    }
  }
  if (inst.op == ScalarOp::kIndex) {
    for (size_t l = 0; l < loops.size(); ++l) {
      loops[l] = loops[l] || ir::ContainsVar(inst.indices[0], form.loops[l].var);
    }
  }
  // A mask that is a clip is in the load's own indices.
  const bool skips = inst.op == ScalarOp::kLoad && form.AccessOf(inst).mask_is_clip;
  if (skips) return;
  for (ir::ValueId operand : inst.operands) AddLoops(form, definitions, operand, loops);
}

}  // namespace

std::optional<MatrixRoles> RolesOf(const ir::Module& module, const Form& form) {
  const ir::Kernel& kernel = form.kernel;
  if (kernel.schedule != ir::Schedule::kContraction || kernel.phases[0].inner.empty()) {
    return std::nullopt;
  }
  const std::vector<Inst>& body = kernel.phases[0].body;
  std::vector<const Inst*> definitions(static_cast<size_t>(kernel.num_values), nullptr);
  for (const Inst& inst : body) {
    if (inst.result != ir::kNoValue) definitions[inst.result] = &inst;
  }
  const Inst& reduce = body.back();
  if (reduce.op != ScalarOp::kReduce || reduce.dtype != DType::kF32) return std::nullopt;
  const Inst& product = *definitions[reduce.operands[0]];
  if (product.op != ScalarOp::kMul) return std::nullopt;
  MatrixRoles roles;
  // Below a cast of 16 bits, which the matrix unit widens itself.
  const auto uncast = [&](ir::ValueId value) {
    const Inst& inst = *definitions[value];
    if (inst.op != ScalarOp::kCast) return value;
    const DType from = definitions[inst.operands[0]]->dtype;
    return from == DType::kF16 || from == DType::kBF16 ? inst.operands[0] : value;
  };
  roles.a = uncast(product.operands[0]);
  roles.b = uncast(product.operands[1]);
  if (definitions[roles.a]->dtype != definitions[roles.b]->dtype) {
    roles.a = product.operands[0];
    roles.b = product.operands[1];
  }
  roles.dtype = definitions[roles.a]->dtype;
  if (roles.dtype != DType::kF32 && roles.dtype != DType::kF16 && roles.dtype != DType::kBF16) {
    return std::nullopt;
  }
  std::vector<bool> in_a(form.loops.size()), in_b(form.loops.size());
  AddLoops(form, definitions, roles.a, in_a);
  AddLoops(form, definitions, roles.b, in_b);
  const auto extent = [&](size_t loop) {
    const IntExpr e = form.loops[loop].extent;
    return e.is_const() ? e.value() : module.ints->EvaluateAtHints(e);
  };
  int64_t best = 0;
  for (size_t l = 0; l < form.loops.size(); ++l) {
    const Loop& loop = form.loops[l];
    const int number = static_cast<int>(l);
    if (loop.phase == 0) {
      if (!in_a[l] || !in_b[l]) return std::nullopt;
      // As full as the unit's 16 lanes are.
      const int64_t e = extent(l), fill = e * 1000 / ((e + 15) / 16 * 16);
      const int64_t score = fill * 100'000 + std::min<int64_t>(e, 99'999);
      if (loop.extent.is_const() && score > best) {
        best = score;
        roles.depth = number;
      }
    } else if (loop.phase < 0) {
      if (in_a[l] && !in_b[l]) {
        roles.rows.push_back(number);
      } else if (in_b[l] && !in_a[l]) {
        roles.columns.push_back(number);
      } else {
        roles.batch.push_back(number);
      }
    }
  }
  if (roles.depth < 0) {
    // Sums over a symbolic extent: any one will do.
    for (size_t l = 0; l < form.loops.size(); ++l) {
      if (form.loops[l].phase == 0) roles.depth = static_cast<int>(l);
    }
  }
  const auto long_ones = [&](const std::vector<int>& loops) {
    int64_t product_of = 1;
    for (int l : loops) product_of *= extent(static_cast<size_t>(l));
    return product_of;
  };
  const auto count = [&](const std::vector<int>& loops) {
    return absl::c_count_if(loops, [&](int l) { return extent(static_cast<size_t>(l)) > 1; });
  };
  // B has one dimension beside the depth.
  if (count(roles.columns) > count(roles.rows)) {
    std::swap(roles.rows, roles.columns);
    std::swap(roles.a, roles.b);
  }
  // Depthwise: every channel by itself, which vectors do better.
  if (long_ones(roles.columns) < 4 && long_ones(roles.rows) * extent(roles.depth) < 4096) {
    return std::nullopt;
  }
  if (long_ones(roles.columns) == 1 && long_ones(roles.batch) >= 16) return std::nullopt;
  return roles;
}

}  // namespace kiln::schedule::gcu
