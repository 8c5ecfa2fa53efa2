// Private to parse*.cc: splits a module's text into tokens.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace kiln::ir {

enum class TokenKind : uint8_t {
  kEnd,
  kIdentifier,   // text: letters, digits, '_'
  kNumber,       // text: "12", "0.5", "1e-07"; never a sign
  kString,       // text: without quotes, escapes resolved
  kName,         // @x or @"x y"; text: without the '@', escapes resolved
  kValue,        // %12; text: the digits
  kPunctuation,  // text: one character, or "->"
  kBad,          // text: what is wrong
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

// Blanks and comments ("//" to the end of the line) separate tokens. A copy is a bookmark.
class Lexer {
 public:
  // `text` is borrowed.
  explicit Lexer(absl::string_view text) : text_(text) {}
  // The next token; kEnd for ever at the end.
  Token Next();

 private:
  void SkipBlanks();
  absl::string_view Take(bool (*belongs)(char));
  Token Number();
  Token Quoted(TokenKind kind);

  absl::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace kiln::ir
