// Kernels, phases and instructions.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/parse_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {

absl::StatusOr<Kernel> Parser::KernelDefinition() {
  Kernel kernel;
  KILN_ASSIGN_OR_RETURN(kernel.name, Take(TokenKind::kName, "a kernel's name"));
  if (Accept("contraction")) kernel.schedule = Schedule::kContraction;
  if (Accept("packing")) kernel.schedule = Schedule::kPacking;
  if (Accept("sorting")) kernel.schedule = Schedule::kSorting;
  KILN_ASSIGN_OR_RETURN(kernel.outer, Loops('d'));
  if (Accept("from")) {
    KILN_ASSIGN_OR_RETURN(kernel.origins, Strings());
  }
  KILN_RETURN_IF_ERROR(Expect("{"));
  while (!At("}")) KILN_RETURN_IF_ERROR(PhaseDefinition(kernel));
  Advance();
  vars_.clear();
  return kernel;
}

absl::Status Parser::RepeatDefinition() {
  Repeat repeat;
  KILN_ASSIGN_OR_RETURN(repeat.name, Take(TokenKind::kName, "a repeat's name"));
  const bool has_versions = Accept("by");
  if (has_versions) {
    KILN_ASSIGN_OR_RETURN(repeat.by, Symbols());
  } else {
    KILN_RETURN_IF_ERROR(Expect("steps"));
    KILN_ASSIGN_OR_RETURN(repeat.steps, Numbers());
    KILN_ASSIGN_OR_RETURN(repeat.before, KernelCount("before"));
    KILN_ASSIGN_OR_RETURN(repeat.after, KernelCount("after"));
  }
  KILN_RETURN_IF_ERROR(Expect("{"));
  while (has_versions && Accept("version")) {
    KILN_ASSIGN_OR_RETURN(repeat.versions.emplace_back(), Version());
  }
  std::vector<std::vector<TileWindow>> windows;
  bool has_windows = false;
  while (!At("}")) {
    windows.emplace_back(repeat.steps.size());
    has_windows |= At("window");
    if (Accept("window")) KILN_RETURN_IF_ERROR(Windows(windows.back()));
    KILN_RETURN_IF_ERROR(Expect("kernel"));
    KILN_ASSIGN_OR_RETURN(Kernel kernel, KernelDefinition());
    repeat.kernels.push_back(std::move(kernel));
  }
  Advance();
  if (has_windows) repeat.windows = std::move(windows);
  if (repeat.before > repeat.kernels.size() ||
      repeat.after > repeat.kernels.size() - repeat.before) {
    return Error("a repeat has fewer kernels than stand before and after its tiles");
  }
  module_.operations.push_back(std::move(repeat));
  return absl::OkStatus();
}

// "(s0, s1)"
absl::StatusOr<std::vector<IntExpr>> Parser::Symbols() {
  std::vector<IntExpr> symbols;
  KILN_RETURN_IF_ERROR(Expect("("));
  while (!At(")")) {
    if (!symbols.empty()) KILN_RETURN_IF_ERROR(Expect(","));
    const auto symbol = symbols_.find(token_.text);
    if (token_.kind != TokenKind::kIdentifier || symbol == symbols_.end()) {
      return Expected("a symbol");
    }
    if (symbols.size() == kMaxDimensions) return Error("too many symbols");
    symbols.push_back(symbol->second);
    Advance();
  }
  Advance();
  return symbols;
}

// "most(64) step 2 loops(0, 1) keeps(@a, @b)", each part where it is there.
absl::StatusOr<RepeatVersion> Parser::Version() {
  RepeatVersion version;
  if (Accept("most")) {
    KILN_ASSIGN_OR_RETURN(version.most, Numbers());
  }
  if (Accept("step")) {
    KILN_ASSIGN_OR_RETURN(version.step, Int());
    KILN_RETURN_IF_ERROR(Expect("loops"));
    KILN_ASSIGN_OR_RETURN(version.loops, Numbers());
  }
  if (!Accept("keeps")) return version;
  KILN_RETURN_IF_ERROR(Expect("("));
  while (!At(")")) {
    if (!version.keeps.empty()) KILN_RETURN_IF_ERROR(Expect(","));
    KILN_ASSIGN_OR_RETURN(version.keeps.emplace_back(), BufferRef());
  }
  Advance();
  return version;
}

// "(64, 128)"
absl::StatusOr<std::vector<int64_t>> Parser::Numbers() {
  std::vector<int64_t> numbers;
  KILN_RETURN_IF_ERROR(Expect("("));
  while (!At(")")) {
    if (!numbers.empty()) KILN_RETURN_IF_ERROR(Expect(","));
    if (numbers.size() == kMaxListLength) return Error("too many numbers");
    KILN_ASSIGN_OR_RETURN(numbers.emplace_back(), Int());
  }
  Advance();
  return numbers;
}

// "(1 from 0 to 0, 2 from -1 to 1)": one for each step.
absl::Status Parser::Windows(std::vector<TileWindow>& windows) {
  for (size_t i = 0; i < windows.size(); ++i) {
    KILN_RETURN_IF_ERROR(Expect(i == 0 ? "(" : ","));
    KILN_ASSIGN_OR_RETURN(windows[i].scale, Int());
    KILN_RETURN_IF_ERROR(Expect("from"));
    KILN_ASSIGN_OR_RETURN(windows[i].low, Int());
    KILN_RETURN_IF_ERROR(Expect("to"));
    KILN_ASSIGN_OR_RETURN(windows[i].high, Int());
  }
  return Expect(")");
}

// "before(2)", or nothing, which is 0.
absl::StatusOr<size_t> Parser::KernelCount(absl::string_view word) {
  if (!At(word)) return 0;
  Advance();
  KILN_RETURN_IF_ERROR(Expect("("));
  KILN_ASSIGN_OR_RETURN(const int64_t count, Int());
  if (count < 0) return Error("a number of kernels is negative");
  KILN_RETURN_IF_ERROR(Expect(")"));
  return static_cast<size_t>(count);
}

// "(d0: 128, d1: s0)": new variables, in scope only after the list.
absl::StatusOr<std::vector<IntExpr>> Parser::Loops(char prefix) {
  absl::flat_hash_map<std::string, IntExpr> hidden;
  hidden.swap(vars_);
  std::vector<IntExpr> loops;
  KILN_RETURN_IF_ERROR(Expect("("));
  while (!At(")")) {
    if (!loops.empty()) KILN_RETURN_IF_ERROR(Expect(","));
    if (loops.size() == kMaxDimensions) return Error("too many loops");
    const std::string name = absl::StrCat(std::string(1, prefix), loops.size());
    KILN_RETURN_IF_ERROR(Expect(name));
    KILN_RETURN_IF_ERROR(Expect(":"));
    KILN_ASSIGN_OR_RETURN(IntExpr extent, Expr());
    loops.push_back(module_.ints->NewVar(extent));
    hidden[name] = loops.back();
  }
  Advance();
  vars_ = std::move(hidden);
  return loops;
}

absl::Status Parser::PhaseDefinition(Kernel& kernel) {
  Phase phase;
  KILN_RETURN_IF_ERROR(Expect("phase"));
  KILN_ASSIGN_OR_RETURN(phase.inner, Loops('r'));
  KILN_RETURN_IF_ERROR(Expect("{"));
  while (!At("}")) {
    KILN_ASSIGN_OR_RETURN(Inst inst, Instruction());
    kernel.num_values = std::max(kernel.num_values, inst.result + 1);
    phase.body.push_back(std::move(inst));
  }
  Advance();
  for (size_t i = 0; i < phase.inner.size(); ++i) vars_.erase(absl::StrCat("r", i));
  kernel.phases.push_back(std::move(phase));
  return absl::OkStatus();
}

absl::StatusOr<Inst> Parser::Instruction() {
  Inst inst;
  if (Accept("store")) {
    inst.op = ScalarOp::kStore;
    if (Accept(".")) {
      inst.accumulates = true;
      KILN_ASSIGN_OR_RETURN(inst.reduce_kind, KindOfReduction());
    }
    KILN_RETURN_IF_ERROR(StoreRest(inst));
    return inst;
  }
  KILN_ASSIGN_OR_RETURN(inst.result, Value());
  KILN_RETURN_IF_ERROR(Expect("="));
  const std::optional<ScalarOp> op =
      token_.kind == TokenKind::kIdentifier ? ScalarOpFromName(token_.text) : std::nullopt;
  if (!op || *op == ScalarOp::kStore) return Expected("an operation with a result");
  Advance();
  inst.op = *op;
  if (inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) {
    KILN_RETURN_IF_ERROR(Expect("."));
    KILN_ASSIGN_OR_RETURN(inst.reduce_kind, KindOfReduction());
  }
  KILN_ASSIGN_OR_RETURN(inst.dtype, Type());
  if (inst.op == ScalarOp::kConst) {
    KILN_RETURN_IF_ERROR(Immediate(inst));
  } else if (inst.op == ScalarOp::kIndex) {
    KILN_ASSIGN_OR_RETURN(IntExpr index, Expr());
    inst.indices.push_back(index);
  } else if (inst.op == ScalarOp::kLoad) {
    KILN_RETURN_IF_ERROR(LoadRest(inst));
  } else {
    while (token_.kind == TokenKind::kValue) {
      if (inst.operands.size() == kMaxDimensions) return Error("too many operands");
      KILN_ASSIGN_OR_RETURN(ValueId operand, Value());
      inst.operands.push_back(operand);
      if (!Accept(",")) break;
    }
    if (inst.op == ScalarOp::kSort && Accept("first")) {
      KILN_ASSIGN_OR_RETURN(inst.immediate_int, Int());
    }
  }
  return inst;
}

absl::StatusOr<ReduceKind> Parser::KindOfReduction() {
  const std::optional<ReduceKind> kind = ReduceKindFromName(token_.text);
  if (!kind) return Expected("a kind of reduction");
  Advance();
  return *kind;
}

absl::Status Parser::StoreRest(Inst& inst) {
  KILN_ASSIGN_OR_RETURN(inst.dtype, Type());
  KILN_RETURN_IF_ERROR(Access(inst));
  KILN_RETURN_IF_ERROR(Expect(","));
  KILN_ASSIGN_OR_RETURN(ValueId value, Value());
  inst.operands.push_back(value);
  return absl::OkStatus();
}

absl::Status Parser::LoadRest(Inst& inst) {
  KILN_RETURN_IF_ERROR(Access(inst));
  if (!Accept("if")) return absl::OkStatus();
  inst.has_mask = true;
  KILN_ASSIGN_OR_RETURN(ValueId mask, Value());
  inst.operands.push_back(mask);
  KILN_RETURN_IF_ERROR(Expect("else"));
  return Immediate(inst);
}

absl::StatusOr<std::vector<IntExpr>> Parser::Place(Inst& inst) {
  KILN_ASSIGN_OR_RETURN(inst.buffer, BufferRef());
  return module_.buffers[inst.buffer].sizes;
}

absl::Status Parser::Access(Inst& inst) {
  KILN_ASSIGN_OR_RETURN(const std::vector<IntExpr> sizes, Place(inst));
  KILN_RETURN_IF_ERROR(Expect("["));
  inst_ = &inst;
  while (!At("]")) {
    if (!inst.indices.empty()) KILN_RETURN_IF_ERROR(Expect(","));
    if (inst.indices.size() == sizes.size()) {
      return Error(absl::StrCat("more indices than the ", sizes.size(), " dimensions of ",
                                inst.buffer < 0 ? "it" : "@" + module_.buffers[inst.buffer].name));
    }
    dimension_ = sizes[inst.indices.size()];
    KILN_ASSIGN_OR_RETURN(IntExpr index, Expr());
    inst.indices.push_back(index);
  }
  Advance();
  dimension_ = IntExpr();
  const bool has_more = Accept("using");
  while (has_more && (At("[") || token_.kind == TokenKind::kValue)) {
    if (inst.operands.size() >= kMaxListLength) return Error("too many operands");
    if (At("[")) {
      KILN_ASSIGN_OR_RETURN(inst.checks.emplace_back(), IndirectIndex(0));
    } else {
      KILN_ASSIGN_OR_RETURN(inst.operands.emplace_back(), Value());
    }
  }
  inst_ = nullptr;
  return absl::OkStatus();
}

absl::Status Parser::Immediate(Inst& inst) {
  if (inst.dtype == DType::kBool && (At("true") || At("false"))) {
    inst.immediate_int = At("true");
    Advance();
    return absl::OkStatus();
  }
  if (IsIntegral(inst.dtype)) {
    KILN_ASSIGN_OR_RETURN(inst.immediate_int, Int());
  } else {
    KILN_ASSIGN_OR_RETURN(inst.immediate_float, Float());
  }
  return absl::OkStatus();
}

absl::StatusOr<ValueId> Parser::Value() {
  int64_t id = 0;
  if (token_.kind != TokenKind::kValue) return Expected("a value such as %0");
  if (!absl::SimpleAtoi(token_.text, &id) || id >= kMaxValueId) {
    return Error(absl::StrCat("values are numbered below ", kMaxValueId));
  }
  Advance();
  return static_cast<ValueId>(id);
}

}  // namespace kiln::ir
