#include "compiler/codegen/ptx/kernel_launch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/ptx/kernel_printer.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using source::Writer;

void AppendSymbols(const source::Names& names, std::string& parameters) {
  for (size_t i = 0; i < names.symbols().size(); ++i) {
    StrAppend(&parameters, "long size", i, ", ");
  }
}

void PrintBegin(const TaskText& text, const source::Names& names, absl::string_view parameters,
                Writer& out) {
  out.Line(kKernelMark, kSymbolPlaceholder);
  out.Line(kThreadsMark, text.threads);
  out.Line(kLoadsMark, "early");
  if (text.resident > 0) out.Line(kResidentMark, text.resident);
  out.Line("extern \"C\" KILN_KERNEL void ", kSymbolPlaceholder, "(", parameters,
           "char* scratch, int* error_out) {");
  if (text.waits) {
    out.Line("KLetNextBegin();");
    out.Line("KWaitForPrevious();");
  }
  out.Line("constexpr int kTeam = ", text.team, ";");
  PrintSymbols(names, text.index_type, out);
}

// `block`: its number among those of all tasks.
void PrintTask(const TaskText& text, absl::string_view block, Writer& out) {
  const std::string& type = text.index_type;
  out.Line("const ", type, " task = (", type, ")(", block, " * ", text.threads / text.team,
           " + KThread() / kTeam);");
  out.Line("if (task >= ", text.tasks, ") return;");
  out.Line("const int lane = KThread() % kTeam;");
  if (text.slot_bytes + text.team_bytes > 0) {
    out.Line("char* const slots = KShared();");
  } else {
    out.Line("char* const slots = nullptr;");
  }
  if (text.team_bytes > 0) {
    out.Line("char* const of_team = slots + ", text.slot_bytes, " + KThread() / kTeam * ",
             text.team_bytes, ";");
  }
  if (text.checks) out.Line("int error = 0;");
  out.AppendText(text.body);
  if (text.checks) out.Line("if (error) *error_out = 1;");
  out.Line("}");
}

EmittedKernel End(ir::Module& module, const source::Names& names, const TaskText& text,
                  const Writer& out) {
  ir::IntContext& ints = *module.ints;
  EmittedKernel kernel = KernelOf(ints, names, out);
  kernel.waits = text.waits;
  kernel.grid.blocks = {text.blocks};
  kernel.grid.threads = {ints.Const(text.threads)};
  kernel.grid.shared_bytes =
      ints.Const(text.slot_bytes + text.threads / text.team * text.team_bytes);
  return kernel;
}

}  // namespace

EmittedKernel PrintLaunch(ir::Module& module, const source::Names& names, const TaskText& text) {
  Writer out;
  PrintBegin(text, names, ParametersText(module, names), out);
  PrintTask(text, "KBlock()", out);
  return End(module, names, text, out);
}

std::optional<EmittedKernel> PrintLaunches(ir::Module& module, const source::Names& names,
                                           const TaskText& text,
                                           absl::Span<const BufferMap> copies) {
  const std::vector<ir::BufferId>& buffers = names.buffers();
  const size_t count = copies.size();
  if (!text.blocks.is_const() || text.blocks.value() > INT32_MAX / static_cast<int64_t>(count) ||
      count * buffers.size() + names.symbols().size() + 2 > kMostParameters) {
    return std::nullopt;
  }
  const int64_t blocks = text.blocks.value();
  std::string parameters;
  std::vector<ir::BufferId> all;
  for (size_t copy = 0; copy < count; ++copy) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      StrAppend(&parameters, source::PointerType(module, names, buffers[i]), " b", i, "_", copy,
                ", ");
      all.push_back(copies[copy].at(buffers[i]));
    }
  }
  AppendSymbols(names, parameters);
  Writer out;
  PrintBegin(text, names, parameters, out);
  for (size_t i = 0; i < buffers.size(); ++i) {
    out.Line(source::PointerType(module, names, buffers[i]), " b", i, ";");
  }
  out.Line("switch (KBlock() / ", blocks, ") {");
  for (size_t copy = 0; copy < count; ++copy) {
    out.Line(copy + 1 < count ? StrCat("case ", copy, ":") : "default:");
    for (size_t i = 0; i < buffers.size(); ++i) out.Line("b", i, " = b", i, "_", copy, ";");
    out.Line("break;");
  }
  out.Line("}");
  PrintTask(text, StrCat("(KBlock() % ", blocks, ")"), out);
  EmittedKernel kernel = End(module, names, text, out);
  kernel.buffers = std::move(all);
  kernel.grid.blocks = {module.ints->Const(blocks * static_cast<int64_t>(count))};
  return kernel;
}

std::string ParametersText(const ir::Module& module, const source::Names& names,
                           absl::string_view qualifier) {
  std::string text;
  for (size_t i = 0; i < names.buffers().size(); ++i) {
    StrAppend(&text, source::PointerType(module, names, names.buffers()[i]), " ", qualifier, "b", i,
              ", ");
  }
  AppendSymbols(names, text);
  return text;
}

void PrintSymbols(const source::Names& names, absl::string_view type, source::Writer& out) {
  for (size_t i = 0; i < names.symbols().size(); ++i) {
    out.Line("const ", type, " s", i, " = (", type, ")size", i, ";");
  }
}

EmittedKernel KernelOf(ir::IntContext& ints, const source::Names& names,
                       const source::Writer& text) {
  EmittedKernel kernel;
  kernel.source = text.text();
  kernel.buffers = names.buffers();
  kernel.symbols = names.symbols();
  kernel.scratch_bytes = ints.Const(0);
  kernel.thread_scratch_bytes = ints.Const(0);
  kernel.binary = 1;
  return kernel;
}

}  // namespace kiln::codegen::ptx
