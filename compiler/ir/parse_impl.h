// A recursive-descent parser of the textual form: for parse*.cc, and for forms that have modules in
// them.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"
#include "compiler/ir/parse_lexer.h"

namespace kiln::ir {

// Bounds on what hostile text can make us build; lowering stays far below each.
inline constexpr size_t kMaxTextBytes = size_t{256} << 20;
inline constexpr size_t kMaxSymbols = 1 << 16;
inline constexpr size_t kMaxBuffers = 1 << 20;
inline constexpr size_t kMaxListLength = 1 << 16;
inline constexpr size_t kMaxDimensions = 64;
inline constexpr int kMaxExprDepth = 64;
inline constexpr int kMaxExprLeaves = 512;
inline constexpr int kMaxArgDepth = 16;
inline constexpr int64_t kMaxValueId = 1 << 20;

class Parser {
 public:
  explicit Parser(absl::string_view text) : lexer_(text) { Advance(); }
  virtual ~Parser() = default;
  absl::StatusOr<Module> ParseModule();

 protected:
  // What another form adds: an item of the module, and what else a load or store may access, which
  // gives the size of each dimension; null where it has none.
  virtual absl::Status OtherItem() {
    return Expected("'symbol', 'buffer', 'kernel', 'repeat', 'library', 'output' or '}'");
  }
  virtual absl::StatusOr<std::vector<IntExpr>> Place(Inst& inst);

  // parse.cc: tokens.
  void Advance() { token_ = lexer_.Next(); }
  absl::Status Error(absl::string_view what) const;
  absl::Status Expected(absl::string_view what) const;  // "expected `what`, found ..."
  bool At(absl::string_view text) const;                // at this punctuation or identifier?
  bool Accept(absl::string_view text);
  absl::Status Expect(absl::string_view text);
  absl::StatusOr<std::string> Take(TokenKind kind, absl::string_view what);
  absl::StatusOr<int64_t> Int();
  absl::StatusOr<double> Float();
  absl::StatusOr<DType> Type();
  absl::StatusOr<std::vector<std::string>> Strings();

  // parse.cc: declarations, library calls and outputs.
  absl::Status Item();
  absl::Status Symbol();
  absl::Status BufferDeclaration();
  absl::Status BufferKindAndIndex(Buffer& buffer);
  absl::StatusOr<BufferId> BufferRef();
  absl::Status LibraryCall();
  absl::Status Output();
  absl::StatusOr<BufferWindow> Window();
  absl::StatusOr<LibraryArg> Arg(int depth);
  absl::Status ArgValue(LibraryArg& arg, int depth);

  // parse_kernel.cc
  absl::StatusOr<Kernel> KernelDefinition();
  absl::Status RepeatDefinition();
  absl::Status Windows(std::vector<TileWindow>& windows);
  absl::StatusOr<std::vector<IntExpr>> Symbols();
  absl::StatusOr<RepeatVersion> Version();
  absl::StatusOr<std::vector<int64_t>> Numbers();
  absl::StatusOr<size_t> KernelCount(absl::string_view word);
  absl::StatusOr<std::vector<IntExpr>> Loops(char prefix);
  absl::Status PhaseDefinition(Kernel& kernel);
  absl::StatusOr<Inst> Instruction();
  absl::StatusOr<ReduceKind> KindOfReduction();
  absl::Status StoreRest(Inst& inst);
  absl::Status LoadRest(Inst& inst);
  absl::Status Access(Inst& inst);
  absl::Status Immediate(Inst& inst);
  absl::StatusOr<ValueId> Value();

  // parse_expr.cc
  absl::StatusOr<IntExpr> Expr();  // one whole expression
  absl::StatusOr<IntExpr> Sum(int depth);
  absl::StatusOr<IntExpr> Product(int depth);
  absl::StatusOr<IntExpr> Factor(int depth);
  absl::StatusOr<IntExpr> IntLiteral(bool negative);
  absl::StatusOr<IntExpr> NamedExpr(int depth);
  absl::StatusOr<IntExpr> Call(absl::string_view function, int depth);
  absl::StatusOr<IntExpr> IndirectIndex(int depth);
  absl::StatusOr<std::vector<IntExpr>> ExprList();  // "[a, b]"

  Lexer lexer_;
  Token token_;
  Module module_;
  absl::flat_hash_map<std::string, IntExpr> symbols_;
  absl::flat_hash_map<std::string, BufferId> buffers_;
  absl::flat_hash_map<std::string, IntExpr> vars_;  // in scope here
  int leaves_ = 0;                                  // of the expression being read
  Inst* inst_ = nullptr;                            // whose index is being read
  IntExpr dimension_;                               // what that index runs over
};

}  // namespace kiln::ir
