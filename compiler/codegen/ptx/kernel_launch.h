// What stands around the code of a kernel's tasks: its parameters, and which task a thread works
// at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/codegen/source/kernel_text.h"
#include "compiler/codegen/target.h"

namespace kiln::codegen::ptx {

inline constexpr size_t kMostParameters = 512;  // of 8 bytes each, for a launch

struct TaskText {
  std::string body;        // of the task of number `task`, on `lane` of its team
  std::string tasks;       // how many there are
  std::string index_type;  // of `task`: "int" or "long"
  bool waits = false;      // for the launch before
  bool checks = false;     // sets `error`
  int team = 1;            // threads that share a task
  int threads = 0;         // of a block: whole teams
  int resident = 0;        // blocks that a multiprocessor has to hold at least; 0: whatever it can
  int64_t slot_bytes = 0;  // of a block's shared memory, for what its threads exchange
  int64_t team_bytes = 0;  // the same, for each of its teams
  ir::IntExpr blocks;
};

// `names` are those of the text.
EmittedKernel PrintLaunch(ir::Module& module, const TaskText& text, source::Names& names);

// As Target::PrintTogether: each block finds its copy. Nothing where the number of blocks is not
// known before the run, or there are too many of them or of parameters.
std::optional<EmittedKernel> PrintLaunches(ir::Module& module, const TaskText& text,
                                           absl::Span<const BufferMap> copies,
                                           source::Names& names);

// For printers of other kernels with such parameters: the parameters of buffers, pointers with that
// qualifier and a space after it, and of symbols, each with ", " after it; the symbols, as
// variables of `type` made of those; and the rest of a kernel of that text.
//
// A launch passes symbols that only the kernel's interface has, too. ParametersText names those
// that the sizes of the buffers, `kernel`'s grid and its tensor maps have: it comes after all other
// names.
std::string ParametersText(const ir::Module& module, const EmittedKernel& kernel,
                           source::Names& names, absl::string_view qualifier = "");
void PrintSymbols(const source::Names& names, absl::string_view type, source::Writer& out);
void SetText(ir::IntContext& ints, const source::Names& names, const source::Writer& text,
             EmittedKernel& kernel);

// Where the text and the interface have symbols for what they need not tell, kernels of other sizes
// are the same one. A symbol that stands for `value`, which is from `min` to `max`, in launches of
// `kernel`:
ir::IntExpr AtLaunch(ir::IntContext& ints, ir::IntExpr value, int64_t min, int64_t max,
                     EmittedKernel& kernel);
// The same for the strides and the offset of `map`, and for the bytes of `buffer`.
void PlaceAtLaunch(ir::IntContext& ints, EmittedTensorMap& map, EmittedKernel& kernel);
void SetBytesAtLaunch(const ir::Module& module, ir::BufferId buffer, EmittedKernel& kernel);

// The number of the first tensor map's parameter, where `names` has all names.
size_t FirstMap(const source::Names& names);

}  // namespace kiln::codegen::ptx
