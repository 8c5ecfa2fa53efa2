// Private to interpret_contraction.cc: one operand of a contraction as rows of a dense matrix.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compiler/ir/interpret_impl.h"

namespace kiln::ir {

// An operand's instructions and the loop variables they use.
struct Side {
  std::vector<const Inst*> insts;
  absl::flat_hash_set<IntExpr> vars;
  ValueId value;
};

// What `body` computes `value` from.
Side FindSide(const std::vector<Inst>& body, ValueId value);

// Loop variables of one class, outermost first, with their strides in some row-major order.
struct Axes {
  std::vector<IntExpr> vars;
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;

  int64_t Points() const;
  // The values of the variables at a point in row-major order.
  std::vector<int64_t> At(int64_t point) const;
  int64_t Offset(int64_t point) const { return Offset(point, strides); }
  int64_t Offset(int64_t point, absl::Span<const int64_t> strides_of_vars) const;
};

// Fills rows of an operand's matrix [rows.Points(), depth] for one point of `batch`. An operand
// that is a plain load at an affine index is copied by strides; prologues, masks and views of any
// other kind are computed by its own instructions, so they need no case here. Not thread-safe;
// several may share `storage`.
class Gather {
 public:
  Gather(const Module& module, absl::Span<const int64_t> symbols, const Side& side,
         const Axes& batch, const Axes& rows, const Axes& inner, std::vector<Storage>& storage);
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  void SetBatch(int64_t point);
  absl::Status Rows(int64_t first, int64_t count, double* out);

 private:
  // A load whose linear index is `offset` plus a multiple of each variable.
  struct StridedLoad {
    const Lane* data;
    int64_t offset;
    std::vector<int64_t> batch, rows, inner;
  };
  static std::optional<StridedLoad> FindStridedLoad(const Module& module,
                                                    absl::Span<const int64_t> symbols,
                                                    const Side& side, const Axes& batch,
                                                    const Axes& rows, const Axes& inner,
                                                    const std::vector<Storage>& storage);
  static KernelProgram Build(const Module& module, absl::Span<const int64_t> symbols,
                             const Side& side, const Axes& batch, const Axes& rows,
                             const Axes& inner, int* reg);

  const Axes& batch_;
  const Axes& rows_;
  const int64_t depth_;
  std::optional<StridedLoad> strided_;
  const Lane* batch_data_ = nullptr;    // with strided_: its first element in this batch
  std::vector<int64_t> inner_offsets_;  // with strided_: of each point of the inner loops
  int reg_ = -1;
  KernelProgram program_;
  ProgramRunner runner_;
};

}  // namespace kiln::ir
