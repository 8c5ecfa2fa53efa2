// A schedule tree as C++ for an NVIDIA GPU, on the prelude.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/codegen/source/kernel_text.h"
#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

// What a kernel's source says of itself in comments, for Compile.
inline constexpr absl::string_view kKernelMark = "// kiln kernel ";
inline constexpr absl::string_view kThreadsMark = "// kiln threads ";  // of a block
inline constexpr absl::string_view kClusterMark = "// kiln cluster ";  // blocks of one, else 1
// Blocks that a multiprocessor has to hold at least, where that is known.
inline constexpr absl::string_view kResidentMark = "// kiln resident ";
inline constexpr absl::string_view kLoadsMark =
    "// kiln loads ";  // early (toolchain/early_loads.h)
inline constexpr absl::string_view kInterfaceMark = "// kiln interface ";

// A kernel's parameters are its buffers, its symbols, scratch memory of the launch, and an int that
// it sets to 1 where an index of the user's lies outside of its dimension.
// REQUIRES: a verified tree of a kernel of `module`. INTERNAL for a node that the target's
// schedules do not have.
// `waits`: the kernel waits itself for the launch before it, as architectures from sm_90 on can.
absl::StatusOr<EmittedKernel> PrintKernel(ir::Module& module, const schedule::Tree& tree,
                                          bool waits);

// The same for each of `copies`, as Target::PrintTogether; nothing where the number of blocks is
// not known before the run.
absl::StatusOr<std::optional<EmittedKernel>> PrintKernels(ir::Module& module,
                                                          const schedule::Tree& tree, bool waits,
                                                          absl::Span<const BufferMap> copies);

// Whether no index can leave 32 bits on the way to its value: those are cheaper to divide.
bool IndicesFitInt(const schedule::Tree& tree);

}  // namespace kiln::codegen::ptx
