// Assembly of the program that a client runs: from a planned module and its emitted kernels to
// kiln.v1.Program.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"
#include "compiler/graph/graph.h"
#include "compiler/ir/module.h"
#include "compiler/memory/plan_memory.h"

namespace kiln {
namespace v1 {
class Graph;
class Program;
}  // namespace v1

// A kernel operation of the module: what was emitted, and its symbol in what is linked.
struct NamedKernel {
  std::string symbol;
  codegen::EmittedKernel emitted;
  std::vector<NamedKernel> alternatives;  // that do the same
};

// `kernels` has one entry for each operation of the module, in order; those of Library operations
// are not read, and one without a symbol is part of another's launch. `graph` gives the inputs,
// symbols and constants, which the program repeats. INTERNAL where an expression of the program
// still contains a loop variable.
absl::StatusOr<v1::Program> Assemble(const v1::Graph& graph, const ir::Module& module,
                                     const memory::Plan& plan,
                                     const std::vector<NamedKernel>& kernels);

}  // namespace kiln
