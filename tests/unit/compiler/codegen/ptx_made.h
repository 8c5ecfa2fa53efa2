// What target ptx makes of modules and graphs, for its tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/module.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::codegen {

// erf(a b + bias) + x in 16 bits; `a_turned`, `b_turned`: the operand is contiguous along its side
// of the result.
std::string ProductAndMore(const std::string& type, int m, int n, int k, bool a_turned,
                           bool b_turned);

// ProductAndMore's text without the more.
std::string Alone(const std::string& text);
// The same with another result, whose store is that line.
std::string WithResult(const std::string& text, absl::string_view type, absl::string_view store);

// For a device of 132 multiprocessors; `rank` is DeviceInfo's.
std::unique_ptr<Target> MakePtx(const std::string& arch = "sm_90a", int rank = 0);

struct Made {
  ir::Module module;  // whose context has the kernels' expressions
  std::string schedules;
  std::vector<EmittedKernel> kernels;
  std::vector<std::string> objects;
};
// Tiles, schedules, prints and compiles all operations; fails the current test where that fails.
Made Compile(const std::string& text, const std::string& arch = "sm_90a", int rank = 0);

// What lowering and fusion make of the graph for the target, with library steps where
// `by_libraries`.
ir::Module LowerFor(const Target& target, const v1::Graph& graph, bool by_libraries = true);
// Fails the current test where the target's trees compute something else than the module's kernels,
// of random inputs.
void CheckTrees(ir::Module& module, const std::vector<int64_t>& symbols, double tolerance,
                const std::string& arch = "sm_90a", int rank = 0);
// As Compile, operation `number` alone.
Made CompileOne(ir::Module module, size_t number, const std::string& arch = "sm_90a", int rank = 0);

// C++ after the prelude of kernels, compiled for this machine and loaded. The caller has the
// handle.
absl::StatusOr<void*> LibraryForThisMachine(absl::string_view text);

// Fails where ptxas, if this machine has it, refuses the PTX or has registers to spill.
void Assemble(const std::string& object, const std::string& arch);

}  // namespace kiln::codegen
