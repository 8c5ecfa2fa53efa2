// What surrounds the loops of every kernel: the struct of its arguments, its functions, its entry.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/codegen/cpp/kernel_text.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/module.h"

namespace kiln::codegen::cpp {

class Shell {
 public:
  // `names` must outlive the shell; what was used by Finish() becomes the arguments.
  Shell(const ir::Module& module, Names& names) : module_(module), names_(names) {}

  // A static function `void name(Args& args, parameters)` whose body sees the buffers, the symbols
  // and `error`.
  void AddFunction(std::string name, std::string parameters, std::string body);
  // Lines of the entry, which sees `args`, `context` and the symbols.
  Writer& out() { return entry_; }
  // A member of Args: its type with name, and what the entry initializes it with.
  void AddMember(std::string declaration, std::string initializer);

  EmittedKernel Finish(ir::IntExpr scratch_bytes, ir::IntExpr thread_scratch_bytes);

 private:
  struct Function {
    std::string name, parameters, body;
  };
  struct Member {
    std::string declaration, initializer;
  };
  std::string PointerType(ir::BufferId buffer) const;
  void WriteFunction(const Function& function, Writer& out) const;

  const ir::Module& module_;
  Names& names_;
  Writer entry_;
  std::vector<Function> functions_;
  std::vector<Member> members_;
};

}  // namespace kiln::codegen::cpp
