// Pointwise operators of two or three operands: arithmetic, comparison, logic, choice.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using BinaryBody = Scalar (*)(KernelBuilder&, Scalar, Scalar);

absl::StatusOr<std::vector<Operand>> TwoOperands(NodeContext& n) {
  std::vector<Operand> operands;
  KILN_ASSIGN_OR_RETURN(operands.emplace_back(), n.TensorOrNumber(0, "self"));
  KILN_ASSIGN_OR_RETURN(operands.emplace_back(), n.TensorOrNumber(1, "other"));
  KILN_RETURN_IF_ERROR(CheckOperands(n, operands));
  return operands;
}

// What a 16-bit float operator takes for a second operand that is a number, or a tensor of rank 0
// of another type: ATen's kernels differ.
enum class SecondOperand { kRounded, kExact };

bool IsScalar(const Operand& operand) {
  const auto* view = std::get_if<View>(&operand);
  return view == nullptr || view->sizes.empty();
}

// Whether the number is known not to be 0 as an integer of the type.
bool IsNeverZero(const Number& number, DType dtype) {
  const int unused_bits = 64 - 8 * static_cast<int>(DTypeSize(dtype));
  if (const auto* size = std::get_if<ir::IntExpr>(&number)) {
    const ir::IntRange range = size->range();
    return range.min > 0 && range.max <= INT64_MAX >> unused_bits;
  }
  if (const auto* truth = std::get_if<bool>(&number)) return *truth;
  const auto* integer = std::get_if<int64_t>(&number);
  return integer != nullptr && static_cast<uint64_t>(*integer) << unused_bits != 0;
}

// `y` of the operand, which integers are divided by: the run fails where it is 0.
Scalar Divisor(KernelBuilder& b, const Operand& operand, Scalar y) {
  const auto* number = std::get_if<Number>(&operand);
  return number != nullptr && IsNeverZero(*number, y.dtype) ? y : b.Op(kNonzero, y);
}

enum class Divides : bool { kNo, kYes };

// Operands in the result's type, in its compute type from there on.
absl::Status LowerArithmetic(NodeContext& n, BinaryBody body,
                             SecondOperand second = SecondOperand::kRounded,
                             Divides divides = Divides::kNo) {
  KILN_ASSIGN_OR_RETURN(const std::vector<Operand> operands, TwoOperands(n));
  const DType dtype = n.Result(0).dtype;
  const bool exact = second == SecondOperand::kExact && IsScalar(operands[1]);
  const bool checks_divisor = divides == Divides::kYes && n.checks_divisors() && IsInteger(dtype);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = LoadRounded(b, operands[0], at, dtype);
    Scalar y =
        exact ? LoadOperand(b, operands[1], at, x.dtype) : LoadRounded(b, operands[1], at, dtype);
    if (checks_divisor) y = Divisor(b, operands[1], y);
    return body(b, x, y);
  });
  return absl::OkStatus();
}

// Operands in their common type; the result is bool.
absl::Status LowerComparison(NodeContext& n, ir::ScalarOp op) {
  KILN_ASSIGN_OR_RETURN(const std::vector<Operand> operands, TwoOperands(n));
  const DType common = PromoteOperands(operands);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = LoadRounded(b, operands[0], at, common);
    return b.Op(op, x, LoadRounded(b, operands[1], at, common));
  });
  return absl::OkStatus();
}

bool IsOne(const Operand& operand) {
  const auto* number = std::get_if<Number>(&operand);
  return number != nullptr && (*number == Number(int64_t{1}) || *number == Number(1.0));
}

// x + alpha * y or x - alpha * y; bool adds as "or".
absl::Status LowerAddSub(NodeContext& n, ir::ScalarOp op, bool reversed) {
  KILN_ASSIGN_OR_RETURN(std::vector<Operand> operands, TwoOperands(n));
  if (reversed) std::swap(operands[0], operands[1]);
  Operand alpha = Number(int64_t{1});
  if (n.Find(2, "alpha") != nullptr) {
    KILN_ASSIGN_OR_RETURN(alpha, n.TensorOrNumber(2, "alpha"));
    KILN_RETURN_IF_ERROR(CheckOperands(n, {alpha}));
  }
  const DType dtype = n.Result(0).dtype;
  const bool scaled = !IsOne(alpha);
  if (dtype == DType::kBool && (op == kSub || scaled)) return n.Decline("of bools");
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = LoadRounded(b, operands[0], at, dtype);
    Scalar y = LoadRounded(b, operands[1], at, dtype);
    if (dtype == DType::kBool) return b.Op(kOr, x, y);
    if (scaled) y = b.Op(kMul, y, LoadRounded(b, alpha, at, dtype));
    return b.Op(op, x, y);
  });
  return absl::OkStatus();
}

Scalar Mul(KernelBuilder& b, Scalar x, Scalar y) {
  return b.Op(x.dtype == DType::kBool ? kAnd : kMul, x, y);
}

Scalar Maximum(KernelBuilder& b, Scalar x, Scalar y) {
  return b.Op(x.dtype == DType::kBool ? kOr : kMax, x, y);
}

Scalar Minimum(KernelBuilder& b, Scalar x, Scalar y) {
  return b.Op(x.dtype == DType::kBool ? kAnd : kMin, x, y);
}

// Floor division of floats as ATen defines it, from the exact remainder: floor(x / y) alone is
// off by one where x / y rounds up to an integer (1.0 // 0.1 is 9).
Scalar FloorDivFloat(KernelBuilder& b, Scalar x, Scalar y) {
  const Scalar zero = b.Const(x.dtype, 0.0);
  const Scalar one = b.Const(x.dtype, 1.0);
  const Scalar plain = b.Op(kDiv, x, y);
  const Scalar mod = b.Op(kFmod, x, y);
  const Scalar quotient = b.Op(kDiv, b.Op(kSub, x, mod), y);
  const Scalar differ = b.Op(kXor, b.Op(kLt, y, zero), b.Op(kLt, mod, zero));
  const Scalar lower = b.And(b.Op(kNe, mod, zero), differ);
  const Scalar exact = b.Select(lower, b.Op(kSub, quotient, one), quotient);
  const Scalar floor = b.Op(kFloor, exact);
  const Scalar short_by_one = b.Op(kGt, b.Op(kSub, exact, floor), b.Const(x.dtype, 0.5));
  const Scalar rounded = b.Select(short_by_one, b.Op(kAdd, floor, one), floor);
  const Scalar signed_zero = b.Op(kCopysign, zero, plain);
  const Scalar result = b.Select(b.Op(kEq, exact, zero), signed_zero, rounded);
  return b.Select(b.Op(kEq, y, zero), plain, result);
}

Scalar FloorDivide(KernelBuilder& b, Scalar x, Scalar y) {
  return IsFloat(x.dtype) ? FloorDivFloat(b, x, y) : b.Op(kFloorDiv, x, y);
}

Scalar TruncDivide(KernelBuilder& b, Scalar x, Scalar y) {
  return IsFloat(x.dtype) ? b.Op(kTrunc, b.Op(kDiv, x, y)) : b.Op(kTruncDiv, x, y);
}

absl::Status LowerDivMode(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const std::string mode, n.String(2, "rounding_mode", ""));
  constexpr auto kExact = SecondOperand::kExact;
  if (mode == "floor") return LowerArithmetic(n, FloorDivide, kExact, Divides::kYes);
  if (mode == "trunc") return LowerArithmetic(n, TruncDivide, kExact, Divides::kYes);
  if (!mode.empty()) return n.BadGraph("the rounding mode", "'floor' or 'trunc'");
  const auto divide = [](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kDiv, x, y); };
  return LowerArithmetic(n, divide, kExact);
}

// fmax, fmin: a NaN gives way to the other operand; of zeros it is x.
Scalar IgnoreNan(KernelBuilder& b, ir::ScalarOp op, Scalar x, Scalar y) {
  if (!IsFloat(x.dtype)) return b.Op(op, x, y);
  const Scalar either = b.Select(b.Op(kIsNan, x), y, b.Op(op, y, x));
  return b.Select(b.Op(kIsNan, y), x, either);
}

// sqrt(x^2 + y^2) without squares that leave the range: f32 has room in f64; f64 divides by the
// larger operand first. An infinite operand wins over a NaN, as in C.
Scalar Hypot(KernelBuilder& b, Scalar x, Scalar y) {
  const DType dtype = x.dtype;
  const Scalar infinite = b.Op(kOr, b.Op(kIsInf, x), b.Op(kIsInf, y));
  const Scalar left = b.Op(kAbs, b.Cast(x, DType::kF64));
  const Scalar right = b.Op(kAbs, b.Cast(y, DType::kF64));
  Scalar root;
  if (dtype == DType::kF64) {
    const Scalar high = b.Op(kMax, left, right), low = b.Op(kMin, left, right);
    const Scalar ratio = b.Select(b.Op(kEq, low, 0.0), low, b.Op(kDiv, low, high));
    root = b.Op(kMul, high, b.Op(kSqrt, b.Op(kAdd, b.Op(kMul, ratio, ratio), 1.0)));
  } else {
    root = b.Op(kSqrt, b.Op(kAdd, b.Op(kMul, left, left), b.Op(kMul, right, right)));
  }
  return b.Select(infinite, b.Const(dtype, HUGE_VAL), b.Cast(root, dtype));
}

// Shifts by less than 0 or by all bits and more push every bit out, as in ATen.
Scalar Shift(KernelBuilder& b, ir::ScalarOp op, Scalar x, Scalar y) {
  const int64_t bits = 8 * DTypeSize(x.dtype);
  const Scalar zero = b.ConstInt(x.dtype, 0);
  const Scalar inside = b.And(b.Op(kGe, y, zero), b.Op(kLt, y, b.ConstInt(x.dtype, bits)));
  const bool keeps_sign = op == kShr && x.dtype != DType::kU8;
  const Scalar amount = b.Select(inside, y, b.ConstInt(x.dtype, bits - 1));
  const Scalar shifted = b.Op(op, x, amount);
  return keeps_sign ? shifted : b.Select(inside, shifted, zero);
}

// Operands as truth values.
absl::Status LowerLogical(NodeContext& n, ir::ScalarOp op) {
  KILN_ASSIGN_OR_RETURN(const std::vector<Operand> operands, TwoOperands(n));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const auto truth = [&](const Operand& operand) {
      const auto* view = std::get_if<View>(&operand);
      if (view == nullptr) return b.Const(DType::kBool, std::get<Number>(operand));
      return b.Cast(b.Widen(b.LoadBroadcast(*view, at)), DType::kBool);
    };
    const Scalar x = truth(operands[0]);
    return b.Op(op, x, truth(operands[1]));
  });
  return absl::OkStatus();
}

// x to a constant power, by multiplication where that is exact enough and quick.
Scalar PowConst(KernelBuilder& b, Scalar x, double exponent) {
  if (exponent == 0.0) return b.Const(x.dtype, 1.0);
  if (exponent == 1.0) return x;
  if (exponent == 2.0) return b.Op(kMul, x, x);
  if (exponent == 3.0) return b.Op(kMul, b.Op(kMul, x, x), x);
  if (exponent == 0.5) return b.Op(kSqrt, x);
  if (exponent == -0.5) return b.Op(kRsqrt, x);
  if (exponent == -1.0) return b.Op(kDiv, b.Const(x.dtype, 1.0), x);
  if (exponent == -2.0) return b.Op(kDiv, b.Const(x.dtype, 1.0), b.Op(kMul, x, x));
  return b.Op(kPow, x, exponent);
}

// Repeated squaring; integers wrap, as in eager execution.
Scalar PowInteger(KernelBuilder& b, Scalar x, int64_t exponent) {
  Scalar result = b.ConstInt(x.dtype, 1);
  for (Scalar square = x; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = b.Op(kMul, result, square);
    if (exponent > 1) square = b.Op(kMul, square, square);
  }
  return result;
}

absl::Status LowerPow(NodeContext& n) {
  if (!IsFloat(n.Result(0).dtype)) return n.Decline("an integer's power");
  return LowerArithmetic(n, [](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kPow, x, y); });
}

absl::Status LowerPowScalar(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const Operand computed, n.TensorOrNumber(1, "exponent"));
  if (std::holds_alternative<View>(computed)) return LowerPow(n);
  KILN_ASSIGN_OR_RETURN(const Operand self, n.TensorOrNumber(0, "self"));
  KILN_RETURN_IF_ERROR(CheckOperands(n, {self}));
  const DType compute = ComputeType(n.Result(0).dtype);
  KILN_ASSIGN_OR_RETURN(double exponent, n.Float(1, "exponent", 1));
  const bool is_float = IsFloat(compute);
  if (is_float) exponent = RoundTo(n.Result(0).dtype, exponent);
  if (!is_float && (!IsInteger(compute) || exponent < 0 || exponent > 64)) {
    return n.Decline("this power of an integer");
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = LoadOperand(b, self, at, compute);
    return is_float ? PowConst(b, x, exponent) : PowInteger(b, x, static_cast<int64_t>(exponent));
  });
  return absl::OkStatus();
}

Lowering FloatArithmetic(BinaryBody body) {
  return [body](NodeContext& n) -> absl::Status {
    if (!IsFloat(n.Result(0).dtype)) return n.Decline("a result that is no float");
    return LowerArithmetic(n, body);
  };
}

Lowering NumberArithmetic(BinaryBody body, SecondOperand second = SecondOperand::kRounded,
                          Divides divides = Divides::kNo) {
  return [body, second, divides](NodeContext& n) -> absl::Status {
    if (n.Result(0).dtype == DType::kBool) return n.Decline("of bools");
    return LowerArithmetic(n, body, second, divides);
  };
}

Lowering Arithmetic(BinaryBody body, SecondOperand second = SecondOperand::kRounded) {
  return [body, second](NodeContext& n) { return LowerArithmetic(n, body, second); };
}

absl::Status LowerWhere(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View condition, n.Tensor(0, "condition"));
  KILN_ASSIGN_OR_RETURN(const Operand self, n.TensorOrNumber(1, "self"));
  KILN_ASSIGN_OR_RETURN(const Operand other, n.TensorOrNumber(2, "other"));
  KILN_RETURN_IF_ERROR(CheckOperands(n, {condition, self, other}));
  const DType dtype = n.Result(0).dtype;
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar c = LoadOperand(b, condition, at, DType::kBool);
    const Scalar x = LoadOperand(b, self, at, dtype);
    return b.Select(c, x, LoadOperand(b, other, at, dtype));
  });
  return absl::OkStatus();
}

// masked_fill(self, mask, value)
absl::Status LowerMaskedFill(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View mask, n.Tensor(1, "mask"));
  KILN_ASSIGN_OR_RETURN(const Operand value, n.TensorOrNumber(2, "value"));
  KILN_RETURN_IF_ERROR(CheckOperands(n, {self, mask, value}));
  const DType dtype = n.Result(0).dtype;
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar c = LoadOperand(b, mask, at, DType::kBool);
    const Scalar filled = LoadOperand(b, value, at, dtype);
    return b.Select(c, filled, LoadOperand(b, self, at, dtype));
  });
  return absl::OkStatus();
}

// clamp with either bound absent: max(low, x), then min(high, .), so that `high` wins; of two zeros
// max and min give their second operand, which here keeps x's sign.
absl::Status LowerClamp(NodeContext& n, const char* low_name, const char* high_name) {
  KILN_ASSIGN_OR_RETURN(const Operand self, n.TensorOrNumber(0, "self"));
  std::optional<Operand> low, high;
  if (low_name != nullptr && n.Find(1, low_name) != nullptr) {
    KILN_ASSIGN_OR_RETURN(low, n.TensorOrNumber(1, low_name));
  }
  const size_t high_position = low_name == nullptr ? 1 : 2;
  if (high_name != nullptr && n.Find(high_position, high_name) != nullptr) {
    KILN_ASSIGN_OR_RETURN(high, n.TensorOrNumber(high_position, high_name));
  }
  std::vector<Operand> operands{self};
  if (low) operands.push_back(*low);
  if (high) operands.push_back(*high);
  KILN_RETURN_IF_ERROR(CheckOperands(n, operands));
  if (n.Result(0).dtype == DType::kBool) return n.Decline("of bools");
  const DType dtype = n.Result(0).dtype;
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    Scalar x = LoadRounded(b, self, at, dtype);
    if (low) x = b.Op(kMax, LoadRounded(b, *low, at, dtype), x);
    if (high) x = b.Op(kMin, LoadRounded(b, *high, at, dtype), x);
    return x;
  });
  return absl::OkStatus();
}

// self + (value * a) op b, in ATen's order: the product with the value may be what is in range.
absl::Status LowerAddc(NodeContext& n, ir::ScalarOp op) {
  KILN_ASSIGN_OR_RETURN(const Operand self, n.TensorOrNumber(0, "self"));
  KILN_ASSIGN_OR_RETURN(const Operand x, n.TensorOrNumber(1, "tensor1"));
  KILN_ASSIGN_OR_RETURN(const Operand y, n.TensorOrNumber(2, "tensor2"));
  KILN_ASSIGN_OR_RETURN(const Number value, n.ScalarArg(3, "value", int64_t{1}));
  KILN_RETURN_IF_ERROR(CheckOperands(n, {self, x, y}));
  const DType compute = ComputeType(n.Result(0).dtype);
  if (!IsFloat(compute)) return n.Decline("of integers");
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar left = b.Op(kMul, b.Const(compute, value), LoadOperand(b, x, at, compute));
    const Scalar both = b.Op(op, left, LoadOperand(b, y, at, compute));
    return b.Op(kAdd, LoadOperand(b, self, at, compute), both);
  });
  return absl::OkStatus();
}

// One operand for each name, of floats; `body` gives the element of the three.
template <typename Body>
absl::Status LowerTernary(NodeContext& n, const std::array<const char*, 3>& names,
                          const Body& body) {
  KILN_ASSIGN_OR_RETURN(const Operand x, n.TensorOrNumber(0, names[0]));
  KILN_ASSIGN_OR_RETURN(const Operand y, n.TensorOrNumber(1, names[1]));
  KILN_ASSIGN_OR_RETURN(const Operand z, n.TensorOrNumber(2, names[2]));
  KILN_RETURN_IF_ERROR(CheckOperands(n, {x, y, z}));
  const DType compute = ComputeType(n.Result(0).dtype);
  if (!IsFloat(compute)) return n.Decline("of integers");
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar first = LoadOperand(b, x, at, compute);
    const Scalar second = LoadOperand(b, y, at, compute);
    return body(b, first, second, LoadOperand(b, z, at, compute));
  });
  return absl::OkStatus();
}

// prims.fma(a, b, c): a * b + c, rounded once.
absl::Status LowerFma(NodeContext& n) {
  return LowerTernary(n, {"a", "b", "c"}, [](KernelBuilder& b, Scalar x, Scalar y, Scalar z) {
    return b.Op(kFma, x, y, z);
  });
}

// self + weight * (end - self), from the nearer end as ATen does it.
absl::Status LowerLerp(NodeContext& n) {
  return LowerTernary(n, {"self", "end", "weight"},
                      [](KernelBuilder& b, Scalar x, Scalar y, Scalar w) {
                        const Scalar span = b.Op(kSub, y, x);
                        const Scalar from_x = b.Op(kAdd, x, b.Op(kMul, w, span));
                        const Scalar rest = b.Op(kSub, b.Const(w.dtype, 1.0), w);
                        const Scalar from_y = b.Op(kSub, y, b.Op(kMul, span, rest));
                        return b.Select(b.Op(kLt, b.Op(kAbs, w), 0.5), from_x, from_y);
                      });
}

// Eager's fill of a copy: self's shape, the value's number.
absl::Status LowerFill(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const Operand value, n.TensorOrNumber(1, "value"));
  KILN_RETURN_IF_ERROR(CheckOperands(n, {value}));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return LoadOperand(b, value, at, n.Result(0).dtype);
  });
  return absl::OkStatus();
}

void RegisterBoth(Registry& registry, const std::string& name, const Lowering& lowering) {
  registry[name + ".Tensor"] = lowering;
  registry[name + ".Scalar"] = lowering;
}

}  // namespace

void RegisterBinary(Registry& registry) {
  RegisterBoth(registry, "add", [](NodeContext& n) { return LowerAddSub(n, kAdd, false); });
  RegisterBoth(registry, "sub", [](NodeContext& n) { return LowerAddSub(n, kSub, false); });
  RegisterBoth(registry, "rsub", [](NodeContext& n) { return LowerAddSub(n, kSub, true); });
  RegisterBoth(registry, "mul", Arithmetic(Mul, SecondOperand::kExact));
  RegisterBoth(registry, "div", LowerDivMode);
  RegisterBoth(registry, "true_divide", LowerDivMode);
  registry["div.Tensor_mode"] = LowerDivMode;
  registry["div.Scalar_mode"] = LowerDivMode;
  registry["floor_divide.default"] = registry["floor_divide.Scalar"] =
      NumberArithmetic(FloorDivide, SecondOperand::kExact, Divides::kYes);
  RegisterBoth(
      registry, "remainder",
      NumberArithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kMod, x, y); },
                       SecondOperand::kRounded, Divides::kYes));
  RegisterBoth(
      registry, "fmod",
      NumberArithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kFmod, x, y); },
                       SecondOperand::kRounded, Divides::kYes));
  registry["maximum.default"] = Arithmetic(Maximum);
  registry["minimum.default"] = Arithmetic(Minimum);
  registry["max.other"] = Arithmetic(Maximum);
  registry["min.other"] = Arithmetic(Minimum);
  registry["fmax.default"] = NumberArithmetic(
      [](KernelBuilder& b, Scalar x, Scalar y) { return IgnoreNan(b, kMax, x, y); });
  registry["fmin.default"] = NumberArithmetic(
      [](KernelBuilder& b, Scalar x, Scalar y) { return IgnoreNan(b, kMin, x, y); });
  registry["atan2.default"] =
      FloatArithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kAtan2, x, y); });
  RegisterBoth(registry, "copysign", FloatArithmetic([](KernelBuilder& b, Scalar x, Scalar y) {
                 return b.Op(kCopysign, x, y);
               }));
  registry["hypot.default"] = FloatArithmetic(Hypot);
  registry["pow.Tensor_Scalar"] = LowerPowScalar;
  registry["pow.Tensor_Tensor"] = LowerPow;
  registry["pow.Scalar"] = LowerPow;
  const std::pair<const char*, ir::ScalarOp> comparisons[] = {
      {"eq", kEq}, {"ne", kNe}, {"lt", kLt}, {"le", kLe}, {"gt", kGt}, {"ge", kGe}};
  for (const auto& [name, op] : comparisons) {
    RegisterBoth(registry, name, [op = op](NodeContext& n) { return LowerComparison(n, op); });
  }
  registry["bitwise_and.Tensor"] = registry["bitwise_and.Scalar"] =
      Arithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kAnd, x, y); });
  registry["bitwise_or.Tensor"] = registry["bitwise_or.Scalar"] =
      Arithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kOr, x, y); });
  registry["bitwise_xor.Tensor"] = registry["bitwise_xor.Scalar"] =
      Arithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return b.Op(kXor, x, y); });
  const Lowering left_shift =
      NumberArithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return Shift(b, kShl, x, y); });
  const Lowering right_shift =
      NumberArithmetic([](KernelBuilder& b, Scalar x, Scalar y) { return Shift(b, kShr, x, y); });
  registry["bitwise_left_shift.Tensor"] = registry["bitwise_left_shift.Tensor_Scalar"] = left_shift;
  registry["bitwise_right_shift.Tensor"] = registry["bitwise_right_shift.Tensor_Scalar"] =
      right_shift;
  // What Python's << and >> are.
  RegisterBoth(registry, "__lshift__", left_shift);
  RegisterBoth(registry, "__rshift__", right_shift);
  const std::pair<const char*, ir::ScalarOp> logical[] = {
      {"logical_and.default", kAnd}, {"logical_or.default", kOr}, {"logical_xor.default", kXor}};
  for (const auto& [name, op] : logical) {
    registry[name] = [op = op](NodeContext& n) { return LowerLogical(n, op); };
  }
  registry["where.self"] = LowerWhere;
  registry["where.ScalarSelf"] = registry["where.ScalarOther"] = registry["where.Scalar"] =
      LowerWhere;
  registry["masked_fill.Scalar"] = registry["masked_fill.Tensor"] = LowerMaskedFill;
  registry["clamp.default"] =
      registry["clamp.Tensor"] = [](NodeContext& n) { return LowerClamp(n, "min", "max"); };
  registry["clamp_min.default"] =
      registry["clamp_min.Tensor"] = [](NodeContext& n) { return LowerClamp(n, "min", nullptr); };
  registry["clamp_max.default"] =
      registry["clamp_max.Tensor"] = [](NodeContext& n) { return LowerClamp(n, nullptr, "max"); };
  registry["addcmul.default"] = [](NodeContext& n) { return LowerAddc(n, kMul); };
  registry["addcdiv.default"] = [](NodeContext& n) { return LowerAddc(n, kDiv); };
  registry["prims.fma.default"] = LowerFma;
  registry["lerp.Scalar"] = registry["lerp.Tensor"] = LowerLerp;
  registry["fill.Scalar"] = registry["fill.Tensor"] = LowerFill;
  registry["copy.default"] = LowerFill;
}

}  // namespace kiln::lowering
