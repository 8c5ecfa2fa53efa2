// The model of time that tilings are chosen by.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {

// Of one kernel, for many tilings of it. What is given must outlive it.
class CostModel {
 public:
  struct Facts;

  CostModel(const ir::Module& module, const Form& form, const InL2& in_l2, const Machine& machine);
  ~CostModel();

  Cost Of(const Tiling& tiling) const;
  // No more than the seconds of that, and quick to find.
  double AtLeast(const Tiling& tiling) const;
  // As TypicalOf has them, by loop.
  const std::vector<int64_t>& extents() const;

 private:
  class Estimate;

  const std::unique_ptr<const Facts> facts_;
  const Machine& machine_;
};

}  // namespace kiln::schedule::gcu
