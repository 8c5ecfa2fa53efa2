// Small things that all emitters share: indented text, names in order of first use, C++ spellings
// of types, constants and integer expressions.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"

namespace kiln::codegen::source {

// Lines of code; the indentation follows the braces.
class Writer {
 public:
  explicit Writer(int depth = 0) : depth_(depth) {}
  template <typename... Args>
  void Line(const Args&... args) {
    Append(absl::StrCat(args...));
  }
  // What another writer made, as it is.
  void AppendText(absl::string_view text) { absl::StrAppend(&text_, text); }
  const std::string& text() const { return text_; }

 private:
  void Append(absl::string_view line);

  std::string text_;
  int depth_;
};

// "float", "long", ... REQUIRES: not complex.
absl::string_view CppType(DType dtype);

// A literal of CppType(dtype).
std::string FloatLiteral(DType dtype, double value);
std::string IntLiteral(DType dtype, int64_t value);
// The immediate of a kConst, or of what a masked load gives where the mask is false.
std::string ImmediateLiteral(const ir::Inst& inst);

// `expr` as C++ on longs; `leaf` spells symbols, variables and indirect operands.
std::string ExprText(ir::IntExpr expr, const std::function<std::string(ir::IntExpr)>& leaf);

// The names of one kernel's buffers ("b0"), symbols ("s0") and loop variables. Buffers and symbols
// are numbered in order of first use, so that equal kernels have equal text.
class Names {
 public:
  std::string Buffer(ir::BufferId buffer);
  std::string Alloc(int alloc);  // "a0"
  void MarkStored(ir::BufferId buffer) { stored_.insert(buffer); }
  bool IsStored(ir::BufferId buffer) const { return stored_.contains(buffer); }
  void NameVar(ir::IntExpr var, std::string name) { vars_[var] = std::move(name); }
  // A symbol or a variable.
  std::string Leaf(ir::IntExpr leaf);
  // In parentheses where it has operators, so that any may stand beside it. REQUIRES: no indirect
  // operand in it.
  std::string Expr(ir::IntExpr expr);

  const std::vector<ir::BufferId>& buffers() const { return buffers_; }
  const std::vector<int>& symbols() const { return symbols_; }

  // What was asked for since the last call: numbers of buffers and symbols, ids of allocs.
  struct Used {
    absl::btree_set<int> buffers, symbols, allocs;
  };
  Used TakeUsed() { return std::exchange(used_, {}); }

 private:
  std::vector<ir::BufferId> buffers_;
  std::vector<int> symbols_;
  absl::flat_hash_map<ir::BufferId, int> buffer_number_;
  absl::flat_hash_map<int, int> symbol_number_, alloc_number_;
  absl::flat_hash_map<ir::IntExpr, std::string> vars_;
  absl::flat_hash_set<ir::BufferId> stored_;
  Used used_;
};

// The type of the buffer's pointer: to constants where nothing stores to it.
std::string PointerType(const ir::Module& module, const Names& names, ir::BufferId buffer);

}  // namespace kiln::codegen::source
