// What estimates for all tilings of a kernel have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/cost.h"
#include "compiler/schedule/gcu/form.h"

namespace kiln::schedule::gcu {

using LoopSet = uint64_t;  // the first 64 loops, a bit each

struct CostModel::Facts {
  struct Reach {
    const Access* access = nullptr;
    bool is_load = false;
    bool in_l2 = false;
    bool given = false;            // to the launch: may be loaded while the kernel before runs
    int64_t size = 0;              // bytes of an element
    std::vector<int64_t> strides;  // of the buffer, by dimension
    std::vector<int> dims;         // from the greatest stride on
    // Of a load, by dimension; empty where it stays inside: the index without loops, and which
    // indices are there to be copied.
    struct Clip {
      int64_t rest = 0, begin = 0, end = 0;
    };
    std::vector<std::optional<Clip>> clips;
    std::vector<int64_t> linear;  // stride by loop
    std::vector<bool> depends;    // by loop
    int same_as = -1;             // an earlier load that has the same box, whatever the tiling
  };
  // Of an instruction of the kernel.
  struct Operand {
    int reach = -1;     // of a load
    LoopSet loops = 0;  // of others: that it has dimensions of
    int64_t size = 0;   // bytes of an element
  };
  struct Step {
    LoopSet loops = 0;   // of the result; of a reduction, of what is reduced
    int64_t count = 1;   // instructions of the device
    int64_t cycles = 1;  // of all of them, a vector
    bool is_reduce = false;
    bool is_factor = false;  // a product that is but summed up, in one instruction where it can be
    std::vector<Operand> operands;
    std::vector<Operand> factors;  // of the product that a reduction sums up, if it is a factor
  };
  struct Phase {
    std::vector<int> loops;
    std::vector<Step> steps;
    int64_t stored_bytes = 0;  // of an iteration
  };

  Facts(const ir::Module& module, const Form& form, const InL2& in_l2);

  const Form& form;
  std::vector<int64_t> extents;  // by loop
  std::vector<bool> outer;       // by loop
  std::vector<Phase> phases;
  std::vector<Reach> reaches;
  bool is_lone = true;  // nothing is in L2: no kernel before it is known
};

// Of an element on the device.
int64_t DeviceSize(DType dtype);

}  // namespace kiln::schedule::gcu
