// Sizes of the IR as sizes of the wire format.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "compiler/ir/int_expr.h"

namespace kiln {
namespace v1 {
class SymInt;
}

// `number` gives the number that a symbol has in the message, by its id. A null `expr` becomes an
// absent number, which means 0. INTERNAL where a loop variable is in it.
absl::StatusOr<v1::SymInt> ToSymInt(ir::IntExpr expr,
                                    const std::function<uint32_t(int)>& number = nullptr);

}  // namespace kiln
