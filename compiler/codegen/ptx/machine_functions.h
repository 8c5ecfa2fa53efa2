// Which functions of a kernel take few instructions of the machine: those that may be less exact
// than float32, since results have 16 bits, and quotients and roots of float32 that need no branch.
#pragma once

#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

// Of a kernel's exponentials, sigmoids and quotients, those are short whose values are rounded to
// 16 bits, at once or after operations under which a small error stays small; what is compared,
// made a whole number or leaves the kernel in more bits is none of them.
class MachineFunctions {
 public:
  // `of_products`: also hyperbolic tangents and error functions are short, whose error is one of 1
  // (2^-22) and not of small values.
  MachineFunctions(const ir::Module& module, const schedule::Tree& tree, bool of_products);

  // The function of prelude_short.inc.h or prelude_quotients.inc.h for an instruction, or "".
  std::string Of(const ir::Inst& inst) const;

 private:
  std::string ShortOf(const ir::Inst& inst) const;
  std::string FullOf(const ir::Inst& inst) const;
  // The instruction that makes a value; null where it is combined of what threads have.
  const ir::Inst* Maker(ir::ValueId id) const;
  // Whether it is a whole number, as that of elements that the sizes of a call say.
  bool IsWhole(ir::ValueId id) const;
  // Whether the value is an exponential and 1 or more.
  bool IsAboveOne(ir::ValueId id) const;
  // Its value where it is a number of elements, that less one, or another constant.
  std::optional<double> Constant(ir::ValueId id) const;
  // The same of those that have an inverse.
  std::optional<double> Count(ir::ValueId id) const;

  absl::flat_hash_map<ir::ValueId, const ir::Inst*> computed_;
  absl::flat_hash_set<ir::ValueId> exact_;
  bool of_products_;
};

}  // namespace kiln::codegen::ptx
