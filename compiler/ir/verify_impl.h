// Private to verify*.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/ir/module.h"

namespace kiln::ir {

// What is wrong with `index` as an index of a dimension of `size` elements; nothing where ranges
// prove it inside. What ranges cannot prove is evaluated with symbols at their hints: at every
// point of the loops where there are at most kMaxProbes, else at corners and random points. So a
// legal index never fails, and an illegal one whose loops are small never passes.
std::optional<std::string> FindIndexOutside(IntContext& ints, IntExpr index, IntExpr size);
inline constexpr int64_t kMaxProbes = 2048;

// Which leaves an expression may have.
bool IsSizeExpr(IntExpr expr);  // not null, symbols only

// That the tiles of a repeat are independent of each other. REQUIRES: its kernels are verified.
absl::Status CheckRepeat(const Module& module, const Repeat& repeat);

// Checks kernels one after another. Remembers which buffers have their values.
class KernelVerifier {
 public:
  explicit KernelVerifier(const Module& module);

  absl::Status Check(const Kernel& kernel, int operation);
  // True where the buffer may be read after the operations so far.
  bool IsWritten(BufferId buffer) const;
  bool HasWriter(BufferId buffer) const { return writer_[buffer] >= 0; }
  void MarkWritten(BufferId buffer, int operation) { writer_[buffer] = operation; }

 private:
  struct Value {
    int kernel = -1;  // number of the kernel that defines it; others count as undefined
    int phase = 0;
    DType dtype = DType::kF32;
    bool is_reduction = false;
    bool from_loop = false;  // made by a phase with inner loops
  };
  struct StoredAt {
    int phase;
    const Inst* inst;
  };

  absl::Status CheckLoops(const std::vector<IntExpr>& loops, absl::string_view what);
  absl::Status CheckPhase(int phase);
  absl::Status CheckInst(const Inst& inst);
  absl::Status CheckOperands(const Inst& inst);
  absl::Status CheckOperandVisible(const Inst& inst, ValueId id);
  absl::Status CheckTypes(const Inst& inst);
  absl::Status CheckReduce(const Inst& inst);
  absl::Status CheckScan(const Inst& inst);
  absl::Status CheckSort(const Inst& inst);
  absl::Status CheckFold(const Inst& inst);
  absl::Status CheckAccess(const Inst& inst, size_t other_operands);
  absl::Status CheckIndices(const Inst& inst, size_t indirect_operands);
  absl::Status CheckLeaves(const Inst& inst, IntExpr index, size_t indirect_operands);
  absl::Status CheckLoad(const Inst& inst);
  absl::Status CheckLoadOfOwnStore(const Inst& inst);
  absl::Status CheckStore(const Inst& inst);
  absl::Status CheckScatter(const Inst& inst);
  absl::Status Define(const Inst& inst);
  absl::Status CheckContraction();
  absl::Status CheckPrepared();

  DType TypeOf(ValueId id) const { return values_[id].dtype; }
  absl::Status Error(absl::string_view what) const;
  absl::Status Error(const Inst& inst, absl::string_view what) const;

  const Module& module_;
  std::vector<int> writer_;    // by BufferId: the operation that stores it, or -1
  std::vector<Value> values_;  // by ValueId
  absl::flat_hash_map<BufferId, std::vector<StoredAt>> stores_;  // of the kernel at hand
  absl::flat_hash_map<IntExpr, int> loop_depth_;                 // loop variables in scope
  const Kernel* kernel_ = nullptr;
  int operation_ = 0;
  int prepared_ = 0;  // operations so far that make prepared buffers
  int phase_ = 0;
  bool has_empty_loop_ = false;  // nothing runs, so no index is out of bounds
};

}  // namespace kiln::ir
