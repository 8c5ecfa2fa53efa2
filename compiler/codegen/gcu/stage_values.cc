// The arithmetic of a kernel on tiles in L1.
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/stage_impl.h"
#include "compiler/ir/half.h"

namespace kiln::codegen::gcu {
namespace {

using ir::Inst;
using ir::ScalarOp;

std::optional<Op> UnaryOp(ScalarOp op) {
  switch (op) {
    case ScalarOp::kNeg:
      return Op::kNegate;
    case ScalarOp::kAbs:
      return Op::kAbsolute;
    case ScalarOp::kSqrt:
      return Op::kSquareRoot;
    case ScalarOp::kRsqrt:
      return Op::kReciprocalRoot;
    case ScalarOp::kExp:
      return Op::kExponential;
    case ScalarOp::kLog:
      return Op::kLogarithm;
    case ScalarOp::kSin:
      return Op::kSine;
    case ScalarOp::kCos:
      return Op::kCosine;
    case ScalarOp::kTanh:
      return Op::kHyperbolicTangent;
    case ScalarOp::kErf:
      return Op::kErrorFunction;
    case ScalarOp::kFloor:
      return Op::kFloor;
    case ScalarOp::kCeil:
      return Op::kCeiling;
    case ScalarOp::kTrunc:
      return Op::kTruncate;
    case ScalarOp::kRound:
      return Op::kRound;
    default:
      return std::nullopt;
  }
}

std::optional<Op> BinaryOp(ScalarOp op, bool is_float) {
  switch (op) {
    case ScalarOp::kAdd:
      return Op::kVectorAdd;
    case ScalarOp::kSub:
      return Op::kVectorSubtract;
    case ScalarOp::kMul:
      return Op::kVectorMultiply;
    case ScalarOp::kDiv:
      return Op::kVectorDivide;
    case ScalarOp::kFloorDiv:
      return is_float ? std::nullopt : std::optional(Op::kVectorDivide);
    case ScalarOp::kMod:
      return Op::kVectorModulo;
    case ScalarOp::kMin:
      return Op::kVectorMinimum;
    case ScalarOp::kMax:
      return Op::kVectorMaximum;
    case ScalarOp::kPow:
      return Op::kVectorPower;
    case ScalarOp::kAnd:
      return Op::kVectorAnd;
    case ScalarOp::kOr:
      return Op::kVectorOr;
    case ScalarOp::kXor:
      return Op::kVectorXor;
    case ScalarOp::kEq:
      return Op::kVectorEqual;
    case ScalarOp::kNe:
      return Op::kVectorNotEqual;
    case ScalarOp::kLt:
    case ScalarOp::kGt:
      return Op::kVectorLess;
    case ScalarOp::kLe:
    case ScalarOp::kGe:
      return Op::kVectorLessEqual;
    default:
      return std::nullopt;
  }
}

bool IsFloatType(Type type) {
  return type == Type::kF32 || type == Type::kF16 || type == Type::kBF16;
}

}  // namespace

namespace {

// Neighbouring dimensions become one where they are one in every tile: instructions count whole
// vectors for each run.
void JoinDimensions(std::vector<Tile>& tiles) {
  for (size_t d = tiles[0].dims.size(); d-- > 1;) {
    const Scalar extent = tiles[0].dims[d].extent, around = tiles[0].dims[d - 1].extent;
    if (!extent.known() || !around.known()) continue;
    const bool join = absl::c_all_of(tiles, [&](const Tile& tile) {
      return tile.dims[d - 1].stride.value == tile.dims[d].stride.value * extent.value;
    });
    if (!join) continue;
    for (Tile& tile : tiles) {
      tile.dims[d - 1] = {Known(extent.value * around.value), tile.dims[d].stride};
      tile.dims.erase(tile.dims.begin() + static_cast<ptrdiff_t>(d));
    }
  }
}

}  // namespace

Type TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return Type::kF16;
    case DType::kBF16:
      return Type::kBF16;
    case DType::kI32:
    case DType::kI64:  // MakeForm has proven that it fits
      return Type::kI32;
    case DType::kI8:
      return Type::kI8;
    case DType::kU8:
    case DType::kBool:
      return Type::kU8;
    default:
      return Type::kF32;
  }
}

int64_t BitsOf(Type type, double number) {
  switch (type) {
    case Type::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(number));
    case Type::kF16:
      return ir::HalfFromDouble(number);
    case Type::kBF16:
      return ir::BFloat16FromDouble(number);
    default:
      return static_cast<int64_t>(number);
  }
}

double ImmediateOf(const Inst& inst) {
  const bool integral = inst.dtype == DType::kBool || IsInteger(inst.dtype);
  return integral ? static_cast<double>(inst.immediate_int) : inst.immediate_float;
}

bool StageCoder::IsStored(ir::ValueId value) const {
  return tokens_of_value_.contains(value);
}

void StageCoder::GiveBack(View& view) {
  if (view.slot >= 0) l1_.Give(view.slot);
  view.slot = -1;
}

View StageCoder::NewView(Type type, const std::vector<bool>& dims, ir::ValueId stored_as,
                         const Place&) {
  View view;
  view.type = type;
  view.dims = dims;
  view.strides.assign(form_.loops.size(), 0);
  int64_t elements = 1;
  for (size_t i = tiling_.lanes.size(); i-- > 0;) {
    const int l = tiling_.lanes[i];
    if (!dims[l]) continue;
    view.strides[l] = elements;
    elements *= tiling_.serial[l] ? form_.loops[l].extent.value() : tiling_.tile[l];
  }
  const int64_t bytes = elements * SizeOf(type);
  if (bytes > machine_.l1_bytes) {
    code_.Fail(
        absl::UnimplementedError(absl::StrCat("a tile of ", bytes, " bytes is larger than L1")));
    return view;
  }
  if (stored_as != ir::kNoValue && IsStored(stored_as)) {
    view.address = store_slots_.at(stored_as);
    for (int token : tokens_of_value_.at(stored_as)) code_.Wait(token);
    return view;
  }
  view.slot = l1_.Take(bytes);
  view.address = view.slot;
  return view;
}

View StageCoder::Like(Type type, std::initializer_list<const View*> operands, ir::ValueId stored_as,
                      const Place& place) {
  std::vector<bool> dims(form_.loops.size(), false);
  for (const View* operand : operands) {
    for (size_t l = 0; l < dims.size(); ++l) dims[l] = dims[l] || operand->dims[l];
  }
  return NewView(type, dims, stored_as, place);
}

Scalar StageCoder::AddressOf(const View& view) {
  Scalar address = Known(view.address);
  if (view.parity >= 0) address = code_.Add(InRegister(view.parity), address);
  for (const auto& [reg, scale] : view.moves) {
    address = code_.Add(address, code_.Multiply(InRegister(reg), Known(scale)));
  }
  return address;
}

Tile StageCoder::TileOf(const View& view, const std::vector<bool>& dims, const Place& place) {
  Tile tile;
  tile.type = view.type;
  tile.address = AddressOf(view);
  for (int l : tiling_.lanes) {
    if (!dims[l] || place.extents[l].is(1)) continue;
    tile.dims.push_back({place.extents[l], Known(view.strides[l])});
  }
  return tile;
}

void StageCoder::Apply(Op op, const View& to, std::initializer_list<const View*> from,
                       const Place& place) {
  const int scope = code_.mark();
  std::vector<Tile> tiles = {TileOf(to, to.dims, place)};
  for (const View* view : from) tiles.push_back(TileOf(*view, to.dims, place));
  JoinDimensions(tiles);
  const Tile result = tiles[0];
  tiles.erase(tiles.begin());
  code_.Vector(op, result, tiles);
  code_.Release(scope);
}

View StageCoder::Unary(Op op, const View& a, const Place& place) {
  View out = NewView(a.type, a.dims, ir::kNoValue, place);
  Apply(op, out, {&a}, place);
  return out;
}

View StageCoder::Binary(Op op, const View& a, const View& b, const Place& place) {
  View out = Like(a.type, {&a, &b}, ir::kNoValue, place);
  Apply(op, out, {&a, &b}, place);
  return out;
}

void StageCoder::Fill(const View& view, double number, const Place& place) {
  const int scope = code_.mark();
  code_.Fill(TileOf(view, view.dims, place), BitsOf(view.type, number));
  code_.Release(scope);
}

View StageCoder::Constant(Type type, double number) {
  View view = NewView(type, std::vector<bool>(form_.loops.size(), false), ir::kNoValue, Place());
  Tile tile;
  tile.type = type;
  tile.address = Known(view.address);
  code_.Fill(tile, BitsOf(type, number));
  return view;
}

void StageCoder::Compute(const Inst& inst, int phase, const Place& place) {
  switch (inst.op) {
    case ScalarOp::kConst:
      Of(inst.result) = Constant(TypeOf(inst.dtype), ImmediateOf(inst));
      return;
    case ScalarOp::kIndex:
      Index(inst, place);
      return;
    case ScalarOp::kLoad: {
      const Access& access = form_.AccessOf(inst);
      View view = ViewOf(staged_[staged_of_.at(&inst)], access, place);
      const bool matrix = phase == 0 && tiling_.matrix.has_value();
      for (size_t l = 0; l < form_.loops.size() && !matrix; ++l) {
        if (!tiling_.serial[l] || view.strides[l] == 0) continue;
        const int64_t bytes = view.strides[l] * SizeOf(view.type);
        if (place.begins[l].known()) {
          view.address += place.begins[l].value * bytes;
        } else {
          view.moves.emplace_back(place.begins[l].reg, bytes);
        }
        view.strides[l] = 0;
        view.dims[l] = false;
      }
      if (inst.has_mask && !access.mask_is_clip) {
        View other = Constant(view.type, ImmediateOf(inst));
        const View& mask = Of(inst.operands.back());
        View out = Like(view.type, {&view, &mask}, inst.result, place);
        Apply(Op::kSelect, out, {&mask, &view, &other}, place);
        GiveBack(other);
        view = out;
      }
      Of(inst.result) = view;
      return;
    }
    case ScalarOp::kStore: {
      const ir::ValueId value = inst.operands.back();
      const View& from = Of(value);
      const ScalarOp made = definitions_[value]->op;
      const bool own = from.slot < 0 && from.staged < 0 && store_slots_.at(value) == from.address;
      if (!own && (made != ScalarOp::kLoad || from.slot >= 0)) {
        View out = NewView(from.type, from.dims, value, place);
        Apply(Op::kVectorCopy, out, {&from}, place);
        // What reads the value later finds it where it was.
        const View kept = from;
        Of(value) = out;
        Store(inst, place);
        Of(value) = kept;
        return;
      }
      Store(inst, place);
      return;
    }
    case ScalarOp::kReduce:
      Reduce(inst, phase, place);
      return;
    default:
      ComputeOp(inst, place);
  }
}

void StageCoder::ComputeOp(const Inst& inst, const Place& place) {
  const auto operand = [&](size_t i) -> const View& { return Of(inst.operands[i]); };
  const auto finish = [&](View view) { Of(inst.result) = std::move(view); };
  const Type type = TypeOf(inst.dtype);
  if (const std::optional<Op> op = UnaryOp(inst.op)) {
    View out = NewView(type, operand(0).dims, inst.result, place);
    Apply(*op, out, {&operand(0)}, place);
    finish(out);
    return;
  }
  const bool swapped = inst.op == ScalarOp::kGt || inst.op == ScalarOp::kGe;
  if (inst.operands.size() == 2) {
    const std::optional<Op> op = BinaryOp(inst.op, IsFloatType(operand(0).type));
    if (!op) {
      code_.Fail(Lacks(absl::StrCat("operation ", ir::Info(inst.op).name)));
      return finish(Constant(type, 0));
    }
    const View &a = operand(swapped ? 1 : 0), &b = operand(swapped ? 0 : 1);
    View out = Like(type, {&a, &b}, inst.result, place);
    Apply(*op, out, {&a, &b}, place);
    finish(out);
    return;
  }
  switch (inst.op) {
    case ScalarOp::kSelect: {
      View out = Like(type, {&operand(0), &operand(1), &operand(2)}, inst.result, place);
      Apply(Op::kSelect, out, {&operand(0), &operand(1), &operand(2)}, place);
      return finish(out);
    }
    case ScalarOp::kFma: {
      View out = Like(type, {&operand(0), &operand(1), &operand(2)}, inst.result, place);
      Apply(Op::kMultiplyAdd, out, {&operand(0), &operand(1), &operand(2)}, place);
      return finish(out);
    }
    case ScalarOp::kCast:
      Cast(inst, place);
      return;
    case ScalarOp::kIsNan: {
      View out = NewView(type, operand(0).dims, inst.result, place);
      Apply(Op::kVectorNotEqual, out, {&operand(0), &operand(0)}, place);
      return finish(out);
    }
    case ScalarOp::kIsInf: {
      View size = Unary(Op::kAbsolute, operand(0), place);
      View infinity = Constant(size.type, std::numeric_limits<double>::infinity());
      View out = NewView(type, operand(0).dims, inst.result, place);
      Apply(Op::kVectorEqual, out, {&size, &infinity}, place);
      GiveBack(size);
      GiveBack(infinity);
      return finish(out);
    }
    case ScalarOp::kNot: {
      View out = NewView(type, operand(0).dims, inst.result, place);
      if (inst.dtype == DType::kBool) {
        View one = Constant(type, 1);
        Apply(Op::kVectorXor, out, {&operand(0), &one}, place);
        GiveBack(one);
      } else {
        Apply(Op::kNot, out, {&operand(0)}, place);
      }
      return finish(out);
    }
    case ScalarOp::kSigmoid: {  // 1 / (1 + exp(-x))
      View t = Unary(Op::kNegate, operand(0), place);
      View e = Unary(Op::kExponential, t, place);
      GiveBack(t);
      View one = Constant(type, 1);
      View sum = Binary(Op::kVectorAdd, e, one, place);
      GiveBack(e);
      GiveBack(one);
      View out = NewView(type, operand(0).dims, inst.result, place);
      Apply(Op::kReciprocal, out, {&sum}, place);
      GiveBack(sum);
      return finish(out);
    }
    case ScalarOp::kExp2: {
      View two = Constant(type, 2);
      View out = NewView(type, operand(0).dims, inst.result, place);
      Apply(Op::kVectorPower, out, {&two, &operand(0)}, place);
      GiveBack(two);
      return finish(out);
    }
    case ScalarOp::kExpm1: {  // tanh(x / 2) * (exp(x) + 1), exact for small x
      View half = Constant(type, 0.5), one = Constant(type, 1);
      View h = Binary(Op::kVectorMultiply, operand(0), half, place);
      View t = Unary(Op::kHyperbolicTangent, h, place);
      GiveBack(h);
      View e = Unary(Op::kExponential, operand(0), place);
      View sum = Binary(Op::kVectorAdd, e, one, place);
      GiveBack(e);
      View out = NewView(type, operand(0).dims, inst.result, place);
      Apply(Op::kVectorMultiply, out, {&t, &sum}, place);
      for (View* view : {&half, &one, &t, &sum}) GiveBack(*view);
      return finish(out);
    }
    case ScalarOp::kLog2:
    case ScalarOp::kLog10: {
      View scale =
          Constant(type, inst.op == ScalarOp::kLog2 ? 1.4426950408889634 : 0.43429448190325182);
      View log = Unary(Op::kLogarithm, operand(0), place);
      View out = NewView(type, operand(0).dims, inst.result, place);
      Apply(Op::kVectorMultiply, out, {&log, &scale}, place);
      GiveBack(scale);
      GiveBack(log);
      return finish(out);
    }
    case ScalarOp::kLog1p: {
      // log(u) * (x / (u - 1)) for u = 1 + x, which corrects the rounding of u (Kahan); x where u
      // is 1, and where it is infinite.
      const View& x = operand(0);
      View one = Constant(type, 1);
      View u = Binary(Op::kVectorAdd, x, one, place);
      View less = Binary(Op::kVectorSubtract, u, one, place);
      View ratio = Binary(Op::kVectorDivide, x, less, place);
      GiveBack(less);
      View log = Unary(Op::kLogarithm, u, place);
      View product = Binary(Op::kVectorMultiply, log, ratio, place);
      GiveBack(ratio);
      GiveBack(log);
      View exact = NewView(Type::kU8, x.dims, ir::kNoValue, place);
      Apply(Op::kVectorEqual, exact, {&u, &one}, place);
      View first = NewView(type, x.dims, ir::kNoValue, place);
      Apply(Op::kSelect, first, {&exact, &x, &product}, place);
      GiveBack(product);
      View infinity = Constant(type, std::numeric_limits<double>::infinity());
      Apply(Op::kVectorEqual, exact, {&u, &infinity}, place);
      View out = NewView(type, x.dims, inst.result, place);
      Apply(Op::kSelect, out, {&exact, &x, &first}, place);
      for (View* view : {&one, &u, &exact, &first, &infinity}) GiveBack(*view);
      return finish(out);
    }
    case ScalarOp::kTan: {
      View s = Unary(Op::kSine, operand(0), place);
      View c = Unary(Op::kCosine, operand(0), place);
      View out = NewView(type, operand(0).dims, inst.result, place);
      Apply(Op::kVectorDivide, out, {&s, &c}, place);
      GiveBack(s);
      GiveBack(c);
      return finish(out);
    }
    default:
      code_.Fail(Lacks(absl::StrCat("operation ", ir::Info(inst.op).name)));
      finish(Constant(type, 0));
  }
}

void StageCoder::Cast(const Inst& inst, const Place& place) {
  const View& from = Of(inst.operands[0]);
  const DType source = form_.types[inst.operands[0]];
  const Type type = TypeOf(inst.dtype);
  View out = NewView(type, from.dims, inst.result, place);
  if (inst.dtype == DType::kBool && source != DType::kBool) {
    View zero = Constant(from.type, 0);
    Apply(Op::kVectorNotEqual, out, {&from, &zero}, place);
    GiveBack(zero);
  } else if (from.type == type) {
    Apply(Op::kVectorCopy, out, {&from}, place);
  } else {
    // Where torch wraps and the device saturates, numbers may differ.
    const bool narrows = (type == Type::kU8 || type == Type::kI8) && source != DType::kBool;
    if (narrows) code_.Fail(Lacks("cast to 8 bits that wraps"));
    Apply(Op::kConvert, out, {&from}, place);
  }
  Of(inst.result) = out;
}

// An affine index: a number for each iteration.
void StageCoder::Index(const Inst& inst, const Place& place) {
  const std::optional<Affine> affine = schedule::gcu::AffineOf(ints_, form_.loops, inst.indices[0]);
  if (!affine) {
    code_.Fail(Lacks("index that is no sum of loops"));
    Of(inst.result) = Constant(Type::kI32, 0);
    return;
  }
  const std::vector<bool> none(form_.loops.size(), false);
  const int scope = code_.mark();
  Scalar base = code_.Evaluate(affine->rest);
  std::vector<int> moving;
  for (size_t l = 0; l < form_.loops.size(); ++l) {
    const int64_t c = affine->coefficients[l];
    if (c == 0) continue;
    base = code_.Add(base, code_.Multiply(place.begins[l], Known(c)));
    if (!place.extents[l].is(1)) moving.push_back(static_cast<int>(l));
  }
  View sum = NewView(Type::kI32, none, moving.empty() ? inst.result : ir::kNoValue, place);
  {
    const int inner = code_.mark();
    const int value = code_.Load(base);
    const Tile cell = TileOf(sum, none, place);
    code_.Emit(Op::kFill, {code_.Describe(cell), value});
    code_.Release(inner);
  }
  for (size_t i = 0; i < moving.size(); ++i) {
    const int l = moving[i];
    std::vector<bool> dims = none;
    dims[l] = true;
    View iota = NewView(Type::kI32, dims, ir::kNoValue, place);
    const int inner = code_.mark();
    const int zero = code_.Load(Known(0));
    code_.Emit(Op::kIota, {code_.Describe(TileOf(iota, dims, place)), 0, zero});
    code_.Release(inner);
    if (const int64_t c = affine->coefficients[l]; c != 1) {
      View scale = Constant(Type::kI32, static_cast<double>(c));
      View scaled = Binary(Op::kVectorMultiply, iota, scale, place);
      GiveBack(iota);
      GiveBack(scale);
      iota = scaled;
    }
    View next =
        Like(Type::kI32, {&sum, &iota}, i + 1 == moving.size() ? inst.result : ir::kNoValue, place);
    Apply(Op::kVectorAdd, next, {&sum, &iota}, place);
    GiveBack(sum);
    GiveBack(iota);
    sum = next;
  }
  code_.Release(scope);
  Of(inst.result) = sum;
}

}  // namespace kiln::codegen::gcu
