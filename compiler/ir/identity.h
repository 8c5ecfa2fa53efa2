// Which operations of a module differ in nothing but the buffers that they are about, as those of a
// model's equal layers: what is made of one of them serves the others.
#pragma once

#include <string>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/ir/module_text.h"

namespace kiln::ir {

// Names and origins count for nothing.
class IdentityWriter {
 public:
  // Borrowed. Kinds of its buffers may change later, nothing else.
  explicit IdentityWriter(const Module& module);

  // What a Kernel or Repeat says with its buffers numbered in order of first use, and what these
  // are that `buffers` gets. Equal texts: code made of the one does for the other.
  std::string Text(const Operation& operation, std::vector<BufferId>& buffers);

 private:
  void AppendKernel(const Kernel& kernel, std::string& out) const;
  void AppendLoops(const std::vector<IntExpr>& vars, std::string& out) const;
  void AppendBuffer(const Buffer& buffer, std::string& out) const;

  const Module& module_;
  ModuleNames names_;
  const ExprWriter sizes_;  // for expressions over symbols only
};

struct Identity {
  size_t first;  // the first operation of the module that is equal; itself for that one
  std::vector<BufferId> buffers;  // in order of first use: equal operations have equal types there
};

// One for each operation. Names and origins count for nothing; a Library operation equals itself
// only.
std::vector<Identity> Identify(const Module& module);

}  // namespace kiln::ir
