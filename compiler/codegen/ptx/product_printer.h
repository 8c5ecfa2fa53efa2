// The tree of a product on tensor cores (schedule/ptx/product.h) as C++: a call of the prelude's
// KProduct, KProductOfRows or KProductByWarps, with what is done with the sums printed from the
// tree.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/codegen/source/kernel_text.h"
#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

bool IsProduct(const schedule::Tree& tree);

// As PrintKernel, for sm_90a for blocks of which each of `compute_units` runs one; there tensor
// maps, of the operands, follow the other parameters. REQUIRES: IsProduct(tree).
absl::StatusOr<EmittedKernel> PrintProduct(ir::Module& module, const schedule::Tree& tree,
                                           int compute_units, bool waits);

// As a literal of C++.
absl::string_view Truth(bool value);

// Variables of the names for where tensor maps lie, parameters from number `first` on.
void PrintMapAddresses(size_t first, const std::vector<absl::string_view>& names,
                       source::Writer& out);

}  // namespace kiln::codegen::ptx
