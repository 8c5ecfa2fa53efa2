// Names and index expressions in the textual form.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "compiler/ir/module_text.h"

namespace kiln::ir {
namespace {

// d0, d1, ..., r0, r1, ... name loop variables; the functions name themselves.
bool IsReserved(absl::string_view s) {
  if (s == "floordiv" || s == "mod" || s == "min" || s == "max") return true;
  if (s.size() < 2 || (s[0] != 'd' && s[0] != 'r')) return false;
  return std::all_of(s.begin() + 1, s.end(), [](char c) { return absl::ascii_isdigit(c); });
}

bool IsPlainBufferName(absl::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '$';
  });
}

// `wanted`, or the first of wanted_2, wanted_3, ... that is free.
std::string Unique(std::string wanted, absl::flat_hash_set<std::string>& taken) {
  std::string name = wanted;
  for (int i = 2; !taken.insert(name).second; ++i) name = absl::StrCat(wanted, "_", i);
  return name;
}

}  // namespace

bool IsIdentifier(absl::string_view s) {
  if (s.empty() || absl::ascii_isdigit(s[0])) return false;
  return std::all_of(s.begin(), s.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

ModuleNames NameModule(const Module& module) {
  ModuleNames names;
  absl::flat_hash_set<std::string> taken;
  for (const IntContext::SymbolInfo& symbol : module.ints->symbols()) {
    const bool legal = IsIdentifier(symbol.name) && !IsReserved(symbol.name);
    names.symbols.push_back(
        Unique(legal ? symbol.name : absl::StrCat("s", names.symbols.size()), taken));
  }
  taken.clear();
  for (const Buffer& buffer : module.buffers) {
    const std::string name =
        Unique(buffer.name.empty() ? absl::StrCat("b", names.buffers.size()) : buffer.name, taken);
    names.buffers.push_back(absl::StrCat("@", IsPlainBufferName(name) ? name : QuoteText(name)));
  }
  return names;
}

VarNames NameVars(const std::vector<IntExpr>& outer, const std::vector<IntExpr>& inner) {
  VarNames names;
  for (size_t i = 0; i < inner.size(); ++i) names[inner[i]] = absl::StrCat("r", i);
  for (size_t i = 0; i < outer.size(); ++i) names[outer[i]] = absl::StrCat("d", i);
  return names;
}

std::string QuoteText(absl::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (absl::ascii_isprint(c) || (c & 0x80)) {
      out += c;
    } else {
      out += absl::StrFormat("\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return out + "\"";
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

std::string ExprWriter::Text(IntExpr expr) const {
  if (!expr) return "?";
  switch (expr.kind()) {
    case IntKind::kConst:
      return absl::StrCat(expr.value());
    case IntKind::kSymbol:
    case IntKind::kVar:
    case IntKind::kIndirect:
      return LeafText(expr);
    case IntKind::kAdd:
      return SumText(expr);
    case IntKind::kMul:
      return ProductText(expr);
    case IntKind::kFloorDiv:
      return CallText("floordiv", expr, false);
    case IntKind::kMod:
      return CallText("mod", expr, false);
    case IntKind::kMin:
      return CallText("min", expr, true);
    case IntKind::kMax:
      return CallText("max", expr, true);
  }
  return "?";
}

std::string ExprWriter::IndexText(IntExpr expr, IntExpr size) {
  dimension_ = size;
  std::string text = Text(expr);
  dimension_ = IntExpr();
  return text;
}

std::string ExprWriter::ListText(const std::vector<IntExpr>& exprs) const {
  return absl::StrJoin(exprs, ",",
                       [this](std::string* out, IntExpr e) { absl::StrAppend(out, Text(e)); });
}

std::string ExprWriter::LeafText(IntExpr expr) const {
  const size_t id = static_cast<size_t>(expr.id());
  if (expr.kind() == IntKind::kSymbol) {
    return id < names_.symbols.size() ? names_.symbols[id] : absl::StrCat("?s", id);
  }
  if (expr.kind() == IntKind::kVar) {
    if (vars_ != nullptr) {
      if (auto it = vars_->find(expr); it != vars_->end()) return it->second;
    }
    return absl::StrCat("?v", id);
  }
  if (inst_ == nullptr || id >= inst_->operands.size()) return absl::StrCat("[?", id, "]");
  const std::string value = absl::StrCat("[%", inst_->operands[id]);
  const IntExpr extent = expr.extent();
  if (dimension_ && extent == dimension_) return value + "]";
  return absl::StrCat(value, " < ", ExprWriter(names_, nullptr, nullptr).Text(extent), "]");
}

std::string ExprWriter::SumText(IntExpr expr) const {
  std::vector<std::string> terms;
  std::string constants;
  for (IntExpr term : expr.operands()) {
    if (term.is_const()) {
      absl::StrAppend(&constants, term.value() < 0 ? "" : "+", term.value());
    } else {
      terms.push_back(Text(term));
    }
  }
  std::sort(terms.begin(), terms.end());
  // A sum reads better when it does not start with a minus.
  std::stable_partition(terms.begin(), terms.end(),
                        [](const std::string& t) { return t[0] != '-'; });
  if (!constants.empty()) terms.push_back(constants[0] == '+' ? constants.substr(1) : constants);
  std::string out;
  for (const std::string& term : terms) {
    if (out.empty()) {
      out = term;
    } else if (term[0] == '-' && term.rfind("-9223372036854775808", 0) != 0) {
      absl::StrAppend(&out, " - ", term.substr(1));
    } else {
      absl::StrAppend(&out, " + ", term);
    }
  }
  return out;
}

std::string ExprWriter::ProductText(IntExpr expr) const {
  std::vector<std::string> factors;
  std::string sign;
  std::vector<std::string> constants;
  for (IntExpr factor : expr.operands()) {
    if (factor.is_const(-1)) {
      sign = "-";
    } else if (factor.is_const()) {
      constants.push_back(Text(factor));
    } else {
      std::string text = Text(factor);
      if (factor.kind() == IntKind::kAdd || text[0] == '-') text = absl::StrCat("(", text, ")");
      factors.push_back(std::move(text));
    }
  }
  std::sort(factors.begin(), factors.end());
  factors.insert(factors.begin(), constants.begin(), constants.end());
  return sign + absl::StrJoin(factors, "*");
}

std::string ExprWriter::CallText(absl::string_view function, IntExpr expr, bool sorted) const {
  std::vector<std::string> arguments;
  for (IntExpr operand : expr.operands()) arguments.push_back(Text(operand));
  if (sorted) std::sort(arguments.begin(), arguments.end());
  return absl::StrCat(function, "(", absl::StrJoin(arguments, ", "), ")");
}

}  // namespace kiln::ir
