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

// Whether all stays checked when the source is computed in place of the consumer's loads of its
// buffer: a run-time index of such a load by a load of the source's own that always takes place;
// the source's divisors because each load reads every element, and no place beside those.
bool KeepsChecks(ir::Module& module, const InlineSource& source, const ir::Kernel& consumer);

// Replaces every load of the source's buffer in `consumer` by the computation of the element.
// `consumer` is not simplified afterwards. REQUIRES: KeepsChecks.
void InlineInto(ir::Module& module, const InlineSource& source, ir::Kernel& consumer);

}  // namespace kiln::fusion
