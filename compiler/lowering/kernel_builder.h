// The toolkit that kernels are written with.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/lowering/view.h"

namespace kiln::lowering {

// A Python number among an operator's arguments.
using Number = std::variant<bool, int64_t, double, ir::IntExpr>;

bool IsFloatNumber(const Number& number);

// An SSA value of the kernel being built.
struct Scalar {
  ir::ValueId id = ir::kNoValue;
  DType dtype = DType::kF32;
};

// A coordinate of a load: an index expression or a run-time i64 value.
using Coordinate = std::variant<ir::IntExpr, Scalar>;

// Builds one kernel. Order of calls: Outer, then for each phase StartPhase and its instructions,
// then Finish. Not reusable.
class KernelBuilder {
 public:
  // `name` is unique in the module.
  KernelBuilder(ir::Module& module, std::string name, std::string origin);

  ir::IntContext& ints() { return *module_.ints; }

  // Adds outer loops over `sizes`, nested in `order` (their own order where empty). Returns one
  // coordinate a size: a variable, or 0 for a size of 1.
  Ints Outer(const Ints& sizes, const std::vector<int>& order = {});
  // Starts a phase with inner loops over `sizes`.
  Ints StartPhase(const Ints& sizes = {});

  // Leaves.
  Scalar Const(DType dtype, double value);
  Scalar ConstInt(DType dtype, int64_t value);
  Scalar Const(DType dtype, const Number& number);
  Scalar Index(ir::IntExpr expr);

  // The element of `view` at `coordinates`, in the view's dtype.
  Scalar Load(const View& view, const Ints& coordinates);
  // Aligns the last dimensions, as broadcasting does: coordinates before them are left out.
  Scalar LoadBroadcast(const View& view, const Ints& coordinates);
  // Reads nothing and gives `otherwise` where `mask` (bool) is false.
  Scalar LoadMasked(const View& view, const Ints& coordinates, Scalar mask, double otherwise);
  // Coordinates may be run-time values; each is checked against its dimension when it runs.
  Scalar LoadAt(const View& view, const std::vector<Coordinate>& coordinates);

  // Operations. The type of the result follows the table of scalar operations.
  Scalar Op(ir::ScalarOp op, Scalar a);
  Scalar Op(ir::ScalarOp op, Scalar a, Scalar b);
  Scalar Op(ir::ScalarOp op, Scalar a, double b);
  Scalar Op(ir::ScalarOp op, Scalar a, Scalar b, Scalar c);
  Scalar Select(Scalar condition, Scalar a, Scalar b);
  Scalar Cast(Scalar a, DType dtype);  // `a` itself where it has the type
  Scalar Bitcast(Scalar a, DType dtype);
  // The element as arithmetic takes it: f32 for f16 and bf16.
  Scalar Widen(Scalar a) { return Cast(a, ComputeType(a.dtype)); }
  Scalar And(Scalar a, Scalar b) { return Op(ir::ScalarOp::kAnd, a, b); }
  // `low` <= `index` < `high`, leaving out what the ranges prove; nothing left gives no value.
  void AddBounds(ir::IntExpr index, ir::IntExpr low, ir::IntExpr high, Scalar& mask);

  // Over the phase's inner loops; `a` itself (0 for argmax and argmin) where it has none.
  Scalar Reduce(ir::ReduceKind kind, Scalar a);

  // The same up to and with this iteration.
  Scalar Scan(ir::ReduceKind kind, Scalar a);

  // What comes at this iteration's number when `a` of all of them is in ascending order; i64. The
  // kernel ends in Finish(kSorting). With `first` only so many iterations go on from there.
  Scalar Sort(Scalar a, int64_t first = 0);

  // Casts to the buffer's type.
  void Store(const View& view, const Ints& coordinates, Scalar value);
  // A scatter: coordinates as LoadAt's; with `kind` the value is taken into the element.
  void StoreAt(const View& view, const std::vector<Coordinate>& coordinates, Scalar value,
               std::optional<ir::ReduceKind> kind = std::nullopt);

  // Appends the kernel to the module.
  void Finish(ir::Schedule schedule = ir::Schedule::kLoops);

 private:
  Scalar Emit(ir::Inst inst);
  // A load or store at those coordinates, with the operands of the run-time ones.
  ir::Inst AccessAt(ir::ScalarOp op, const View& view, const std::vector<Coordinate>& coordinates);
  Ints AddLoops(const Ints& sizes, const std::vector<int>& order, std::vector<ir::IntExpr>& loops);

  ir::Module& module_;
  ir::Kernel kernel_;
};

}  // namespace kiln::lowering
