// A launch's grid in the wire format.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"

namespace kiln {
namespace v1 {
class Grid;
}

// `number` as of ToSymInt (sym_int.h). INTERNAL where `grid` has not 1 to 3 sizes of each kind.
absl::StatusOr<v1::Grid> ToGrid(const codegen::EmittedGrid& grid,
                                const std::function<uint32_t(int)>& number = nullptr);

}  // namespace kiln
