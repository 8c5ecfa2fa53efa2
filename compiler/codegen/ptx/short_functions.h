// Which functions of a kernel may be less exact than float32, since results have 16 bits.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

// Of a kernel's exponentials, sigmoids and quotients, those whose values are rounded to 16 bits, at
// once or after operations under which a small error stays small; what is compared, made a whole
// number or leaves the kernel in more bits is none of them.
class ShortFunctions {
 public:
  // `of_products`: also hyperbolic tangents and error functions, whose error is one of 1 (2^-22)
  // and not of small values.
  ShortFunctions(const ir::Module& module, const schedule::Tree& tree, bool of_products);

  // The function of prelude_short.inc.h for an instruction, or "".
  std::string Of(const ir::Inst& inst) const;

 private:
  // Whether the value is an exponential and 1 or more.
  bool IsAboveOne(ir::ValueId id) const;

  absl::flat_hash_map<ir::ValueId, const ir::Inst*> computed_;
  absl::flat_hash_set<ir::ValueId> exact_;
  bool of_products_;
};

}  // namespace kiln::codegen::ptx
