// Reductions and matrix products of a kernel.
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/stage_impl.h"

namespace kiln::codegen::gcu {
namespace {

using ir::Inst;
using ir::ReduceKind;
using ir::ScalarOp;

// What a reduction folds with, over a tile and of two parts; and what it begins with.
struct Fold {
  Op reduce, combine;
  double identity;
};

std::optional<Fold> FoldOf(ReduceKind kind, Type type) {
  const double infinity = std::numeric_limits<double>::infinity();
  double least = -infinity, greatest = infinity;
  if (type == Type::kI32) {
    least = std::numeric_limits<int32_t>::min();
    greatest = std::numeric_limits<int32_t>::max();
  } else if (type == Type::kI8) {
    least = -128;
    greatest = 127;
  } else if (type == Type::kU8) {
    least = 0;
    greatest = 255;
  }
  switch (kind) {
    case ReduceKind::kSum:
      return Fold{Op::kReduceSum, Op::kVectorAdd, 0};
    case ReduceKind::kProd:
      return Fold{Op::kReduceProduct, Op::kVectorMultiply, 1};
    case ReduceKind::kMax:
      return Fold{Op::kReduceMaximum, Op::kVectorMaximum, least};
    case ReduceKind::kMin:
      return Fold{Op::kReduceMinimum, Op::kVectorMinimum, greatest};
    case ReduceKind::kAny:
      return Fold{Op::kReduceMaximum, Op::kVectorMaximum, 0};
    case ReduceKind::kAll:
      return Fold{Op::kReduceMinimum, Op::kVectorMinimum, 1};
    default:
      return std::nullopt;
  }
}

}  // namespace

// The accumulators of the phase's reductions, as they begin.
void StageCoder::InitializeSums(int phase, const Place& place) {
  for (const Inst& inst : form_.kernel.phases[phase].body) {
    if (inst.op != ScalarOp::kReduce) continue;
    const Type type = TypeOf(inst.dtype);
    const std::optional<Fold> fold = FoldOf(inst.reduce_kind, type);
    if (!fold) {
      code_.Fail(Lacks(absl::StrCat("reduction ", ir::ReduceKindName(inst.reduce_kind))));
      return;
    }
    const std::vector<bool> dims = OuterDims();
    View sums = NewView(type, dims, ir::kNoValue, place);
    Fill(sums, fold->identity, place);
    Of(inst.result) = sums;
  }
}

bool StageCoder::IsAddedAtOnce(const Inst& product, int phase, const Place& place) const {
  if (!form_.IsFactor(product) || !(HasLoops(phase) || (phase == 0 && HasSteps()))) return false;
  return absl::c_all_of(form_.LoopsOf(phase), [&](int l) {
    return form_.loops[l].phase < 0 || tiling_.serial[l] || place.extents[l].is(1);
  });
}

void StageCoder::Reduce(const Inst& inst, int phase, const Place& place) {
  const Inst& made = *definitions_[inst.operands[0]];
  if (IsAddedAtOnce(made, phase, place)) {
    View& sums = Of(inst.result);
    Apply(Op::kMultiplyAdd, sums, {&Of(made.operands[0]), &Of(made.operands[1]), &sums}, place);
    return;
  }
  const View* from = &Of(inst.operands[0]);
  std::vector<bool> outer = from->dims;
  std::vector<int> inner;  // that instructions reduce
  bool lacks = false;
  for (int l : form_.LoopsOf(phase)) {
    if (form_.loops[l].phase < 0) continue;
    outer[l] = false;
    if (tiling_.serial[l]) continue;
    inner.push_back(l);
    lacks = lacks || (!from->dims[l] && !place.extents[l].is(1));
  }
  const bool loops = HasLoops(phase) || (phase == 0 && HasSteps());
  View spread;
  if (lacks) {  // the same number for each iteration of a loop
    std::vector<bool> dims = from->dims;
    for (int l : inner) dims[l] = true;
    spread = NewView(from->type, dims, ir::kNoValue, place);
    Apply(Op::kVectorCopy, spread, {from}, place);
    from = &spread;
  }
  const auto reduced = [&](Op op, const View& to, int axis) {
    const int scope = code_.mark();
    Tile source = TileOf(*from, from->dims, place), target;
    target.type = to.type;
    target.address = Known(to.address);
    int at = 0, axis_at = 0;
    for (int l : tiling_.lanes) {
      if (!from->dims[l] || place.extents[l].is(1)) continue;
      const bool is_inner = absl::c_linear_search(inner, l);
      target.dims.push_back(
          {is_inner ? Known(1) : place.extents[l], Known(is_inner ? 0 : to.strides[l])});
      if (l == axis) axis_at = at;
      ++at;
    }
    if (axis < 0) {
      code_.Vector(op, target, {source});
    } else {
      const int d = code_.Describe(target), s = code_.Describe(source);
      code_.Emit(op, {d, s, axis_at});
    }
    code_.Release(scope);
  };
  if (ir::IsArg(inst.reduce_kind)) {
    int axis = -1;
    for (int l : inner) {
      if (place.extents[l].is(1)) continue;
      if (axis >= 0) code_.Fail(Lacks("place of an extreme in several dimensions"));
      axis = l;
    }
    if (loops) code_.Fail(Lacks("place of an extreme in a row that is longer than L1"));
    View out = NewView(Type::kI32, outer, ir::kNoValue, place);
    if (axis < 0) {
      Fill(out, 0, place);
    } else {
      reduced(inst.reduce_kind == ReduceKind::kArgMax ? Op::kArgMaximum : Op::kArgMinimum, out,
              axis);
    }
    GiveBack(spread);
    Of(inst.result) = out;
    return;
  }
  const std::optional<Fold> fold = FoldOf(inst.reduce_kind, TypeOf(inst.dtype));
  if (!fold) {
    code_.Fail(Lacks(absl::StrCat("reduction ", ir::ReduceKindName(inst.reduce_kind))));
    Of(inst.result) = Constant(TypeOf(inst.dtype), 0);
    return;
  }
  bool any = false;
  for (int l : inner) any = any || !place.extents[l].is(1);
  if (!loops) {
    View out = NewView(from->type, outer, ir::kNoValue, place);
    if (any) {
      reduced(fold->reduce, out, -1);
    } else {
      Apply(Op::kVectorCopy, out, {from}, place);
    }
    GiveBack(spread);
    Of(inst.result) = out;
    return;
  }
  View part;
  if (any) {
    part = NewView(from->type, outer, ir::kNoValue, place);
    reduced(fold->reduce, part, -1);
  }
  View& sums = Of(inst.result);
  Apply(fold->combine, sums, {&sums, any ? &part : from}, place);
  GiveBack(part);
  GiveBack(spread);
}

void StageCoder::MultiplyMatrices(const Place& place) {
  const schedule::gcu::MatrixRoles& roles = *tiling_.matrix;
  const std::vector<Inst>& body = form_.kernel.phases[0].body;
  const Inst& reduce = body.back();
  const bool steps = HasSteps();
  std::vector<int> serial;
  for (size_t l = 0; l < form_.loops.size(); ++l) {
    if (form_.loops[l].phase == 0 && tiling_.serial[l] && !form_.loops[l].extent.is_const(1)) {
      serial.push_back(static_cast<int>(l));
    }
  }
  const bool single = !steps && serial.empty();
  if (!steps && !single) InitializeSums(0, place);
  // The operands over all that was loaded.
  Place whole = place;
  for (int l : serial) whole.extents[l] = Known(form_.loops[l].extent.value());
  std::vector<bool> needed(views_.size(), false);
  needed[roles.a] = needed[roles.b] = true;
  for (size_t i = body.size(); i-- > 0;) {
    if (body[i].result == ir::kNoValue || !needed[body[i].result]) continue;
    const bool is_clip =
        body[i].op == ScalarOp::kLoad && body[i].has_mask && form_.AccessOf(body[i]).mask_is_clip;
    if (is_clip) continue;
    for (ir::ValueId operand : body[i].operands) needed[operand] = true;
  }
  for (const Inst& inst : body) {
    if (inst.result == ir::kNoValue) {
      code_.Fail(Lacks("store in the middle of a product"));
    } else if (needed[inst.result]) {
      Compute(inst, 0, whole);
    }
  }
  if (single) {
    const std::vector<bool> dims = OuterDims();
    Of(reduce.result) = NewView(Type::kF32, dims, ir::kNoValue, place);
  }
  const View &a = Of(roles.a), &b = Of(roles.b), &c = Of(reduce.result);
  std::vector<int> rows;
  int column = -1;
  for (int l : tiling_.lanes) {
    const bool long_one = !place.extents[l].is(1);
    if (absl::c_linear_search(roles.rows, l) && long_one) rows.push_back(l);
    if (absl::c_linear_search(roles.columns, l) && long_one) {
      if (column >= 0) code_.Fail(Lacks("product of more dimensions"));
      column = l;
    }
    if (absl::c_linear_search(roles.batch, l) && long_one) code_.Fail(Lacks("batch in a tile"));
  }
  if (rows.size() > 2) code_.Fail(Lacks("product of more rows"));
  Place inside = place;
  InSerialLoops(serial, 0, inside, [&](const Place& at) {
    const int scope = code_.mark();
    const auto operand = [&](const View& view, std::vector<int> loops) {
      Tile tile;
      tile.type = view.type;
      tile.address = AddressOf(view);
      for (int l : serial) {
        tile.address = code_.Add(
            tile.address, code_.Multiply(at.begins[l], Known(view.strides[l] * SizeOf(view.type))));
      }
      for (int l : loops) {
        tile.dims.push_back(l < 0 ? TileDim{Known(1), Known(0)}
                                  : TileDim{place.extents[l], Known(view.strides[l])});
      }
      return tile;
    };
    const auto with = [&](std::vector<int> loops, int last) {
      if (loops.empty()) loops.push_back(-1);
      loops.push_back(last);
      return loops;
    };
    const Tile to = operand(c, with(rows, column));
    Tile left = operand(a, with(rows, roles.depth));
    Tile right = operand(b, {roles.depth, column});
    if (tiling_.merged >= 0) {
      // Both loops are one along the merged one: it is innermost in both operands.
      const Scalar depth =
          code_.Multiply(place.extents[roles.depth], place.extents[tiling_.merged]);
      left.dims.back() = {depth, Known(a.strides[tiling_.merged])};
      right.dims.front() = {depth, Known(b.strides[tiling_.merged])};
    }
    code_.Vector(single ? Op::kMatrixMultiply : Op::kMatrixMultiplyAdd, to, {left, right});
    code_.Release(scope);
  });
  for (const Inst& inst : body) {
    if (inst.result != ir::kNoValue && inst.result != reduce.result) GiveBack(Of(inst.result));
  }
}

}  // namespace kiln::codegen::gcu
