#include "compiler/ir/print.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "compiler/ir/module_text.h"

namespace kiln::ir {
namespace {

class Printer {
 public:
  explicit Printer(const Module& module)
      : module_(module), names_(NameModule(module)), sizes_(names_, nullptr, nullptr) {}

  using OperationText = std::function<std::string(const Operation& operation)>;
  std::string ModuleText(const OperationText& text) const;
  std::string TextOf(const Operation& operation) const;
  std::string TextOf(const Kernel& kernel) const;

 private:
  std::string SymbolText(size_t id) const;
  std::string BufferText(size_t id) const;
  std::string LibraryText(const Library& library) const;
  std::string ArgText(const LibraryArg& arg) const;
  std::string OutputText(const ModuleOutput& output) const;
  std::string WindowText(const BufferWindow& window) const;
  std::string BufferRef(BufferId id) const {
    return id >= 0 && static_cast<size_t>(id) < names_.buffers.size() ? names_.buffers[id] : "@?";
  }
  std::string LoopText(absl::string_view prefix, const std::vector<IntExpr>& vars) const;

  const Module& module_;
  const ModuleNames names_;
  const ExprWriter sizes_;  // for expressions over symbols only
};

std::string ValueText(ValueId id) {
  return id < 0 ? "%?" : absl::StrCat("%", id);
}

std::string ImmediateText(const Inst& inst) {
  if (inst.dtype == DType::kBool && (inst.immediate_int == 0 || inst.immediate_int == 1)) {
    return inst.immediate_int != 0 ? "true" : "false";
  }
  return IsIntegral(inst.dtype) ? absl::StrCat(inst.immediate_int)
                                : FloatText(inst.immediate_float);
}

std::string QuotedList(const std::vector<std::string>& items) {
  return absl::StrJoin(items, ", ", [](std::string* out, const std::string& s) {
    absl::StrAppend(out, QuoteText(s));
  });
}

std::string Type(DType dtype) {
  return std::string(DTypeName(dtype));
}

// "@x[d0, r0]". What is checked beside the indices follows as " using [%3 < 1]", and operands that
// nothing mentions as " using %3", so that none is lost.
std::string AccessText(const Module& module, const ModuleNames& names, const VarNames& vars,
                       const Inst& inst, absl::string_view place) {
  ExprWriter writer(names, &vars, &inst);
  const bool known =
      place.empty() && inst.buffer >= 0 && static_cast<size_t>(inst.buffer) < module.buffers.size();
  std::string out = absl::StrCat(known           ? absl::string_view(names.buffers[inst.buffer])
                                 : place.empty() ? "@?"
                                                 : place,
                                 "[");
  std::vector<bool> mentioned(inst.operands.size());
  const auto mention = [&](IntExpr leaf) {
    if (leaf.kind() != IntKind::kIndirect) return;
    const size_t operand = static_cast<size_t>(leaf.id());
    if (operand < mentioned.size()) mentioned[operand] = true;
  };
  for (size_t i = 0; i < inst.indices.size(); ++i) {
    const bool has_size = known && inst.indices.size() == module.buffers[inst.buffer].sizes.size();
    const IntExpr size = has_size ? module.buffers[inst.buffer].sizes[i] : IntExpr();
    absl::StrAppend(&out, i > 0 ? ", " : "", writer.IndexText(inst.indices[i], size));
    if (inst.indices[i]) ForEachLeaf(inst.indices[i], mention);
  }
  absl::StrAppend(&out, "]");
  std::vector<std::string> others;
  for (const IntExpr check : inst.checks) {
    others.push_back(writer.IndexText(check, IntExpr()));
    if (check) mention(check);
  }
  const size_t last = inst.op == ScalarOp::kStore || inst.has_mask ? 1 : 0;
  for (size_t i = 0; i + last < inst.operands.size(); ++i) {
    if (!mentioned[i]) others.push_back(ValueText(inst.operands[i]));
  }
  if (!others.empty()) absl::StrAppend(&out, " using ", absl::StrJoin(others, " "));
  return out;
}

std::string MaskText(const Inst& inst) {
  std::string out;
  if (inst.has_mask) {
    absl::StrAppend(&out, " if ", inst.operands.empty() ? "%?" : ValueText(inst.operands.back()),
                    " else ", ImmediateText(inst));
  }
  return out;
}

std::string Printer::ModuleText(const OperationText& text) const {
  std::string out = "module {\n";
  for (size_t i = 0; i < names_.symbols.size(); ++i) absl::StrAppend(&out, SymbolText(i));
  for (size_t i = 0; i < module_.buffers.size(); ++i) absl::StrAppend(&out, BufferText(i));
  for (const Operation& operation : module_.operations) {
    const auto* library = std::get_if<Library>(&operation);
    absl::StrAppend(&out, library != nullptr ? LibraryText(*library) : text(operation));
  }
  for (const ModuleOutput& output : module_.outputs) {
    absl::StrAppend(&out, "  output ", OutputText(output), "\n");
  }
  return out + "}\n";
}

std::string Printer::SymbolText(size_t id) const {
  const IntContext::SymbolInfo& symbol = module_.ints->symbols()[id];
  return absl::StrCat("  symbol ", names_.symbols[id], " [", symbol.min, ", ", symbol.max,
                      "] hint ", symbol.hint, "\n");
}

std::string Printer::BufferText(size_t id) const {
  const Buffer& buffer = module_.buffers[id];
  std::string kind = "?";
  switch (buffer.kind) {
    case BufferKind::kInput:
      kind = absl::StrCat("input(", buffer.index, buffer.parameter ? ") parameter" : ")");
      break;
    case BufferKind::kConstant:
      kind = absl::StrCat("constant(", buffer.index, ")");
      break;
    case BufferKind::kTemp:
      kind = "temp";
      break;
    case BufferKind::kOutput:
      kind = "output";
      break;
    case BufferKind::kLibrary:
      kind = "library";
      break;
    case BufferKind::kTile:
      kind = "tile";
      break;
    case BufferKind::kPrepared:
      kind = "prepared";
      break;
  }
  return absl::StrCat("  buffer ", names_.buffers[id], " ", Type(buffer.dtype), "[",
                      sizes_.ListText(buffer.sizes), "] strides[", sizes_.ListText(buffer.strides),
                      "] ", kind, "\n");
}

std::string Printer::LoopText(absl::string_view prefix, const std::vector<IntExpr>& vars) const {
  std::string out = "(";
  for (size_t i = 0; i < vars.size(); ++i) {
    const IntExpr var = vars[i];
    const bool is_var = var && var.kind() == IntKind::kVar;
    absl::StrAppend(&out, i > 0 ? ", " : "", prefix, i, ": ",
                    is_var ? sizes_.Text(var.extent()) : "?");
  }
  return out + ")";
}

absl::string_view ScheduleText(Schedule schedule) {
  switch (schedule) {
    case Schedule::kLoops:
      return "";
    case Schedule::kContraction:
      return "contraction ";
    case Schedule::kPacking:
      return "packing ";
    case Schedule::kSorting:
      return "sorting ";
  }
  return "";
}

std::string NameText(const std::string& name) {
  return absl::StrCat("@", IsIdentifier(name) ? name : QuoteText(name));
}

// A line of what a kernel runs for each tile; nothing where that is the tile itself.
std::string TileWindowText(const std::vector<TileWindow>& windows) {
  if (absl::c_all_of(windows, [](const TileWindow& w) { return w.IsTile(); })) return "";
  const auto one = [](std::string* out, const TileWindow& w) {
    absl::StrAppend(out, w.scale, " from ", w.low, " to ", w.high);
  };
  return absl::StrCat("    window(", absl::StrJoin(windows, ", ", one), ")\n");
}

std::string Printer::TextOf(const Operation& operation) const {
  if (const auto* kernel = std::get_if<Kernel>(&operation)) return TextOf(*kernel);
  const Repeat& repeat = std::get<Repeat>(operation);
  std::string out = absl::StrCat("  repeat ", NameText(repeat.name));
  if (repeat.versions.empty()) {
    absl::StrAppend(&out, " steps(", absl::StrJoin(repeat.steps, ", "), ")");
  } else {
    const auto symbol = [&](std::string* text, IntExpr s) { *text += sizes_.Text(s); };
    absl::StrAppend(&out, " by(", absl::StrJoin(repeat.by, ", ", symbol), ")");
  }
  if (repeat.before > 0) absl::StrAppend(&out, " before(", repeat.before, ")");
  if (repeat.after > 0) absl::StrAppend(&out, " after(", repeat.after, ")");
  absl::StrAppend(&out, " {\n");
  for (const RepeatVersion& version : repeat.versions) {
    absl::StrAppend(&out, "    ", VersionText(names_, version), "\n");
  }
  for (size_t k = 0; k < repeat.kernels.size(); ++k) {
    if (!repeat.windows.empty()) absl::StrAppend(&out, TileWindowText(repeat.windows[k]));
    const std::string text = TextOf(repeat.kernels[k]);
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      absl::StrAppend(&out, "  ", line, "\n");
    }
  }
  return out + "  }\n";
}

std::string Printer::TextOf(const Kernel& kernel) const {
  std::string out = absl::StrCat("  kernel ", NameText(kernel.name), " ",
                                 ScheduleText(kernel.schedule), LoopText("d", kernel.outer));
  if (!kernel.origins.empty()) absl::StrAppend(&out, " from ", QuotedList(kernel.origins));
  absl::StrAppend(&out, " {\n");
  for (const Phase& phase : kernel.phases) {
    const VarNames vars = NameVars(kernel.outer, phase.inner);
    absl::StrAppend(&out, "    phase ", LoopText("r", phase.inner), " {\n");
    for (const Inst& inst : phase.body) {
      absl::StrAppend(&out, "      ", InstText(module_, names_, vars, inst), "\n");
    }
    absl::StrAppend(&out, "    }\n");
  }
  return out + "  }\n";
}

std::string Printer::WindowText(const BufferWindow& window) const {
  return absl::StrCat(BufferRef(window.buffer), " sizes[", sizes_.ListText(window.sizes),
                      "] strides[", sizes_.ListText(window.strides), "] offset ",
                      sizes_.Text(window.offset),
                      window.row_padding > 0 ? absl::StrCat(" padding ", window.row_padding) : "");
}

std::string Printer::ArgText(const LibraryArg& arg) const {
  struct Visitor {
    const Printer& printer;
    std::string operator()(NoneArg) const { return "none"; }
    std::string operator()(const BufferWindow& v) const { return printer.WindowText(v); }
    std::string operator()(IntExpr v) const { return "int " + printer.sizes_.Text(v); }
    std::string operator()(double v) const { return "float " + FloatText(v); }
    std::string operator()(std::complex<double> v) const {
      return absl::StrCat("complex ", FloatText(v.real()), " ", FloatText(v.imag()));
    }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return QuoteText(v); }
    std::string operator()(DType v) const { return "dtype " + Type(v); }
    std::string operator()(const LibraryArgs& v) const {
      return absl::StrCat("[",
                          absl::StrJoin(v, ", ",
                                        [&](std::string* s, const LibraryArg& item) {
                                          absl::StrAppend(s, printer.ArgText(item));
                                        }),
                          "]");
    }
  };
  std::string out;
  if (!arg.name.empty()) {
    out = absl::StrCat(IsIdentifier(arg.name) ? arg.name : QuoteText(arg.name), " = ");
  }
  return out + std::visit(Visitor{*this}, arg.value);
}

std::string Printer::LibraryText(const Library& library) const {
  std::string out = absl::StrCat("  library ", QuoteText(library.op));
  if (!library.origin.empty()) absl::StrAppend(&out, " from ", QuoteText(library.origin));
  absl::StrAppend(&out, " (");
  for (size_t i = 0; i < library.args.size(); ++i) {
    absl::StrAppend(&out, i > 0 ? ", " : "", ArgText(library.args[i]));
  }
  absl::StrAppend(&out, ") -> (");
  int position = 0;
  for (size_t i = 0; i < library.results.size(); ++i) {
    const int at = library.positions.empty() ? position : library.positions[i];
    for (; position < at; ++position) absl::StrAppend(&out, position > 0 ? ", _" : "_");
    absl::StrAppend(&out, position++ > 0 ? ", " : "", BufferRef(library.results[i]));
  }
  return out + ")\n";
}

std::string Printer::OutputText(const ModuleOutput& output) const {
  if (const auto* window = std::get_if<BufferWindow>(&output.value)) return WindowText(*window);
  if (const auto* size = std::get_if<IntExpr>(&output.value)) return "int " + sizes_.Text(*size);
  return "none";
}

}  // namespace

std::string VersionText(const ModuleNames& names, const RepeatVersion& version) {
  std::string out = "version";
  if (!version.most.empty()) {
    absl::StrAppend(&out, " most(", absl::StrJoin(version.most, ", "), ")");
  }
  if (version.step > 0) {
    absl::StrAppend(&out, " step ", version.step, " loops(", absl::StrJoin(version.loops, ", "),
                    ")");
  }
  if (!version.keeps.empty()) {
    const auto name = [&](std::string* text, BufferId id) { *text += names.buffers[id]; };
    absl::StrAppend(&out, " keeps(", absl::StrJoin(version.keeps, ", ", name), ")");
  }
  return out;
}

std::string InstText(const Module& module, const ModuleNames& names, const VarNames& vars,
                     const Inst& inst, absl::string_view place) {
  const std::string type = Type(inst.dtype);
  if (inst.op == ScalarOp::kStore) {
    const std::string kind =
        inst.accumulates ? absl::StrCat(".", std::string(ReduceKindName(inst.reduce_kind))) : "";
    return absl::StrCat("store", kind, " ", type, " ", AccessText(module, names, vars, inst, place),
                        ", ", inst.operands.empty() ? "%?" : ValueText(inst.operands.back()));
  }
  std::string out = absl::StrCat(ValueText(inst.result), " = ", std::string(Info(inst.op).name));
  if (inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) {
    absl::StrAppend(&out, ".", std::string(ReduceKindName(inst.reduce_kind)));
  }
  absl::StrAppend(&out, " ", type, " ");
  switch (inst.op) {
    case ScalarOp::kConst:
      return out + ImmediateText(inst);
    case ScalarOp::kIndex: {
      const ExprWriter writer(names, &vars, &inst);
      return out + (inst.indices.empty() ? "?" : writer.Text(inst.indices[0]));
    }
    case ScalarOp::kLoad:
      return out + AccessText(module, names, vars, inst, place) + MaskText(inst);
    default:
      absl::StrAppend(&out, absl::StrJoin(inst.operands, ", ", [](std::string* s, ValueId v) {
        absl::StrAppend(s, ValueText(v));
      }));
      if (inst.op != ScalarOp::kSort || inst.immediate_int == 0) return out;
      return absl::StrCat(out, " first ", inst.immediate_int);
  }
}

std::string Print(const Module& module) {
  const Printer printer(module);
  return printer.ModuleText([&](const Operation& o) { return printer.TextOf(o); });
}

std::string Print(const Module& module,
                  const std::function<std::string(const Operation& operation)>& text) {
  return Printer(module).ModuleText(text);
}

std::string Print(const Module& module, const Kernel& kernel) {
  return Printer(module).TextOf(kernel);
}

std::string Print(const Module& module, const Kernel& kernel, const Inst& inst) {
  std::vector<IntExpr> inner;
  for (const Phase& phase : kernel.phases) {
    const Inst* first = phase.body.data();
    if (&inst >= first && &inst < first + phase.body.size()) inner = phase.inner;
  }
  return InstText(module, NameModule(module), NameVars(kernel.outer, inner), inst);
}

}  // namespace kiln::ir
