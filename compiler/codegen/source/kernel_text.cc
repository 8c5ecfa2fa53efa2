#include "compiler/codegen/source/kernel_text.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "compiler/schedule/nest.h"

namespace kiln::codegen::source {

using ir::IntExpr;
using ir::IntKind;

void Writer::Append(absl::string_view line) {
  if (!line.empty() && line.front() == '}' && depth_ > 0) --depth_;
  if (!line.empty() && line.front() != '#') text_.append(2 * depth_, ' ');
  text_.append(line.data(), line.size());
  text_.push_back('\n');
  if (!line.empty() && line.back() == '{') ++depth_;
}

absl::string_view CppType(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "bool";
    case DType::kU8:
      return "unsigned char";
    case DType::kI8:
      return "signed char";
    case DType::kI16:
      return "short";
    case DType::kI32:
      return "int";
    case DType::kI64:
      return "long";
    case DType::kF16:
      return "_Float16";
    case DType::kBF16:
      return "KBf16";
    case DType::kF32:
      return "float";
    default:
      return "double";
  }
}

namespace {

uint16_t Bf16Bits(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  if (std::isnan(single)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

std::string Decimal(double value, int digits) {
  std::string text = absl::StrFormat("%.*g", digits, value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// Shortest of the usual precisions that reads back to the same float.
std::string FloatDecimal(float value) {
  for (int digits = 6; digits < 9; ++digits) {
    std::string text = Decimal(value, digits);
    if (std::strtof(text.c_str(), nullptr) == value) return text + "f";
  }
  return Decimal(value, 9) + "f";
}

std::string DoubleDecimal(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = Decimal(value, digits);
    if (std::strtod(text.c_str(), nullptr) == value) return text;
  }
  return Decimal(value, 17);
}

std::string LongText(int64_t value) {
  if (value == INT64_MIN) return "(-9223372036854775807l - 1)";
  const bool fits_int = value > INT32_MIN && value <= INT32_MAX;
  return absl::StrCat(value, fits_int ? "" : "l");
}

}  // namespace

std::string FloatLiteral(DType dtype, double value) {
  if (dtype == DType::kBF16) return absl::StrFormat("KBf16(0x%x)", Bf16Bits(value));
  const bool wide = dtype == DType::kF64;
  std::string text;
  if (std::isnan(value)) {
    text = wide ? "__builtin_nan(\"\")" : "__builtin_nanf(\"\")";
  } else if (std::isinf(value) || (!wide && std::isinf(static_cast<float>(value)))) {
    text = absl::StrCat(value < 0 ? "-" : "", wide ? "__builtin_inf()" : "__builtin_inff()");
  } else {
    text = wide ? DoubleDecimal(value) : FloatDecimal(static_cast<float>(value));
  }
  return dtype == DType::kF16 ? absl::StrCat("_Float16(", text, ")") : text;
}

std::string IntLiteral(DType dtype, int64_t value) {
  if (dtype == DType::kBool) return value != 0 ? "true" : "false";
  std::string text = LongText(value);
  switch (dtype) {
    case DType::kI32:
      return value == INT32_MIN ? "(-2147483647 - 1)" : text;
    case DType::kI64:
      return text.back() == 'l' || text.back() == ')' ? text : text + "l";
    default: {
      // A C-style cast, as the names of small types are two words.
      std::string cast("(");
      cast.append(CppType(dtype).data(), CppType(dtype).size());
      return cast + ")" + (value < 0 ? "(" + text + ")" : text);
    }
  }
}

std::string ImmediateLiteral(const ir::Inst& inst) {
  return IsFloat(inst.dtype) ? FloatLiteral(inst.dtype, inst.immediate_float)
                             : IntLiteral(inst.dtype, inst.immediate_int);
}

namespace {

using LeafText = std::function<std::string(IntExpr)>;

std::string Factor(IntExpr e, const LeafText& leaf) {
  std::string text = ExprText(e, leaf);
  return e.kind() == IntKind::kAdd ? absl::StrCat("(", text, ")") : text;
}

// From so many terms on, the part of a sum that is the same in all iterations is one value to LLVM:
// its loop strength reduction tries the ways to split it (9 s for the offsets of 120 parts).
constexpr size_t kLongSum = 6;

std::string TermsText(const std::vector<IntExpr>& terms, const LeafText& leaf) {
  std::string text;
  for (IntExpr term : terms) {
    std::string piece = ExprText(term, leaf);
    if (text.empty()) {
      text = piece;
    } else if (piece.front() == '-') {
      absl::StrAppend(&text, " - ", piece.substr(1));
    } else {
      absl::StrAppend(&text, " + ", piece);
    }
  }
  return text;
}

std::string SumText(IntExpr sum, const LeafText& leaf) {
  std::vector<IntExpr> fixed, varying;
  for (IntExpr term : sum.operands()) (schedule::IsFixed(term) ? fixed : varying).push_back(term);
  if (fixed.size() < kLongSum) {
    return TermsText({sum.operands().begin(), sum.operands().end()}, leaf);
  }
  const std::string once = absl::StrCat("KOnce(", TermsText(fixed, leaf), ")");
  return varying.empty() ? once : absl::StrCat(TermsText(varying, leaf), " + ", once);
}

// The constant first: a negative one so reads as a subtraction in a sum.
std::string ProductText(IntExpr product, const LeafText& leaf) {
  std::string constant, rest;
  for (IntExpr factor : product.operands()) {
    if (factor.is_const()) {
      constant = LongText(factor.value());
    } else {
      absl::StrAppend(&rest, rest.empty() ? "" : " * ", Factor(factor, leaf));
    }
  }
  if (constant == "-1") return "-" + rest;
  return constant.empty() ? rest : absl::StrCat(constant, " * ", rest);
}

std::string CallText(absl::string_view function, IntExpr e, const LeafText& leaf) {
  std::string text = ExprText(e.operands()[0], leaf);
  for (size_t i = 1; i < e.operands().size(); ++i) {
    text = absl::StrCat(function, "(", text, ", ", ExprText(e.operands()[i], leaf), ")");
  }
  return text;
}

bool NeverNegative(IntExpr e) {
  return e.operands()[0].range().min >= 0 && e.operands()[1].range().min > 0;
}

}  // namespace

std::string ExprText(IntExpr expr, const LeafText& leaf) {
  switch (expr.kind()) {
    case IntKind::kConst:
      return LongText(expr.value());
    case IntKind::kSymbol:
    case IntKind::kVar:
    case IntKind::kIndirect:
      return leaf(expr);
    case IntKind::kAdd:
      return SumText(expr, leaf);
    case IntKind::kMul:
      return ProductText(expr, leaf);
    case IntKind::kFloorDiv:
      return CallText(NeverNegative(expr) ? "KDiv" : "KFloorDivIndex", expr, leaf);
    case IntKind::kMod:
      return CallText(NeverNegative(expr) ? "KRem" : "KModIndex", expr, leaf);
    case IntKind::kMin:
      return CallText("KMinIndex", expr, leaf);
    case IntKind::kMax:
      return CallText("KMaxIndex", expr, leaf);
  }
  return "";
}

std::string Names::Buffer(ir::BufferId buffer) {
  auto [it, inserted] = buffer_number_.try_emplace(buffer, static_cast<int>(buffers_.size()));
  if (inserted) buffers_.push_back(buffer);
  used_.buffers.insert(it->second);
  return absl::StrCat("b", it->second);
}

std::string Names::Alloc(int alloc) {
  used_.allocs.insert(alloc);
  const int number = static_cast<int>(alloc_number_.size());
  return absl::StrCat("a", alloc_number_.try_emplace(alloc, number).first->second);
}

std::string Names::Leaf(IntExpr leaf) {
  if (leaf.kind() == IntKind::kVar) return vars_.at(leaf);
  auto [it, inserted] = symbol_number_.try_emplace(leaf.id(), static_cast<int>(symbols_.size()));
  if (inserted) symbols_.push_back(leaf.id());
  used_.symbols.insert(it->second);
  return absl::StrCat("s", it->second);
}

std::string Names::Expr(IntExpr expr) {
  std::string text = ExprText(expr, [this](IntExpr leaf) { return Leaf(leaf); });
  const bool operators = expr.kind() == IntKind::kAdd || expr.kind() == IntKind::kMul;
  return operators || text.front() == '-' ? absl::StrCat("(", text, ")") : text;
}

std::string PointerType(const ir::Module& module, const Names& names, ir::BufferId buffer) {
  return absl::StrCat(names.IsStored(buffer) ? "" : "const ", CppType(module.buffers[buffer].dtype),
                      "*");
}

}  // namespace kiln::codegen::source
