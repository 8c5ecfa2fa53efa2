// One kernel as instructions of all cores: tiles dealt out to them, loads that run ahead, vector
// and matrix instructions in L1, stores.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "compiler/codegen/gcu/code.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::codegen::gcu {

// Where a buffer lies, and how.
struct Placement {
  Space space = Space::kL3;
  int argument = -1;                        // in L3: the launch's argument with its address
  int64_t offset = 0;                       // in L2: bytes from the launch's own memory on
  std::vector<ir::IntExpr> sizes, strides;  // elements
};

// Tokens that stages take: those behind them are for copies that a launch makes beside them.
inline constexpr int kStageTokens = 14;

struct StageOptions {
  // L1 is taken from its end and the other half of the stages' tokens, so that a stage and the next
  // one take different ones.
  bool odd = false;
  // By buffer: what nobody stores while the program runs; the first loads of it may be made ahead.
  const std::vector<bool>* fixed = nullptr;
  bool prefetched = false;             // they were
  std::function<void(Code&)> at_last;  // called where the stage's own loads are all issued
  // Called in every step, where the loads of the next one are issued, with the register that holds
  // the next step's number.
  std::function<void(Code&, int next)> at_step;
};

// What one core runs of a stage whose sizes are known.
struct CoreSteps {
  int core = 0;
  int64_t first = 0, count = 0;
};
// Of the core that has most; nothing where sizes are not known.
std::optional<CoreSteps> BusiestCore(const schedule::gcu::Form& form,
                                     const schedule::gcu::Tiling& tiling,
                                     const schedule::gcu::Machine& machine);

struct StageBytes {
  int64_t all = 0;    // of L1
  int64_t fixed = 0;  // of those, for loads of fixed buffers; at the beginning
};

// Appends the kernel to `code`. `placements` has those of its buffers, by buffer. UNIMPLEMENTED
// where the machine lacks something, or L1 is too small.
absl::StatusOr<StageBytes> AppendStage(ir::Module& module, const schedule::gcu::Form& form,
                                       const schedule::gcu::Tiling& tiling,
                                       const std::vector<Placement>& placements,
                                       const schedule::gcu::Machine& machine,
                                       const StageOptions& options, Code& code);

// Appends the first loads of fixed buffers that the stage makes.
void AppendPrefetch(ir::Module& module, const schedule::gcu::Form& form,
                    const schedule::gcu::Tiling& tiling, const std::vector<Placement>& placements,
                    const schedule::gcu::Machine& machine, const StageOptions& options, Code& code);

}  // namespace kiln::codegen::gcu
