#include "compiler/codegen/cpp/shell.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kiln::codegen::cpp {

using absl::StrCat;

void Shell::AddFunction(std::string name, std::string parameters, std::string body) {
  functions_.push_back({std::move(name), std::move(parameters), std::move(body)});
}

void Shell::AddMember(std::string declaration, std::string initializer) {
  members_.push_back({std::move(declaration), std::move(initializer)});
}

std::string Shell::PointerType(ir::BufferId buffer) const {
  return StrCat(names_.IsStored(buffer) ? "" : "const ", CppType(module_.buffers[buffer].dtype),
                "*");
}

namespace {

bool Mentions(absl::string_view text, absl::string_view name) {
  for (size_t at = text.find(name); at != absl::string_view::npos; at = text.find(name, at + 1)) {
    const auto is_word = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; };
    const size_t end = at + name.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

void Shell::WriteFunction(const Function& function, Writer& out) const {
  out.Line("void ", function.name, "(Args& args, ", function.parameters, ") {");
  for (size_t i = 0; i < names_.buffers().size(); ++i) {
    if (!Mentions(function.body, StrCat("b", i))) continue;
    out.Line(PointerType(names_.buffers()[i]), " const b", i, " = args.b", i, ";");
  }
  for (size_t i = 0; i < names_.symbols().size(); ++i) {
    if (Mentions(function.body, StrCat("s", i))) out.Line("const long s", i, " = args.s", i, ";");
  }
  const bool checks = Mentions(function.body, "error");
  if (checks) out.Line("int error = 0;");
  for (absl::string_view line : absl::StrSplit(function.body, '\n', absl::SkipWhitespace())) {
    out.Line(absl::StripLeadingAsciiWhitespace(line));
  }
  if (checks) out.Line("if (error) __atomic_store_n(&args.error, 1, __ATOMIC_RELAXED);");
  out.Line("}");
}

EmittedKernel Shell::Finish(ir::IntExpr scratch_bytes, ir::IntExpr thread_scratch_bytes) {
  Writer out;
  out.Line("namespace {");
  out.Line("struct Args {");
  std::string initializers;
  for (size_t i = 0; i < names_.buffers().size(); ++i) {
    const std::string type = PointerType(names_.buffers()[i]);
    out.Line(type, " b", i, ";");
    absl::StrAppend(&initializers, "(", type, ")buffers[", i, "], ");
  }
  for (size_t i = 0; i < names_.symbols().size(); ++i) {
    out.Line("long s", i, ";");
    absl::StrAppend(&initializers, "symbols[", i, "], ");
  }
  for (const Member& member : members_) {
    out.Line(member.declaration, ";");
    absl::StrAppend(&initializers, member.initializer, ", ");
  }
  out.Line("int error;");
  out.Line("};");
  for (const Function& function : functions_) WriteFunction(function, out);
  out.Line("}  // namespace");
  out.Line("");
  out.Line("extern \"C\" __attribute__((visibility(\"default\"))) int ", kSymbolPlaceholder,
           "(const KilnCpuContext* context, void* const* buffers, const long* symbols) {");
  for (size_t i = 0; i < names_.symbols().size(); ++i) {
    if (Mentions(entry_.text() + initializers, StrCat("s", i))) {
      out.Line("const long s", i, " = symbols[", i, "];");
    }
  }
  out.Line("Args args = {", initializers, "0};");
  for (absl::string_view line : absl::StrSplit(entry_.text(), '\n', absl::SkipWhitespace())) {
    out.Line(absl::StripLeadingAsciiWhitespace(line));
  }
  out.Line("return args.error ? KILN_CPU_INDEX_OUT_OF_RANGE : KILN_CPU_OK;");
  out.Line("}");

  EmittedKernel kernel;
  kernel.source = out.text();
  kernel.buffers = names_.buffers();
  kernel.symbols = names_.symbols();
  kernel.scratch_bytes = scratch_bytes;
  kernel.thread_scratch_bytes = thread_scratch_bytes;
  return kernel;
}

}  // namespace kiln::codegen::cpp
