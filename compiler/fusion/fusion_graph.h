// What every fusion pass works on: the module's operations with their reads, writes and order.
// Private to compiler/fusion.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "compiler/fusion/fuse.h"
#include "compiler/ir/module.h"

namespace kiln::fusion {

inline constexpr size_t kMaxOrigins = 64;        // graph nodes in one kernel
inline constexpr size_t kMaxInstructions = 400;  // of one kernel

// An operation taken out of the module. Its number stays the same as others come and go.
struct Op {
  ir::Operation operation;
  std::vector<ir::BufferId> reads;   // sorted, each once, without what it writes itself
  std::vector<ir::BufferId> writes;  // sorted, each once
  bool alive = true;
  // Never fused, moved or removed: library steps, repeats, packing kernels, kernels that store a
  // buffer in more than one place, costly ones that are computed once for many calls
  // (fixed_values.h), and everything from the first kernel on that stores into an input: what reads
  // that input comes before it.
  bool pinned = false;
  // A kernel that scatters: producers may be computed in it, but it joins no other.
  bool scatters = false;
  int position = 0;  // in FusionGraph::order
};

class FusionGraph {
 public:
  // Takes the operations out of `module`; Finish puts what is left back.
  FusionGraph(ir::Module& module, std::vector<Decision>* decisions);
  void Finish();
  // Whether the operations as they stand are a verified module.
  absl::Status Verify();

  // FuseOptions::plain_operands and takes_operands.
  using TakesOperands = std::function<bool(ir::Module&, const ir::Kernel&)>;
  void set_plain_operands(bool plain, TakesOperands takes) {
    plain_operands_ = plain;
    takes_operands_ = std::move(takes);
  }
  bool plain_operands() const { return plain_operands_; }
  // FuseOptions::costly_launches.
  void set_costly_launches(bool costly) { costly_launches_ = costly; }
  bool costly_launches() const { return costly_launches_; }
  // FuseOptions::lanes_beside_windows.
  void set_lanes_beside_windows(bool beside) { lanes_beside_windows_ = beside; }
  bool lanes_beside_windows() const { return lanes_beside_windows_; }
  bool TakesOperandsOf(const ir::Kernel& contraction) {
    return takes_operands_ && takes_operands_(module_, contraction);
  }

  ir::Module& module() { return module_; }
  ir::IntContext& ints() { return *module_.ints; }

  int size() const { return static_cast<int>(ops_.size()); }
  const Op& op(int id) const { return ops_[id]; }
  const std::vector<int>& order() const { return order_; }  // holds dead operations, too
  // Null where the operation is dead, pinned or no kernel.
  ir::Kernel* Changeable(int id);
  // The same, and null where it may not be joined with others.
  ir::Kernel* Fusible(int id);
  const ir::Kernel* Fusible(int id) const { return const_cast<FusionGraph*>(this)->Fusible(id); }
  std::string NameOf(int id) const;

  int ProducerOf(ir::BufferId buffer) const { return producer_[buffer]; }  // -1: none
  // Operations that read it, in order.
  std::vector<int> ReadersOf(ir::BufferId buffer) const;
  // True where someone other than a kernel sees the buffer's memory: outputs, library steps, and
  // repeats, whose layouts stay as they are.
  bool IsKept(ir::BufferId buffer) const { return kept_[buffer]; }
  // True where only operation `id` uses the buffer.
  bool IsPrivateTo(int id, ir::BufferId buffer) const;

  // Brings reads and writes up to date after the kernel's body changed.
  void Update(int id);
  void Remove(int id);
  // Whatever stores or reads `from`, and is alive, does so with `to` from now on. REQUIRES: equal
  // types and strides, and no operation stores `to` any more.
  void Rename(ir::BufferId from, ir::BufferId to);
  // Appends a new kernel right before operation `before`.
  int InsertBefore(int before, ir::Kernel kernel);

  // Whether one operation can stand for both: no third one lies on a path between them.
  bool CanJoin(int first, int second) const;
  // Makes `second` stand for both and `first` dead, and orders the others around it.
  // REQUIRES: CanJoin, and first before second.
  void Join(int first, int second, ir::Kernel joined);

  void Record(int producer, int consumer, bool fused, absl::string_view reason);

 private:
  // Which operations strictly between the two depend on `first`, and whether `second` depends on
  // one of them.
  bool MarkBetween(int first, int second, std::vector<int>* dependent) const;
  void Renumber(size_t from, size_t to);
  void CompactBuffers();
  void PinPrepared();

  ir::Module& module_;
  bool plain_operands_ = false, costly_launches_ = false, lanes_beside_windows_ = false;
  TakesOperands takes_operands_;
  std::vector<Decision>* decisions_;
  std::vector<Op> ops_;
  std::vector<int> order_;
  std::vector<int> producer_;              // by BufferId
  std::vector<std::vector<int>> readers_;  // by BufferId, unordered
  std::vector<bool> kept_;                 // by BufferId
};

// Elements and bytes at the symbols' hints, at least 1.
double Points(const ir::IntContext& ints, const std::vector<ir::IntExpr>& loops);
double BufferBytes(ir::Module& module, ir::BufferId buffer);

// One phase or several, none with inner loops, by plain loops.
bool IsPointwise(const ir::Kernel& kernel);
size_t NumInstructions(const ir::Kernel& kernel);
// False where a joined kernel would be too large.
bool FitsTogether(const ir::Kernel& a, const ir::Kernel& b);
void AppendOrigins(const std::vector<std::string>& from, std::vector<std::string>& to);

// Number of a load's or store's operands that are indices.
size_t NumIndirect(const ir::Inst& inst);

}  // namespace kiln::fusion
