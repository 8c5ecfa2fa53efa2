#include "compiler/codegen/ptx/kernel_launch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/ptx/kernel_printer.h"

namespace kiln::codegen::ptx {
namespace {

using absl::StrAppend;
using absl::StrCat;
using source::Writer;

constexpr int64_t kMostElements = int64_t{1} << 38;  // of a buffer

void AppendSymbols(const source::Names& names, std::string& parameters) {
  for (size_t i = 0; i < names.symbols().size(); ++i) {
    StrAppend(&parameters, "long size", i, ", ");
  }
}

// Names the symbols that the sizes of the buffers and of `kernel`'s grid and tensor maps have.
void NameSizes(const ir::Module& module, const EmittedKernel& kernel, source::Names& names) {
  const auto name = [&](const std::vector<ir::IntExpr>& sizes) {
    for (const ir::IntExpr size : sizes) names.Expr(size);
  };
  for (const ir::BufferId buffer : names.buffers()) {
    const auto stated = kernel.buffer_bytes.find(buffer);
    names.Expr(stated != kernel.buffer_bytes.end()
                   ? stated->second
                   : ir::SizeBytes(*module.ints, module.buffers[buffer]));
  }
  name(kernel.grid.blocks);
  for (const EmittedTensorMap& map : kernel.tensor_maps) {
    names.Expr(map.offset);
    name(map.sizes);
    name(map.strides);
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

// But for its text.
EmittedKernel Begin(ir::IntContext& ints, const TaskText& text) {
  EmittedKernel kernel;
  kernel.waits = text.waits;
  kernel.grid.blocks = {text.blocks};
  kernel.grid.threads = {ints.Const(text.threads)};
  kernel.grid.shared_bytes =
      ints.Const(text.slot_bytes + text.threads / text.team * text.team_bytes);
  return kernel;
}

}  // namespace

EmittedKernel PrintLaunch(ir::Module& module, const TaskText& text, source::Names& names) {
  EmittedKernel kernel = Begin(*module.ints, text);
  Writer out;
  PrintBegin(text, names, ParametersText(module, kernel, names), out);
  PrintTask(text, "KBlock()", out);
  SetText(*module.ints, names, out, kernel);
  return kernel;
}

std::optional<EmittedKernel> PrintLaunches(ir::Module& module, const TaskText& text,
                                           absl::Span<const BufferMap> copies,
                                           source::Names& names) {
  EmittedKernel kernel = Begin(*module.ints, text);
  NameSizes(module, kernel, names);
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
  SetText(*module.ints, names, out, kernel);
  kernel.buffers = std::move(all);
  kernel.grid.blocks = {module.ints->Const(blocks * static_cast<int64_t>(count))};
  return kernel;
}

std::string ParametersText(const ir::Module& module, const EmittedKernel& kernel,
                           source::Names& names, absl::string_view qualifier) {
  NameSizes(module, kernel, names);
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

void SetText(ir::IntContext& ints, const source::Names& names, const source::Writer& text,
             EmittedKernel& kernel) {
  kernel.source = text.text();
  kernel.buffers = names.buffers();
  kernel.symbols = names.symbols();
  kernel.scratch_bytes = ints.Const(0);
  kernel.thread_scratch_bytes = ints.Const(0);
  kernel.binary = 1;
}

ir::IntExpr AtLaunch(ir::IntContext& ints, ir::IntExpr value, int64_t min, int64_t max,
                     EmittedKernel& kernel) {
  const int64_t hint = std::clamp(ints.EvaluateAtHints(value), min, max);
  const ir::IntExpr symbol = ints.NewSymbol("", min, max, hint);
  kernel.stands_for.emplace(symbol, value);
  return symbol;
}

void PlaceAtLaunch(ir::IntContext& ints, EmittedTensorMap& map, EmittedKernel& kernel) {
  map.offset = AtLaunch(ints, map.offset, 0, kMostElements, kernel);
  for (ir::IntExpr& stride : map.strides) {
    stride = AtLaunch(ints, stride, 0, kMostElements, kernel);
  }
}

void SetBytesAtLaunch(const ir::Module& module, ir::BufferId buffer, EmittedKernel& kernel) {
  constexpr int64_t kMostBytes = kMostElements * 2;
  ir::IntContext& ints = *module.ints;
  kernel.buffer_bytes[buffer] =
      AtLaunch(ints, ir::SizeBytes(ints, module.buffers[buffer]), 0, kMostBytes, kernel);
}

size_t FirstMap(const source::Names& names) {
  return names.buffers().size() + names.symbols().size() + 2;
}

}  // namespace kiln::codegen::ptx
