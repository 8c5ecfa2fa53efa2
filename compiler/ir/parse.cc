#include "compiler/ir/parse.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "compiler/ir/parse_impl.h"
#include "proto/base/status_macros.h"

namespace kiln::ir {

absl::StatusOr<Module> Parse(absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("line 1: the text has ", text.size(), " bytes, more than ", kMaxTextBytes));
  }
  return Parser(text).ParseModule();
}

absl::Status Parser::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", token_.line, ": ",
                   token_.kind == TokenKind::kBad ? absl::string_view(token_.text) : what));
}

absl::Status Parser::Expected(absl::string_view what) const {
  const std::string found =
      token_.kind == TokenKind::kEnd
          ? "the end of the text"
          : absl::StrCat("'", absl::string_view(token_.text).substr(0, 40), "'");
  return Error(absl::StrCat("expected ", what, ", found ", found));
}

bool Parser::At(absl::string_view text) const {
  return (token_.kind == TokenKind::kPunctuation || token_.kind == TokenKind::kIdentifier) &&
         token_.text == text;
}

bool Parser::Accept(absl::string_view text) {
  if (!At(text)) return false;
  Advance();
  return true;
}

absl::Status Parser::Expect(absl::string_view text) {
  return Accept(text) ? absl::OkStatus() : Expected(absl::StrCat("'", text, "'"));
}

absl::StatusOr<std::string> Parser::Take(TokenKind kind, absl::string_view what) {
  if (token_.kind != kind) return Expected(what);
  std::string text = std::move(token_.text);
  Advance();
  return text;
}

absl::StatusOr<int64_t> Parser::Int() {
  const bool negative = Accept("-");
  int64_t value = 0;
  if (token_.kind != TokenKind::kNumber ||
      !absl::SimpleAtoi(absl::StrCat(negative ? "-" : "", token_.text), &value)) {
    return Expected("a 64-bit integer");
  }
  Advance();
  return value;
}

absl::StatusOr<double> Parser::Float() {
  const bool negative = Accept("-");
  double value = 0;
  if (At("inf")) {
    value = std::numeric_limits<double>::infinity();
  } else if (At("nan")) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    const std::string& text = token_.text;
    const char* end = text.data() + text.size();
    if (token_.kind != TokenKind::kNumber) return Expected("a number");
    const std::from_chars_result read = std::from_chars(text.data(), end, value);
    if (read.ec != std::errc() || read.ptr != end) return Expected("a number");
  }
  Advance();
  return negative ? -value : value;
}

absl::StatusOr<DType> Parser::Type() {
  const std::optional<DType> dtype =
      token_.kind == TokenKind::kIdentifier ? DTypeFromName(token_.text) : std::nullopt;
  if (!dtype) return Expected("an element type");
  Advance();
  return *dtype;
}

absl::StatusOr<std::vector<std::string>> Parser::Strings() {
  std::vector<std::string> strings;
  do {
    if (strings.size() == kMaxListLength) return Error("a list is too long");
    KILN_ASSIGN_OR_RETURN(std::string s, Take(TokenKind::kString, "a string"));
    strings.push_back(std::move(s));
  } while (Accept(","));
  return strings;
}

absl::StatusOr<Module> Parser::ParseModule() {
  KILN_RETURN_IF_ERROR(Expect("module"));
  KILN_RETURN_IF_ERROR(Expect("{"));
  while (!At("}")) KILN_RETURN_IF_ERROR(Item());
  Advance();
  if (token_.kind != TokenKind::kEnd) return Expected("the end of the text");
  return std::move(module_);
}

absl::Status Parser::Item() {
  if (Accept("symbol")) return Symbol();
  if (Accept("buffer")) return BufferDeclaration();
  if (Accept("kernel")) {
    KILN_ASSIGN_OR_RETURN(Kernel kernel, KernelDefinition());
    module_.operations.push_back(std::move(kernel));
    return absl::OkStatus();
  }
  if (Accept("repeat")) return RepeatDefinition();
  if (Accept("library")) return LibraryCall();
  if (Accept("output")) return Output();
  return OtherItem();
}

absl::Status Parser::Symbol() {
  if (symbols_.size() == kMaxSymbols) return Error("too many symbols");
  KILN_ASSIGN_OR_RETURN(std::string name, Take(TokenKind::kIdentifier, "a symbol's name"));
  KILN_RETURN_IF_ERROR(Expect("["));
  KILN_ASSIGN_OR_RETURN(int64_t min, Int());
  KILN_RETURN_IF_ERROR(Expect(","));
  KILN_ASSIGN_OR_RETURN(int64_t max, Int());
  KILN_RETURN_IF_ERROR(Expect("]"));
  KILN_RETURN_IF_ERROR(Expect("hint"));
  KILN_ASSIGN_OR_RETURN(int64_t hint, Int());
  if (min > max) return Error(absl::StrCat("symbol ", name, " has an empty range"));
  auto [it, added] = symbols_.try_emplace(name);
  if (!added) return Error(absl::StrCat("symbol ", name, " is declared twice"));
  it->second = module_.ints->NewSymbol(std::move(name), min, max, hint);
  return absl::OkStatus();
}

absl::Status Parser::BufferDeclaration() {
  if (module_.buffers.size() == kMaxBuffers) return Error("too many buffers");
  Buffer buffer;
  KILN_ASSIGN_OR_RETURN(buffer.name, Take(TokenKind::kName, "a buffer's name"));
  KILN_ASSIGN_OR_RETURN(buffer.dtype, Type());
  KILN_ASSIGN_OR_RETURN(buffer.sizes, ExprList());
  KILN_RETURN_IF_ERROR(Expect("strides"));
  KILN_ASSIGN_OR_RETURN(buffer.strides, ExprList());
  KILN_RETURN_IF_ERROR(BufferKindAndIndex(buffer));
  if (buffer.sizes.size() != buffer.strides.size()) {
    return Error(absl::StrCat("buffer @", buffer.name, " has ", buffer.sizes.size(), " sizes but ",
                              buffer.strides.size(), " strides"));
  }
  if (!buffers_.try_emplace(buffer.name, static_cast<BufferId>(module_.buffers.size())).second) {
    return Error(absl::StrCat("buffer @", buffer.name, " is declared twice"));
  }
  module_.buffers.push_back(std::move(buffer));
  return absl::OkStatus();
}

absl::Status Parser::BufferKindAndIndex(Buffer& buffer) {
  if (Accept("temp")) {
    buffer.kind = BufferKind::kTemp;
  } else if (Accept("output")) {
    buffer.kind = BufferKind::kOutput;
  } else if (Accept("library")) {
    buffer.kind = BufferKind::kLibrary;
  } else if (Accept("tile")) {
    buffer.kind = BufferKind::kTile;
  } else if (Accept("prepared")) {
    buffer.kind = BufferKind::kPrepared;
  } else {
    if (!At("input") && !At("constant")) {
      return Expected("'input', 'constant', 'temp', 'output', 'library', 'tile' or 'prepared'");
    }
    buffer.kind = At("input") ? BufferKind::kInput : BufferKind::kConstant;
    Advance();
    KILN_RETURN_IF_ERROR(Expect("("));
    KILN_ASSIGN_OR_RETURN(int64_t index, Int());
    if (index < 0 || index > static_cast<int64_t>(kMaxBuffers)) {
      return Error(absl::StrCat("no input or constant has the number ", index));
    }
    buffer.index = static_cast<int>(index);
    KILN_RETURN_IF_ERROR(Expect(")"));
    buffer.parameter = buffer.kind == BufferKind::kInput && Accept("parameter");
  }
  return absl::OkStatus();
}

absl::StatusOr<BufferId> Parser::BufferRef() {
  if (token_.kind != TokenKind::kName) return Expected("a buffer");
  auto it = buffers_.find(token_.text);
  if (it == buffers_.end()) return Error(absl::StrCat("no buffer @", token_.text));
  Advance();
  return it->second;
}

absl::StatusOr<BufferWindow> Parser::Window() {
  BufferWindow window;
  KILN_ASSIGN_OR_RETURN(window.buffer, BufferRef());
  KILN_RETURN_IF_ERROR(Expect("sizes"));
  KILN_ASSIGN_OR_RETURN(window.sizes, ExprList());
  KILN_RETURN_IF_ERROR(Expect("strides"));
  KILN_ASSIGN_OR_RETURN(window.strides, ExprList());
  KILN_RETURN_IF_ERROR(Expect("offset"));
  KILN_ASSIGN_OR_RETURN(window.offset, Expr());
  if (Accept("padding")) {
    KILN_ASSIGN_OR_RETURN(window.row_padding, Int());
  }
  if (window.sizes.size() != window.strides.size()) {
    return Error("a window has unequal numbers of sizes and strides");
  }
  return window;
}

absl::Status Parser::LibraryCall() {
  Library library;
  KILN_ASSIGN_OR_RETURN(library.op, Take(TokenKind::kString, "an operator in quotes"));
  if (Accept("from")) {
    KILN_ASSIGN_OR_RETURN(library.origin, Take(TokenKind::kString, "a node in quotes"));
  }
  KILN_RETURN_IF_ERROR(Expect("("));
  while (!At(")")) {
    if (!library.args.empty()) KILN_RETURN_IF_ERROR(Expect(","));
    if (library.args.size() == kMaxListLength) return Error("too many arguments");
    KILN_ASSIGN_OR_RETURN(LibraryArg arg, Arg(0));
    library.args.push_back(std::move(arg));
  }
  Advance();
  KILN_RETURN_IF_ERROR(Expect("->"));
  KILN_RETURN_IF_ERROR(Expect("("));
  for (size_t position = 0; !At(")"); ++position) {
    if (position > 0) KILN_RETURN_IF_ERROR(Expect(","));
    if (position == kMaxListLength) return Error("too many results");
    if (Accept("_")) continue;
    KILN_ASSIGN_OR_RETURN(BufferId result, BufferRef());
    library.results.push_back(result);
    library.positions.push_back(static_cast<int>(position));
  }
  Advance();
  if (library.results.empty() ||
      library.positions.back() == static_cast<int>(library.results.size()) - 1) {
    library.positions.clear();
  }
  module_.operations.push_back(std::move(library));
  return absl::OkStatus();
}

absl::StatusOr<LibraryArg> Parser::Arg(int depth) {
  if (depth > kMaxArgDepth) return Error("an argument is nested too deep");
  LibraryArg arg;
  if (token_.kind == TokenKind::kIdentifier || token_.kind == TokenKind::kString) {
    const Lexer bookmark = lexer_;
    const Token first = token_;
    Advance();
    if (Accept("=")) {
      arg.name = first.text;
    } else {
      lexer_ = bookmark;
      token_ = first;
    }
  }
  KILN_RETURN_IF_ERROR(ArgValue(arg, depth));
  return arg;
}

absl::Status Parser::ArgValue(LibraryArg& arg, int depth) {
  if (token_.kind == TokenKind::kName) {
    KILN_ASSIGN_OR_RETURN(arg.value, Window());
  } else if (token_.kind == TokenKind::kString) {
    arg.value = token_.text;
    Advance();
  } else if (Accept("none")) {
    arg.value = NoneArg{};
  } else if (Accept("true")) {
    arg.value = true;
  } else if (Accept("false")) {
    arg.value = false;
  } else if (Accept("int")) {
    KILN_ASSIGN_OR_RETURN(arg.value, Expr());
  } else if (Accept("float")) {
    KILN_ASSIGN_OR_RETURN(arg.value, Float());
  } else if (Accept("complex")) {
    KILN_ASSIGN_OR_RETURN(const double real, Float());
    KILN_ASSIGN_OR_RETURN(const double imag, Float());
    arg.value = std::complex<double>(real, imag);
  } else if (Accept("dtype")) {
    KILN_ASSIGN_OR_RETURN(arg.value, Type());
  } else if (Accept("[")) {
    LibraryArgs items;
    while (!At("]")) {
      if (!items.empty()) KILN_RETURN_IF_ERROR(Expect(","));
      if (items.size() == kMaxListLength) return Error("a list is too long");
      KILN_ASSIGN_OR_RETURN(LibraryArg item, Arg(depth + 1));
      items.push_back(std::move(item));
    }
    Advance();
    arg.value = std::move(items);
  } else {
    return Expected("an argument");
  }
  return absl::OkStatus();
}

absl::Status Parser::Output() {
  ModuleOutput output;
  if (Accept("none")) {
    output.value = NoneArg{};
  } else if (Accept("int")) {
    KILN_ASSIGN_OR_RETURN(output.value, Expr());
  } else {
    KILN_ASSIGN_OR_RETURN(output.value, Window());
  }
  module_.outputs.push_back(std::move(output));
  return absl::OkStatus();
}

}  // namespace kiln::ir
