// What the files of AppendStage share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/codegen/gcu/stage.h"
#include "compiler/schedule/gcu/box.h"

namespace kiln::codegen::gcu {

using schedule::gcu::Access;
using schedule::gcu::Affine;
using schedule::gcu::Form;
using schedule::gcu::Lacks;
using schedule::gcu::Loop;
using schedule::gcu::Machine;
using schedule::gcu::Tiling;

// Type on the device; `dtype` is one that MakeForm lets pass.
Type TypeOf(DType dtype);
// The bits of a number of that type.
int64_t BitsOf(Type type, double number);
// Of a constant, or of a load where its mask is false.
double ImmediateOf(const ir::Inst& inst);

// Memory of L1 for values, first fit; from the end on where it is mirrored.
class L1 {
 public:
  L1(int64_t bytes, bool mirrored) : bytes_(bytes), mirrored_(mirrored) {}
  int64_t Take(int64_t bytes);
  void Give(int64_t address);
  int64_t peak() const { return peak_; }

 private:
  const int64_t bytes_;
  const bool mirrored_;
  std::map<int64_t, int64_t> taken_;  // distance from the beginning, bytes
  int64_t peak_ = 0;
};

// A value's elements in L1.
struct View {
  Type type = Type::kF32;
  // Its first byte: the sum of a number, a register and multiples of registers.
  int64_t address = 0;
  int parity = -1;
  std::vector<std::pair<int, int64_t>> moves;
  std::vector<int64_t> strides;  // elements, by loop; 0 where it has no such dimension
  std::vector<bool> dims;        // by loop
  int64_t slot = -1;             // memory of its own, to give back
  int staged = -1;               // the box that it is a part of
};

// A box of a buffer that is copied to L1.
struct Staged {
  const Access* access = nullptr;
  schedule::gcu::Box box;
  std::vector<int> dims;  // of the buffer, from the outermost
  int64_t bytes = 0, address = 0;
  bool twice = false;                 // while one tile is computed with, the next one arrives
  bool late = false;                  // is loaded where it is used
  bool fixed = false;                 // nobody stores it while the program runs
  std::vector<int> depends;           // loops whose tile says which box it is
  int parity = -1, next_parity = -1;  // registers: bytes to add to the address
  int token = -1;
  std::vector<int> stores;  // tokens of stores that read it
};

class StageCoder {
 public:
  StageCoder(ir::Module& module, const Form& form, const Tiling& tiling,
             const std::vector<Placement>& placements, const Machine& machine,
             const StageOptions& options, Code& code);

  absl::StatusOr<StageBytes> Run();
  void Prefetch();

 private:
  // Of one tile: the first iteration of each loop, and how many there are.
  struct Place {
    std::vector<Scalar> begins, extents;
  };

  // stage.cc: the loop over tiles.
  void Plan();
  void FindSteps(int step, int end);
  void TakeBegins(Place& place);
  void SetExtents(Place& place);
  void IssueFirst(const Place& first, bool fixed, bool others);
  int NewToken();
  void CountTiles();
  void Decode(Scalar step, std::vector<Scalar>& begins);
  Scalar ExtentOf(int loop, Scalar begin);
  void RunStep(const Place& place);
  void RunPhase(int phase, const Place& place);
  void RunBody(int phase, const Place& place);
  void InSerialLoops(const std::vector<int>& loops, size_t next, Place& place,
                     const std::function<void(const Place&)>& body);

  // stage_memory.cc: what is copied.
  void PlanLoads();
  void PlanStores();
  Staged PlanBox(const Access& access);
  bool IsLate(const Access& access) const;
  void Issue(const Staged& staged, const Place& place, Scalar offset);
  void IssueIfChanged(Staged& staged, const Place& next, const std::vector<Scalar>& current);
  View ViewOf(const Staged& staged, const Access& access, const Place& place);
  void Store(const ir::Inst& inst, const Place& place);
  int64_t MostBytes(ir::ValueId value) const;
  Scalar BaseAddress(const Placement& placement);

  // stage_values.cc: what is computed.
  void Compute(const ir::Inst& inst, int phase, const Place& place);
  void ComputeOp(const ir::Inst& inst, const Place& place);
  void Cast(const ir::Inst& inst, const Place& place);
  void Index(const ir::Inst& inst, const Place& place);
  View Constant(Type type, double number);
  void Fill(const View& view, double number, const Place& place);
  View NewView(Type type, const std::vector<bool>& dims, ir::ValueId stored_as, const Place& place);
  View Like(Type type, std::initializer_list<const View*> operands, ir::ValueId stored_as,
            const Place& place);
  // It takes registers, as TileOf does.
  Scalar AddressOf(const View& view);
  // Its elements at the iterations of the loops `dims`, in the order of lanes. It takes registers.
  Tile TileOf(const View& view, const std::vector<bool>& dims, const Place& place);
  void Apply(Op op, const View& to, std::initializer_list<const View*> from, const Place& place);
  View Unary(Op op, const View& a, const Place& place);
  View Binary(Op op, const View& a, const View& b, const Place& place);
  void GiveBack(View& view);
  View& Of(ir::ValueId value) { return views_[value]; }
  bool IsStored(ir::ValueId value) const;
  bool HasLoops(int phase) const;
  // Whether the first phase's sums are added up over several steps.
  bool HasSteps() const { return tiling_.blocked >= 0 && !counts_[tiling_.blocked].is(1); }
  std::vector<bool> OuterDims() const;

  // stage_sums.cc: what is summed up.
  void Reduce(const ir::Inst& inst, int phase, const Place& place);
  // Whether the product is added to its sum by the instruction that makes it.
  bool IsAddedAtOnce(const ir::Inst& product, int phase, const Place& place) const;
  void InitializeSums(int phase, const Place& place);
  void MultiplyMatrices(const Place& place);

  ir::Module& module_;
  ir::IntContext& ints_;
  const Form& form_;
  const Tiling& tiling_;
  const std::vector<Placement>& placements_;
  const Machine& machine_;
  const StageOptions& options_;
  Code& code_;
  L1 l1_;
  int tokens_ = 0;                // taken so far
  int64_t fixed_bytes_ = 0;       // of L1
  std::vector<int> moving_;       // loops of more than one tile
  std::vector<int64_t> extents_;  // typical, by loop

  std::vector<Scalar> counts_;  // tiles, by loop
  std::vector<Staged> staged_;
  absl::flat_hash_map<const ir::Inst*, size_t> staged_of_;  // by load
  absl::flat_hash_map<const ir::Inst*, int> store_tokens_;
  absl::flat_hash_map<ir::ValueId, int64_t> store_slots_;  // of values that are stored
  absl::flat_hash_map<ir::ValueId, std::vector<int>> tokens_of_value_;
  std::vector<View> views_;  // by value
  std::vector<const ir::Inst*> definitions_;
  std::vector<int> last_use_;        // by value: the number of the last instruction
  std::vector<int> phase_of_;        // by value
  std::vector<int> first_of_phase_;  // the number of each phase's first instruction, and the end
};

}  // namespace kiln::codegen::gcu
