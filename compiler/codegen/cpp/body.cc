#include "compiler/codegen/cpp/body.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kiln::codegen::cpp {

using absl::StrCat;
using ir::Inst;
using ir::IntExpr;
using ir::ReduceKind;
using ir::ScalarOp;
using ir::ValueId;

namespace {

absl::string_view FunctionName(ScalarOp op) {
  switch (op) {
    case ScalarOp::kFloorDiv:
      return "KFloorDiv";
    case ScalarOp::kTruncDiv:
      return "KTruncDiv";
    case ScalarOp::kMod:
      return "KMod";
    case ScalarOp::kFmod:
      return "KFmod";
    case ScalarOp::kMin:
      return "KMin";
    case ScalarOp::kMax:
      return "KMax";
    case ScalarOp::kPow:
      return "KPow";
    case ScalarOp::kAtan2:
      return "KAtan2";
    case ScalarOp::kCopysign:
      return "__builtin_elementwise_copysign";
    case ScalarOp::kFma:
      return "__builtin_elementwise_fma";
    case ScalarOp::kAbs:
      return "KAbs";
    case ScalarOp::kSign:
      return "KSign";
    case ScalarOp::kExp:
      return "KExp";
    case ScalarOp::kExp2:
      return "KExp2";
    case ScalarOp::kExpm1:
      return "KExpm1";
    case ScalarOp::kLog:
      return "KLog";
    case ScalarOp::kLog2:
      return "KLog2";
    case ScalarOp::kLog10:
      return "KLog10";
    case ScalarOp::kLog1p:
      return "KLog1p";
    case ScalarOp::kSqrt:
      return "KSqrt";
    case ScalarOp::kRsqrt:
      return "KRsqrt";
    case ScalarOp::kSin:
      return "KSin";
    case ScalarOp::kCos:
      return "KCos";
    case ScalarOp::kTan:
      return "KTan";
    case ScalarOp::kAsin:
      return "KAsin";
    case ScalarOp::kAcos:
      return "KAcos";
    case ScalarOp::kAtan:
      return "KAtan";
    case ScalarOp::kSinh:
      return "KSinh";
    case ScalarOp::kCosh:
      return "KCosh";
    case ScalarOp::kTanh:
      return "KTanh";
    case ScalarOp::kAsinh:
      return "KAsinh";
    case ScalarOp::kAcosh:
      return "KAcosh";
    case ScalarOp::kAtanh:
      return "KAtanh";
    case ScalarOp::kErf:
      return "KErf";
    case ScalarOp::kErfc:
      return "KErfc";
    case ScalarOp::kSigmoid:
      return "KSigmoid";
    case ScalarOp::kFloor:
      return "__builtin_elementwise_floor";
    case ScalarOp::kCeil:
      return "__builtin_elementwise_ceil";
    case ScalarOp::kTrunc:
      return "__builtin_elementwise_trunc";
    case ScalarOp::kRound:
      return "__builtin_elementwise_roundeven";
    case ScalarOp::kShl:
      return "KShl";
    case ScalarOp::kShr:
      return "KShr";
    case ScalarOp::kEq:
      return "KEq";
    case ScalarOp::kNe:
      return "KNe";
    case ScalarOp::kLt:
      return "KLt";
    case ScalarOp::kLe:
      return "KLe";
    case ScalarOp::kGt:
      return "KGt";
    case ScalarOp::kGe:
      return "KGe";
    case ScalarOp::kIsNan:
      return "KIsNan";
    case ScalarOp::kIsInf:
      return "KIsInf";
    default:
      return "";
  }
}

absl::string_view InfixOperator(ScalarOp op) {
  switch (op) {
    case ScalarOp::kAdd:
      return "+";
    case ScalarOp::kSub:
      return "-";
    case ScalarOp::kMul:
      return "*";
    case ScalarOp::kDiv:
      return "/";
    case ScalarOp::kAnd:
      return "&";
    case ScalarOp::kOr:
      return "|";
    case ScalarOp::kXor:
      return "^";
    default:
      return "";
  }
}

bool IsHalf(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// Half-precision values pass through these as bits.
bool MovesBits(ScalarOp op) {
  return op == ScalarOp::kSelect || op == ScalarOp::kCast || op == ScalarOp::kBitcast;
}

}  // namespace

std::string ComputeTypeText(DType dtype) {
  return std::string(CppType(ComputeType(dtype)));
}

ReduceText DescribeReduce(const Inst& reduce, DType operand_type) {
  const DType type = ComputeType(operand_type);
  const double inf = std::numeric_limits<double>::infinity();
  const bool floating = IsFloat(type);
  const int bits = static_cast<int>(8 * DTypeSize(type));
  const int64_t least = type == DType::kU8 ? 0
                        : bits == 64       ? INT64_MIN
                                           : -(int64_t{1} << (bits - 1));
  const int64_t greatest = type == DType::kU8 ? 255 : ~least;
  auto literal = [&](double as_float, int64_t as_int) {
    return floating ? FloatLiteral(type, as_float) : IntLiteral(type, as_int);
  };
  switch (reduce.reduce_kind) {
    case ReduceKind::kSum:
      return {"KSum", literal(0, 0)};
    case ReduceKind::kProd:
      return {"KProd", literal(1, 1)};
    case ReduceKind::kMax:
      return {"KMaxOf", literal(-inf, least)};
    case ReduceKind::kMin:
      return {"KMinOf", literal(inf, greatest)};
    case ReduceKind::kAny:
      return {"KAnyOf", "false"};
    case ReduceKind::kAll:
      return {"KAllOf", "true"};
    case ReduceKind::kArgMax:
      return {"", literal(-inf, least), true};
    case ReduceKind::kArgMin:
      return {"", literal(inf, greatest), false};
  }
  return {};
}

Body::Body(ir::Module& module, const ir::Kernel& kernel, Names& names, Writer& out)
    : ints_(*module.ints), names_(names), out_(out), values_(kernel.num_values) {}

void Body::SetLanes(IntExpr var, int width) {
  lane_var_ = var;
  width_ = width;
}

void Body::Define(ValueId id, DType dtype, bool varying, std::string text) {
  values_[id] = {std::move(text), dtype, varying, false};
}

std::string Body::NewName(absl::string_view prefix) {
  return StrCat(prefix, name_count_[std::string(prefix)]++);
}

bool Body::IndirectVaries(const Step& step) const {
  for (int i = 0; i < NumIndirect(*step.inst); ++i) {
    if (values_[step.inst->operands[i]].varying) return true;
  }
  return false;
}

bool Body::Varies(const Step& step) const {
  if (!lane_var_) return false;
  if (step.index && ContainsVar(step.index, lane_var_)) return true;
  for (ValueId id : step.inst->operands) {
    if (values_[id].varying) return true;
  }
  return false;
}

std::string Body::Use(ValueId id, bool varying) const {
  const Value& value = values_[id];
  if (value.constant) {
    return StrCat("KConst<", CppType(value.dtype), ", ", varying ? width_ : 1, ">(", value.text,
                  ")");
  }
  if (varying && !value.varying && width_ > 1) {
    return StrCat("KSplat<", width_, ">(", value.text, ")");
  }
  return value.text;
}

std::string Body::UseComputed(ValueId id, bool varying) const {
  std::string text = Use(id, varying);
  return IsHalf(values_[id].dtype) ? StrCat("KCast<float>(", text, ")") : text;
}

std::string Body::IndexText(const Step& step, absl::string_view lane) {
  return ExprText(step.index, [&](IntExpr leaf) -> std::string {
    if (leaf.kind() == ir::IntKind::kIndirect) {
      const ValueId id = step.inst->operands[leaf.id()];
      const Value& value = values_[id];
      const std::string at =
          value.constant ? value.text : StrCat(value.text, "[", value.varying ? lane : "0", "]");
      return StrCat("KCheck(", at, ", ", names_.Expr(leaf.extent()), ", &error)");
    }
    std::string name = names_.Leaf(leaf);
    return leaf == lane_var_ && lane != "0" ? StrCat("(", name, " + ", lane, ")") : name;
  });
}

std::string Body::PointerText(const Step& step) {
  const std::string index = IndexText(step, "0");
  const std::string buffer = names_.Buffer(step.inst->buffer);
  return index == "0" ? buffer : StrCat(buffer, " + ", index);
}

// Null where lanes are not equally far apart.
IntExpr Body::StrideOf(const Step& step) {
  if (IndirectVaries(step)) return IntExpr();
  return aligned_ ? LaneStride(ints_, step.index, lane_var_, width_)
                  : ints_.CoefficientOf(step.index, lane_var_);
}

std::string Body::LoadText(const Step& step, bool varying) {
  const Inst& inst = *step.inst;
  const std::string type(CppType(inst.dtype));
  const std::string buffer = names_.Buffer(inst.buffer);
  const ValueId mask = inst.has_mask ? inst.operands.back() : ir::kNoValue;
  const std::string other = ImmediateLiteral(inst);
  if (!varying) {
    const std::string load = StrCat("KLoadAll<1>(", PointerText(step), ")");
    if (!inst.has_mask) return load;
    return StrCat(Use(mask, false), "[0] ? ", load, " : KConst<", type, ", 1>(", other, ")");
  }
  IntExpr stride = StrideOf(step);
  const bool contiguous = stride && stride.is_const(1);
  const bool fixed = stride && stride.is_const(0);
  const bool even = stride && stride.is_const(2);
  const std::string mode = StrCat(width_, ", kTail");
  auto gather = [&](absl::string_view kind, absl::string_view extra) {
    return StrCat(kind, "<", type, ", ", mode, ">(n, ", extra, "[&](long i) { return ", buffer, "[",
                  IndexText(step, "i"), "]; })");
  };
  if (inst.has_mask && values_[mask].varying) {
    const std::string mask_text = Use(mask, true);
    if (contiguous || even) {
      return StrCat(even ? "KLoadEvenMasked<" : "KLoadMasked<", mode, ">(", PointerText(step),
                    ", n, ", mask_text, ", ", other, ")");
    }
    return gather("KGatherMasked", StrCat(mask_text, ", ", other, ", "));
  }
  std::string load = contiguous ? StrCat("KLoad<", mode, ">(", PointerText(step), ", n)")
                     : fixed ? StrCat("KSplat<", width_, ">(KLoadAll<1>(", PointerText(step), "))")
                     : even  ? StrCat("KLoadEven<", mode, ">(", PointerText(step), ", n)")
                             : gather("KGather", "");
  if (!inst.has_mask) return load;
  return StrCat(Use(mask, false), "[0] ? ", load, " : KConst<", type, ", ", width_, ">(", other,
                ")");
}

void Body::EmitStore(const Step& step, bool varying) {
  const Inst& inst = *step.inst;
  const ValueId value = inst.operands.back();
  names_.MarkStored(inst.buffer);
  if (!varying) {
    out_.Line("KStoreAll(", PointerText(step), ", ", Use(value, false), ");");
    return;
  }
  IntExpr stride = StrideOf(step);
  if (stride && stride.is_const(1)) {
    const bool streamed = streamed_.contains(inst.buffer);
    out_.Line(streamed ? "KStream" : "KStore", "<kTail>(", PointerText(step), ", n, ",
              Use(value, true), ");");
    return;
  }
  out_.Line("KScatter<kTail>(n, ", Use(value, true), ", [&](long i, ", CppType(inst.dtype),
            " x) { ", names_.Buffer(inst.buffer), "[", IndexText(step, "i"), "] = x; });");
}

std::string Body::IndexValueText(const Step& step, bool varying) {
  const std::string first = IndexText(step, "0");
  if (!varying) return StrCat("KConst<long, 1>(", first, ")");
  IntExpr stride = StrideOf(step);
  if (stride) return StrCat("KIota<", width_, ">(", first, ", ", names_.Expr(stride), ")");
  return StrCat("KGather<long, ", width_, ", kTail>(n, [&](long i) { return ", IndexText(step, "i"),
                "; })");
}

std::string Body::CallText(const Inst& inst, const std::vector<std::string>& operands) {
  const absl::string_view infix = InfixOperator(inst.op);
  if (!infix.empty()) return StrCat(operands[0], " ", infix, " ", operands[1]);
  if (inst.op == ScalarOp::kNeg) return StrCat("-", operands[0]);
  if (inst.op == ScalarOp::kNot) return StrCat("~", operands[0]);
  return StrCat(FunctionName(inst.op), "(", absl::StrJoin(operands, ", "), ")");
}

std::string Body::ComputeText(const Inst& inst, bool varying) {
  std::vector<std::string> operands;
  if (inst.op == ScalarOp::kSelect) {
    return StrCat("KSelect(", Use(inst.operands[0], varying), ", ", Use(inst.operands[1], varying),
                  ", ", Use(inst.operands[2], varying), ")");
  }
  if (inst.op == ScalarOp::kCast) {
    return StrCat("KCast<", CppType(inst.dtype), ">(", Use(inst.operands[0], varying), ")");
  }
  if (inst.op == ScalarOp::kBitcast) {
    return StrCat("__builtin_bit_cast(Vec<", CppType(inst.dtype), ", ", varying ? width_ : 1, ">, ",
                  Use(inst.operands[0], varying), ")");
  }
  const bool predicate = Info(inst.op).rule == ir::TypeRule::kCompare;
  for (ValueId id : inst.operands) {
    std::string text = UseComputed(id, varying);
    if (predicate && values_[id].dtype == DType::kBool)
      text = StrCat("KCast<unsigned char>(", text, ")");
    operands.push_back(std::move(text));
  }
  std::string text = CallText(inst, operands);
  if (IsHalf(inst.dtype) && !MovesBits(inst.op)) {
    text = StrCat("KCast<", CppType(inst.dtype), ">(", text, ")");
  }
  return text;
}

void Body::Emit(const Step& step) {
  const Inst& inst = *step.inst;
  const bool varying = Varies(step);
  if (inst.op == ScalarOp::kStore) {
    EmitStore(step, varying);
    return;
  }
  if (inst.op == ScalarOp::kConst) {
    values_[inst.result] = {ImmediateLiteral(inst), inst.dtype, false, true};
    return;
  }
  std::string text;
  if (inst.op == ScalarOp::kLoad) {
    text = LoadText(step, varying);
  } else if (inst.op == ScalarOp::kIndex) {
    text = IndexValueText(step, varying);
  } else {
    text = ComputeText(inst, varying);
  }
  std::string name = NewName("v");
  out_.Line("const Vec<", CppType(inst.dtype), ", ", varying ? width_ : 1, "> ", name, " = ", text,
            ";");
  values_[inst.result] = {std::move(name), inst.dtype, varying, false};
}

}  // namespace kiln::codegen::cpp
