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

// Whether a run-time index of a load of the source's buffer stays checked when the source is
// computed in its place: by a load of the source's own that always takes place.
bool KeepsChecks(const InlineSource& source, const ir::Kernel& consumer);

// Replaces every load of the source's buffer in `consumer` by the computation of the element.
// `consumer` is not simplified afterwards. REQUIRES: KeepsChecks.
void InlineInto(ir::Module& module, const InlineSource& source, ir::Kernel& consumer);

}  // namespace kiln::fusion
