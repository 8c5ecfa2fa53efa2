// The mechanics of inlining. Private to compiler/fusion.
#pragma once

#include <optional>

#include "compiler/ir/module.h"

namespace kiln::fusion {

// A pointwise kernel of one phase that stores one buffer, every element of it.
struct InlineSource {
  const ir::Kernel* kernel = nullptr;
  const ir::Inst* store = nullptr;
};
std::optional<InlineSource> AsInlineSource(ir::Module& module, const ir::Kernel& kernel);

// Replaces every load of the source's buffer in `consumer` by the computation of the element.
// `consumer` is not simplified afterwards.
void InlineInto(ir::Module& module, const InlineSource& source, ir::Kernel& consumer);

}  // namespace kiln::fusion
