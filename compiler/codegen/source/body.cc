#include "compiler/codegen/source/body.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/codegen/source/reduce_text.h"
#include "compiler/schedule/nest.h"

namespace kiln::codegen::source {

using absl::StrAppend;
using absl::StrCat;
using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;
using schedule::Compute;

namespace {

std::string CallText(ScalarOp op, const std::vector<std::string>& operands) {
  const absl::string_view text = Info(op).text;
  if (absl::ascii_isalpha(text.front()))
    return StrCat(text, "(", absl::StrJoin(operands, ", "), ")");
  if (operands.size() == 1) return StrCat(text, operands[0]);
  return StrCat(operands[0], " ", text, " ", operands[1]);
}

// Half-precision values pass through these as bits.
bool MovesBits(ScalarOp op) {
  return op == ScalarOp::kSelect || op == ScalarOp::kCast || op == ScalarOp::kBitcast;
}

}  // namespace

std::string ComputeTypeText(DType dtype) {
  return std::string(CppType(ComputeType(dtype)));
}

Body::Body(ir::IntContext& ints, int num_values, Names& names, Writer& out)
    : ints_(ints), names_(names), out_(out), values_(num_values) {}

void Body::SetLanes(IntExpr var, int width, bool aligned) {
  lane_var_ = var;
  width_ = width;
  aligned_ = aligned;
}

void Body::Define(ValueId id, DType dtype, bool varying, std::string text) {
  values_[id] = {std::move(text), dtype, varying, false};
}

std::string Body::NewName(absl::string_view prefix) {
  return StrCat(prefix, name_count_[std::string(prefix)]++);
}

bool Body::IndirectVaries(const Inst& inst) const {
  for (int i = 0; i < schedule::NumIndirect(inst); ++i) {
    if (values_[inst.operands[i]].varying) return true;
  }
  return false;
}

bool Body::Varies(const Compute& step) const {
  if (!lane_var_) return false;
  if (!step.inst.indices.empty() && ContainsVar(step.inst.indices[0], lane_var_)) return true;
  for (ValueId id : step.inst.operands) {
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

std::string Body::IndexText(const Compute& step, absl::string_view lane) {
  const auto leaf_text = [&](IntExpr leaf) -> std::string {
    if (leaf.kind() == ir::IntKind::kIndirect) {
      const ValueId id = step.inst.operands[leaf.id()];
      const Value& value = values_[id];
      const std::string at =
          value.constant ? value.text : StrCat(value.text, "[", value.varying ? lane : "0", "]");
      checks_ = true;
      return StrCat("KCheck(", at, ", ", names_.Expr(leaf.extent()), ", &error)");
    }
    std::string name = names_.Leaf(leaf);
    return leaf == lane_var_ && lane != "0" ? StrCat("(", name, " + ", lane, ")") : name;
  };
  std::string text = ExprText(step.inst.indices[0], leaf_text);
  for (const IntExpr check : step.inst.checks) StrAppend(&text, " + 0 * ", leaf_text(check));
  return text;
}

std::string Body::BaseText(const Compute& step) {
  return step.alloc >= 0 ? names_.Alloc(step.alloc) : names_.Buffer(step.inst.buffer);
}

std::string Body::PointerText(const Compute& step) {
  const std::string index = IndexText(step, "0");
  const std::string buffer = BaseText(step);
  return index == "0" ? buffer : StrCat(buffer, " + ", index);
}

// Null where lanes are not equally far apart.
IntExpr Body::StrideOf(const Compute& step) {
  if (IndirectVaries(step.inst)) return IntExpr();
  return aligned_ ? schedule::LaneStride(ints_, step.inst.indices[0], lane_var_, width_)
                  : ints_.CoefficientOf(step.inst.indices[0], lane_var_);
}

std::string Body::AlignmentText(const Compute& step) const {
  if (!alignment_) return "";
  return StrCat(", ", IndirectVaries(step.inst) || schedule::NumIndirect(step.inst) > 0
                          ? 1
                          : alignment_(step.inst.indices[0]));
}

std::string Body::LoadText(const Compute& step, bool varying) {
  const Inst& inst = step.inst;
  const std::string type(CppType(inst.dtype));
  const std::string buffer = BaseText(step);
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
  std::string load =
      contiguous ? StrCat("KLoad<", mode, AlignmentText(step), ">(", PointerText(step), ", n)")
      : fixed    ? StrCat("KSplat<", width_, ">(KLoadAll<1>(", PointerText(step), "))")
      : even     ? StrCat("KLoadEven<", mode, ">(", PointerText(step), ", n)")
                 : gather("KGather", "");
  if (!inst.has_mask) return load;
  return StrCat(Use(mask, false), "[0] ? ", load, " : KConst<", type, ", ", width_, ">(", other,
                ")");
}

void Body::EmitStore(const Compute& step, bool varying) {
  const Inst& inst = step.inst;
  const ValueId value = inst.operands.back();
  if (step.alloc < 0) names_.MarkStored(inst.buffer);
  if (ir::IsScatter(inst)) return EmitScatter(step, varying);
  if (!varying) {
    out_.Line("KStoreAll(", PointerText(step), ", ", Use(value, false), ");");
    return;
  }
  IntExpr stride = StrideOf(step);
  if (stride && stride.is_const(1)) {
    out_.Line(step.stream ? "KStream" : "KStore", "<kTail", AlignmentText(step), ">(",
              PointerText(step), ", n, ", Use(value, true), ");");
    return;
  }
  out_.Line("KScatter<kTail>(n, ", Use(value, true), ", [&](long i, ", CppType(inst.dtype),
            " x) { ", BaseText(step), "[", IndexText(step, "i"), "] = x; });");
}

// After an index outside of its dimension, which counts as 0, nothing is stored: there may be no
// element 0.
void Body::EmitScatter(const Compute& step, bool varying) {
  const Inst& inst = step.inst;
  const std::string type(CppType(inst.dtype));
  const auto fold = [&](const std::string& before, const std::string& value) {
    if (!inst.accumulates) return value;
    const DType compute = ComputeType(inst.dtype);
    return StrCat("KAccumulate<", DescribeReduce(inst.reduce_kind, compute).functor, ", ",
                  CppType(compute), ">(", before, ", ", value, ")");
  };
  const IntExpr stride = varying ? StrideOf(step) : IntExpr();
  const std::string value = Use(inst.operands.back(), varying);
  if (varying && !(stride && stride.is_const(1))) {
    out_.Line("KScatter<kTail>(n, ", value, ", [&](long i, ", type, " x) {");
    out_.Line(type, "* const p = ", BaseText(step), " + ", IndexText(step, "i"), ";");
    if (schedule::NumIndirect(inst) > 0) {
      checks_ = true;
      out_.Line("if (error) return;");
    }
    out_.Line("KStoreAll(p, ", fold("KLoadAll<1>(p)", StrCat("Vec<", type, ", 1>(x)")), ");");
    out_.Line("});");
    return;
  }
  const std::string p = NewName("p");
  out_.Line(type, "* const ", p, " = ", PointerText(step), ";");
  std::string guard;
  if (schedule::NumIndirect(inst) > 0) {
    checks_ = true;
    guard = "if (!error) ";
  }
  if (varying) {
    const std::string before = StrCat("KLoad<", width_, ", kTail>(", p, ", n)");
    out_.Line(guard, "KStore<kTail>(", p, ", n, ", fold(before, value), ");");
  } else {
    out_.Line(guard, "KStoreAll(", p, ", ", fold(StrCat("KLoadAll<1>(", p, ")"), value), ");");
  }
}

std::string Body::IndexValueText(const Compute& step, bool varying) {
  const std::string first = IndexText(step, "0");
  if (!varying) return StrCat("KConst<long, 1>(", first, ")");
  IntExpr stride = StrideOf(step);
  if (stride) return StrCat("KIota<", width_, ">(", first, ", ", names_.Expr(stride), ")");
  return StrCat("KGather<long, ", width_, ", kTail>(n, [&](long i) { return ", IndexText(step, "i"),
                "; })");
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
  if (inst.op == ScalarOp::kNonzero) {
    divisors_ = true;
    return StrCat(varying ? "KNonzero<kTail>(" : "KNonzero<false>(", Use(inst.operands[0], varying),
                  varying ? ", n" : ", 1", ", &by_zero)");
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
  const std::string function = function_ ? function_(inst) : "";
  std::string text = function.empty() ? CallText(inst.op, operands)
                                      : StrCat(function, "(", absl::StrJoin(operands, ", "), ")");
  if (IsHalf(inst.dtype) && !MovesBits(inst.op)) {
    text = StrCat("KCast<", CppType(inst.dtype), ">(", text, ")");
  }
  return text;
}

void Body::Emit(const Compute& step) {
  const Inst& inst = step.inst;
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

}  // namespace kiln::codegen::source
