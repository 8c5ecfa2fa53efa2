// A kernel in the form that tile instructions need: every index an affine sum of loop variables,
// every mask either a box of the buffer that it guards or a value of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"

namespace kiln::schedule::gcu {

struct Loop {
  ir::IntExpr var, extent;
  int phase = -1;  // whose inner loop it is; -1: an outer loop
};

// rest + sum of coefficients[loop] * loop
struct Affine {
  ir::IntExpr rest;                   // without loop variables
  std::vector<int64_t> coefficients;  // by loop
};

// What a masked load may read of one dimension: begin <= index < end. One that is null is bounded
// by the dimension, as it lies where the load finds it; both are where the load stays inside.
struct Clip {
  ir::IntExpr begin, end;
};

// A load or store.
struct Access {
  const ir::Inst* inst = nullptr;
  int phase = 0;
  std::vector<Affine> indices;  // by dimension of the buffer
  // Of a load, by dimension; those of an access that stays inside are null.
  std::vector<Clip> clips;
  // Whether the mask is exactly the clips: where they fail, the load is its immediate. Otherwise
  // the mask is a value, by which the result is chosen.
  bool mask_is_clip = false;
};

struct Form {
  ir::Kernel kernel;
  std::vector<Loop> loops;  // the outer ones, then those of each phase, outermost first
  std::vector<Access> accesses;
  // By value: its type on the device. 64-bit indices are 32-bit ones, where bounds prove it.
  std::vector<DType> types;
  // By value: whether something is made of it, other than a mask that is a clip.
  std::vector<bool> needed;

  const Access& AccessOf(const ir::Inst& inst) const;
  // Whether it is a product of which nothing is made but a sum in the same phase: both are one
  // instruction where the sum is over iterations one after another.
  bool IsFactor(const ir::Inst& inst) const;
  // Numbers of the loops that are there in the phase: outer ones and its own.
  std::vector<int> LoopsOf(int phase) const;
};

// UNIMPLEMENTED: "the GCU has no WHAT".
absl::Status Lacks(absl::string_view what);

// UNIMPLEMENTED with what the device lacks: 64-bit numbers, sorts, scatters, ... `module` gets new
// variables.
absl::StatusOr<Form> MakeForm(ir::Module& module, ir::Kernel kernel);

// The part of `expr` in each loop's variable; nothing where it is not affine.
std::optional<Affine> AffineOf(ir::IntContext& ints, const std::vector<Loop>& loops,
                               ir::IntExpr expr);

// What a matrix instruction computes of a contraction: C[rows.., column] += A[rows.., depth] *
// B[depth, column]. Numbers of loops.
struct MatrixRoles {
  std::vector<int> rows;  // that A's operand has and B's has not
  std::vector<int> columns;
  std::vector<int> batch;                          // outer loops of both, or neither
  int depth = -1;                                  // the inner loop that instructions sum over
  ir::ValueId a = ir::kNoValue, b = ir::kNoValue;  // the product's operands, before casts
  DType dtype = DType::kF32;                       // of A and B
};
// Nothing for kernels that no matrix instruction helps: depthwise convolutions, types it lacks.
std::optional<MatrixRoles> RolesOf(const ir::Module& module, const Form& form);

}  // namespace kiln::schedule::gcu
