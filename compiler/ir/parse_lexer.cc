#include "compiler/ir/parse_lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kiln::ir {
namespace {

bool IsIdentifierChar(char c) {
  return absl::ascii_isalnum(c) || c == '_';
}
bool IsNameChar(char c) {
  return IsIdentifierChar(c) || c == '.' || c == '$';
}
bool IsDigit(char c) {
  return absl::ascii_isdigit(c);
}

int HexDigit(char c) {
  if (absl::ascii_isdigit(c)) return c - '0';
  const char lower = absl::ascii_tolower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

void Lexer::SkipBlanks() {
  while (at_ < text_.size()) {
    if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (absl::ascii_isspace(text_[at_])) {
      line_ += text_[at_] == '\n';
      ++at_;
    } else {
      return;
    }
  }
}

absl::string_view Lexer::Take(bool (*belongs)(char)) {
  const size_t start = at_;
  while (at_ < text_.size() && belongs(text_[at_])) ++at_;
  return text_.substr(start, at_ - start);
}

Token Lexer::Next() {
  SkipBlanks();
  if (at_ == text_.size()) return {TokenKind::kEnd, "", line_};
  const char c = text_[at_];
  if (IsDigit(c)) return Number();
  if (IsIdentifierChar(c)) {
    return {TokenKind::kIdentifier, std::string(Take(IsIdentifierChar)), line_};
  }
  if (c == '"') return Quoted(TokenKind::kString);
  ++at_;
  if (c == '@') {
    if (at_ < text_.size() && text_[at_] == '"') return Quoted(TokenKind::kName);
    const absl::string_view name = Take(IsNameChar);
    if (name.empty()) return {TokenKind::kBad, "a name must follow '@'", line_};
    return {TokenKind::kName, std::string(name), line_};
  }
  if (c == '%') {
    const absl::string_view digits = Take(IsDigit);
    if (digits.empty()) return {TokenKind::kBad, "a number must follow '%'", line_};
    return {TokenKind::kValue, std::string(digits), line_};
  }
  if (c == '-' && at_ < text_.size() && text_[at_] == '>') {
    ++at_;
    return {TokenKind::kPunctuation, "->", line_};
  }
  if (absl::string_view("{}[]()<>=:;,.+-*").find(c) != absl::string_view::npos) {
    return {TokenKind::kPunctuation, std::string(1, c), line_};
  }
  return {TokenKind::kBad,
          absl::StrCat("unexpected character with code ",
                       static_cast<int>(static_cast<unsigned char>(c))),
          line_};
}

Token Lexer::Number() {
  std::string number(Take(IsDigit));
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    absl::StrAppend(&number, ".", Take(IsDigit));
  }
  if (at_ < text_.size() && text_[at_] == 'e') {
    number += text_[at_++];
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) number += text_[at_++];
    absl::StrAppend(&number, Take(IsDigit));
  }
  return {TokenKind::kNumber, std::move(number), line_};
}

Token Lexer::Quoted(TokenKind kind) {
  std::string out;
  for (++at_; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      return {kind, std::move(out), line_};
    }
    if (c != '\\') {
      out += c;
      continue;
    }
    const char escaped = at_ + 1 < text_.size() ? text_[++at_] : '\0';
    if (escaped == 'n') {
      out += '\n';
    } else if (escaped == 't') {
      out += '\t';
    } else if (escaped == '"' || escaped == '\\') {
      out += escaped;
    } else if (escaped == 'x' && at_ + 2 < text_.size() && HexDigit(text_[at_ + 1]) >= 0 &&
               HexDigit(text_[at_ + 2]) >= 0) {
      out += static_cast<char>(HexDigit(text_[at_ + 1]) * 16 + HexDigit(text_[at_ + 2]));
      at_ += 2;
    } else {
      return {TokenKind::kBad, "unknown escape in a string", line_};
    }
  }
  return {TokenKind::kBad, "a string does not end on its line", line_};
}

}  // namespace kiln::ir
