// Builds the instructions of a GCU kernel: registers, labels, scalar arithmetic, tiles.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compiler/ir/int_expr.h"
#include "compiler/toolchain/gcu/isa.h"

namespace kiln::codegen::gcu {

using kiln::gcu::Op;

// A number that is known now, or one that a scalar register will hold.
struct Scalar {
  int reg = -1;       // -1: known
  int64_t value = 0;  // where it is known

  bool known() const { return reg < 0; }
  bool is(int64_t v) const { return reg < 0 && value == v; }
  friend bool operator==(const Scalar&, const Scalar&) = default;
};
inline Scalar Known(int64_t value) {
  return {-1, value};
}
inline Scalar InRegister(int reg) {
  return {reg, 0};
}

// The numbers of the specification.
enum class Space : uint8_t { kL3 = 0, kL2 = 1, kL1 = 2 };
enum class Type : uint8_t { kF32 = 1, kF16 = 2, kBF16 = 3, kI32 = 4, kI8 = 5, kU8 = 6 };
int64_t SizeOf(Type type);

struct TileDim {
  Scalar extent;
  Scalar stride = {-1, 0};  // elements
};

struct Tile {
  Space space = Space::kL1;
  Type type = Type::kF32;
  Scalar address;
  std::vector<TileDim> dims;
};

using Label = int;

class Code {
 public:
  Code();

  // Another one, with the same meaning of expressions and the same registers taken.
  Code Empty() const;

  // The first thing that went wrong: out of registers, a tile of more than four dimensions.
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status);

  // Registers are taken and given back in the order of a stack.
  int NewRegister();
  int mark() const { return next_register_; }
  void Release(int mark) { next_register_ = mark; }

  Label NewLabel();
  void Bind(Label label);
  void Jump(Label label);
  void JumpIf(Op op, Scalar a, Scalar b, Label label);  // kJumpEqual, kJumpLess, ...

  // A register with the number, which may be one that holds it already.
  int Load(Scalar scalar);
  void Set(int reg, Scalar scalar);
  Scalar Add(Scalar a, Scalar b);
  Scalar Subtract(Scalar a, Scalar b);
  Scalar Multiply(Scalar a, Scalar b);
  Scalar Divide(Scalar a, Scalar b);  // towards minus infinity
  Scalar Modulo(Scalar a, Scalar b);
  Scalar Min(Scalar a, Scalar b);
  Scalar Max(Scalar a, Scalar b);
  Scalar Argument(int number);

  // What stands for a variable from now on; a symbol is argument `first_symbol` and its id.
  void Let(ir::IntExpr leaf, Scalar value) { leaves_[leaf] = value; }
  void SetFirstSymbol(int argument) { first_symbol_ = argument; }
  Scalar Evaluate(ir::IntExpr expr);

  // Describes the tile in a register and returns its number.
  int Describe(const Tile& tile);

  void Emit(Op op, absl::Span<const int> registers = {}, int64_t immediate = 0);
  // One with a result and operands: `v.add`.
  void Vector(Op op, const Tile& to, absl::Span<const Tile> from);
  void Fill(const Tile& to, int64_t bits);

  // A copy; it waits for the token first, which `Wait` waits for.
  void Copy(const Tile& to, const Tile& from, int token);
  void CopyPadded(const Tile& to, const Tile& from, absl::Span<const Scalar> low, int64_t fill_bits,
                  int token);
  void Wait(int token);

  // Labels become numbers of instructions.
  std::vector<kiln::gcu::Instruction> Finish();

 private:
  Scalar Binary(Op op, Scalar a, Scalar b, bool (*fold)(int64_t, int64_t, int64_t*));

  absl::Status status_;
  std::vector<kiln::gcu::Instruction> instructions_;
  std::vector<int64_t> labels_;
  std::vector<std::pair<size_t, Label>> jumps_;
  absl::flat_hash_map<ir::IntExpr, Scalar> leaves_;
  int first_symbol_ = -1;
  int next_register_;
  int next_tile_ = 0;
};

}  // namespace kiln::codegen::gcu
