// What is the same from call to call: parameters, constants, and what kernels make of those alone.
#pragma once

#include <functional>

#include "compiler/ir/module.h"

namespace kiln::ir {

// A parameter, a constant or a prepared buffer.
bool IsFixed(const Buffer& buffer);

// Whether an instruction reads fixed buffers only, and depends on no symbol.
bool IsFixed(const Inst& inst, const std::function<bool(BufferId)>& is_fixed);
// The same of a whole kernel, which then makes the same in every call. What it stores itself it may
// read.
bool IsFixed(const Kernel& kernel, const std::function<bool(BufferId)>& is_fixed);

// Whether what one of the kernels stores is kept for many calls. Such operations come first and
// store nothing else, as the verifier sees to.
bool StoresPrepared(const Module& module, absl::Span<const Kernel> kernels);

// Whether it computes what is worth a buffer of its own if it has to be computed but once: more
// than moves and a few additions.
bool IsCostly(const Kernel& kernel);

}  // namespace kiln::ir
