// Finds how the loops of two kernels correspond. Private to compiler/fusion.
#pragma once

#include <optional>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::fusion {

// An access that visits every position of a buffer, numbered row-major over its sizes, exactly once
// over some of its loops: position = sum of stride * var, where each stride is the product of the
// extents before it.
struct LinearForm {
  struct Digit {
    ir::IntExpr var, stride;
  };
  std::vector<Digit> digits;  // least significant first
  ir::IntExpr position;
  ir::IntExpr total;

  bool Uses(ir::IntExpr var) const;
  bool UsesAll(const std::vector<ir::IntExpr>& vars) const;
  bool UsesAny(const std::vector<ir::IntExpr>& vars) const;
};

// The form of indices[k] into a dimension of sizes[k] over the loops `vars`; those whose variable
// does not occur are no digits.
std::optional<LinearForm> FindLinearForm(ir::IntContext& ints,
                                         const std::vector<ir::IntExpr>& sizes,
                                         const std::vector<ir::IntExpr>& indices,
                                         const std::vector<ir::IntExpr>& vars);
// The row-major number of the element at `indices`.
ir::IntExpr Position(ir::IntContext& ints, const std::vector<ir::IntExpr>& sizes,
                     const std::vector<ir::IntExpr>& indices);
// What the form's variables must be to reach `position`.
ir::IntContext::VarMap SolveForm(ir::IntContext& ints, const LinearForm& form,
                                 ir::IntExpr position);

bool EqualExtents(const std::vector<ir::IntExpr>& a, const std::vector<ir::IntExpr>& b);
// Maps from[i] to to[i]. REQUIRES: equal lengths.
ir::IntContext::VarMap RenameLoops(const std::vector<ir::IntExpr>& from,
                                   const std::vector<ir::IntExpr>& to);
std::vector<ir::IntExpr> CloneLoops(ir::IntContext& ints, const std::vector<ir::IntExpr>& loops);
void SubstituteIndices(ir::IntContext& ints, const ir::IntContext::VarMap& map, ir::Inst& inst);

// How kernel `guest` runs within the loops of kernel `host`: its outer variables as expressions
// over the host's outer loops and `inner`, which its phases then loop over.
struct LoopMatch {
  ir::IntContext::VarMap guest_vars;
  std::vector<ir::IntExpr> inner;  // new variables; empty where the outer loops match
};

// One access of a kernel: instruction `inst` of phase `phase`.
struct AccessSite {
  const ir::Kernel* kernel = nullptr;
  size_t phase = 0;
  const ir::Inst* inst = nullptr;
};

// The match in which both kernels' accesses of the same buffer touch the same element at the same
// point. Nothing where there is none.
std::optional<LoopMatch> MatchLoops(ir::Module& module, const AccessSite& host,
                                    const AccessSite& guest);

}  // namespace kiln::fusion
