#include "compiler/codegen/gcu/code.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/gcu/instructions.inc.h"

namespace kiln::codegen::gcu {
namespace {

constexpr int kFirstRegister = 6;  // s0 to s5 are the launch's

bool FoldAdd(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}
bool FoldSubtract(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_sub_overflow(a, b, out);
}
bool FoldMultiply(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
bool FoldDivide(int64_t a, int64_t b, int64_t* out) {
  if (b <= 0) return false;
  *out = a / b - (a % b < 0 ? 1 : 0);
  return true;
}
bool FoldModulo(int64_t a, int64_t b, int64_t* out) {
  if (b <= 0) return false;
  *out = a % b + (a % b < 0 ? b : 0);
  return true;
}
bool FoldMin(int64_t a, int64_t b, int64_t* out) {
  *out = std::min(a, b);
  return true;
}
bool FoldMax(int64_t a, int64_t b, int64_t* out) {
  *out = std::max(a, b);
  return true;
}

}  // namespace

int64_t SizeOf(Type type) {
  switch (type) {
#define KILN_GCU_TYPE_SIZE(code, name, text, bytes) \
  case Type::k##name:                               \
    return bytes;
    KILN_GCU_DTYPES(KILN_GCU_TYPE_SIZE)
#undef KILN_GCU_TYPE_SIZE
  }
  return 0;
}

Code::Code() : next_register_(kFirstRegister) {}

Code Code::Empty() const {
  Code out;
  out.leaves_ = leaves_;
  out.first_symbol_ = first_symbol_;
  out.next_register_ = next_register_;
  return out;
}

void Code::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

int Code::NewRegister() {
  if (next_register_ >= KILN_GCU_SCALAR_REGISTERS) {
    Fail(absl::UnimplementedError("the kernel needs too many scalar registers"));
    return KILN_GCU_SCALAR_REGISTERS - 1;
  }
  return next_register_++;
}

Label Code::NewLabel() {
  labels_.push_back(-1);
  return static_cast<Label>(labels_.size() - 1);
}

void Code::Bind(Label label) {
  labels_[static_cast<size_t>(label)] = static_cast<int64_t>(instructions_.size());
}

void Code::Jump(Label label) {
  jumps_.emplace_back(instructions_.size(), label);
  Emit(Op::kJump);
}

void Code::JumpIf(Op op, Scalar a, Scalar b, Label label) {
  const int before = mark();
  const int left = Load(a), right = Load(b);
  jumps_.emplace_back(instructions_.size(), label);
  Emit(op, {left, right});
  Release(before);
}

int Code::Load(Scalar scalar) {
  if (!scalar.known()) return scalar.reg;
  const int reg = NewRegister();
  Emit(Op::kLoadImmediate, {reg}, scalar.value);
  return reg;
}

void Code::Set(int reg, Scalar scalar) {
  if (scalar.known()) {
    Emit(Op::kLoadImmediate, {reg}, scalar.value);
  } else if (scalar.reg != reg) {
    Emit(Op::kMove, {reg, scalar.reg});
  }
}

Scalar Code::Binary(Op op, Scalar a, Scalar b, bool (*fold)(int64_t, int64_t, int64_t*)) {
  int64_t folded = 0;
  if (a.known() && b.known() && fold(a.value, b.value, &folded)) return Known(folded);
  const int reg = NewRegister();
  const int before = mark();
  const int left = Load(a), right = Load(b);
  Emit(op, {reg, left, right});
  Release(before);
  return InRegister(reg);
}

Scalar Code::Add(Scalar a, Scalar b) {
  if (a.known()) std::swap(a, b);
  if (b.is(0)) return a;
  if (!a.known() && b.known()) {
    const int reg = NewRegister();
    Emit(Op::kAddImmediate, {reg, a.reg}, b.value);
    return InRegister(reg);
  }
  return Binary(Op::kAdd, a, b, &FoldAdd);
}

Scalar Code::Subtract(Scalar a, Scalar b) {
  if (b.known()) return Add(a, Known(-b.value));
  return Binary(Op::kSubtract, a, b, &FoldSubtract);
}

Scalar Code::Multiply(Scalar a, Scalar b) {
  if (a.known()) std::swap(a, b);
  if (b.is(1)) return a;
  if (b.is(0)) return Known(0);
  if (!a.known() && b.known()) {
    const int reg = NewRegister();
    Emit(Op::kMultiplyImmediate, {reg, a.reg}, b.value);
    return InRegister(reg);
  }
  return Binary(Op::kMultiply, a, b, &FoldMultiply);
}

Scalar Code::Divide(Scalar a, Scalar b) {
  return b.is(1) ? a : Binary(Op::kFloorDivide, a, b, &FoldDivide);
}
Scalar Code::Modulo(Scalar a, Scalar b) {
  return b.is(1) ? Known(0) : Binary(Op::kFloorModulo, a, b, &FoldModulo);
}
Scalar Code::Min(Scalar a, Scalar b) {
  return a == b ? a : Binary(Op::kMinimum, a, b, &FoldMin);
}
Scalar Code::Max(Scalar a, Scalar b) {
  return a == b ? a : Binary(Op::kMaximum, a, b, &FoldMax);
}

Scalar Code::Argument(int number) {
  const int reg = NewRegister();
  Emit(Op::kLoadArgument, {reg}, number);
  return InRegister(reg);
}

Scalar Code::Evaluate(ir::IntExpr expr) {
  using ir::IntKind;
  if (expr.is_const()) return Known(expr.value());
  if (const auto leaf = leaves_.find(expr); leaf != leaves_.end()) return leaf->second;
  if (expr.kind() == IntKind::kSymbol && first_symbol_ >= 0) {
    return Argument(first_symbol_ + expr.id());
  }
  const absl::Span<const ir::IntExpr> operands = expr.operands();
  if (operands.empty()) {
    Fail(absl::InternalError("an expression of a GCU's kernel has a leaf without a value"));
    return Known(0);
  }
  // Intermediate values are given back; the result moves to where the first of them was.
  const int result = NewRegister();
  Scalar value = Evaluate(operands[0]);
  for (size_t i = 1; i < operands.size(); ++i) {
    const Scalar other = Evaluate(operands[i]);
    switch (expr.kind()) {
      case IntKind::kAdd:
        value = Add(value, other);
        break;
      case IntKind::kMul:
        value = Multiply(value, other);
        break;
      case IntKind::kFloorDiv:
        value = Divide(value, other);
        break;
      case IntKind::kMod:
        value = Modulo(value, other);
        break;
      case IntKind::kMin:
        value = Min(value, other);
        break;
      case IntKind::kMax:
        value = Max(value, other);
        break;
      default:
        Fail(absl::InternalError("an expression of a GCU's kernel is of no known kind"));
    }
  }
  if (value.known()) {
    Release(result);
    return value;
  }
  Set(result, value);
  Release(result + 1);
  return InRegister(result);
}

int Code::Describe(const Tile& tile) {
  if (tile.dims.size() > KILN_GCU_MAX_RANK) {
    Fail(absl::UnimplementedError("a tile has more than four dimensions"));
    return 0;
  }
  const int number = next_tile_;
  next_tile_ = (next_tile_ + 1) % KILN_GCU_TILE_REGISTERS;
  const int before = mark();
  kiln::gcu::Instruction begin;
  begin.op = Op::kTile;
  begin.modifier =
      kiln::gcu::TileModifier(static_cast<int>(tile.space), static_cast<int>(tile.type),
                              static_cast<int>(tile.dims.size()));
  begin.registers[0] = static_cast<uint8_t>(number);
  begin.registers[1] = static_cast<uint8_t>(Load(tile.address));
  instructions_.push_back(begin);
  Release(before);
  for (size_t i = 0; i < tile.dims.size(); ++i) {
    const int extent = Load(tile.dims[i].extent);
    if (tile.dims[i].stride.known()) {
      Emit(Op::kDimensionImmediate, {number, static_cast<int>(i), extent},
           tile.dims[i].stride.value);
    } else {
      Emit(Op::kDimension, {number, static_cast<int>(i), extent, tile.dims[i].stride.reg});
    }
    Release(before);
  }
  return number;
}

void Code::Emit(Op op, absl::Span<const int> registers, int64_t immediate) {
  kiln::gcu::Instruction instruction;
  instruction.op = op;
  for (size_t i = 0; i < registers.size(); ++i) {
    instruction.registers[i] = static_cast<uint8_t>(registers[i]);
  }
  instruction.immediate = immediate;
  instructions_.push_back(instruction);
}

void Code::Vector(Op op, const Tile& to, absl::Span<const Tile> from) {
  std::vector<int> tiles = {Describe(to)};
  for (const Tile& tile : from) tiles.push_back(Describe(tile));
  Emit(op, tiles);
}

void Code::Fill(const Tile& to, int64_t bits) {
  const int before = mark();
  const int value = Load(Known(bits));
  Emit(Op::kFill, {Describe(to), value});
  Release(before);
}

void Code::Copy(const Tile& to, const Tile& from, int token) {
  Wait(token);
  const int d = Describe(to), s = Describe(from);
  Emit(Op::kCopy, {d, s, token});
}

void Code::CopyPadded(const Tile& to, const Tile& from, absl::Span<const Scalar> low,
                      int64_t fill_bits, int token) {
  Wait(token);
  const int before = mark();
  const int d = Describe(to), s = Describe(from);
  std::vector<int> registers = {d, s, token};
  const Scalar zero = Known(0);
  for (size_t i = 0; i < KILN_GCU_MAX_RANK; ++i) {
    registers.push_back(Load(i < low.size() ? low[i] : zero));
  }
  registers.push_back(Load(Known(fill_bits)));
  Emit(Op::kCopyPadded, registers);
  Release(before);
}

void Code::Wait(int token) {
  Emit(Op::kWait, {token});
}

std::vector<kiln::gcu::Instruction> Code::Finish() {
  for (const auto& [at, label] : jumps_) {
    instructions_[at].immediate = labels_[static_cast<size_t>(label)];
  }
  jumps_.clear();
  return std::move(instructions_);
}

}  // namespace kiln::codegen::gcu
